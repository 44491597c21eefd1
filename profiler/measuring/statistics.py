"""Statistics of latency samples: quantiles, their confidence intervals, and sufficient sample sizes.

On a shared machine latencies have a heavy right tail, so means and standard deviations say little. Everything here uses
order statistics, which hold for any distribution of independent samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
"""Confidence of the interval of a quantile with enough samples (`least_samples`)."""

EQUAL = 0.03
"""Alternatives whose speedup certainly differs from 1 by less than this are equally fast."""

_ROUNDING = 1e-9  # sums of the same latencies in another order differ by less


@dataclass(frozen=True)
class Interval:
    """A latency in microseconds, or a speedup, with its interval; `of` is "BASELINE/CANDIDATE" in reports."""

    value: float
    low: float
    high: float
    of: str = ""

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int | float) and self.low <= value <= self.high

    @property
    def median(self) -> float:
        """The value of a ratio of medians."""
        return self.value

    @property
    def baseline(self) -> str:
        """The name of the baseline."""
        return self.of.partition("/")[0]

    @property
    def is_faster(self) -> bool:
        """Whether the candidate is faster beyond the noise."""
        return self.low > 1.0

    @property
    def is_slower(self) -> bool:
        """Whether the candidate is slower beyond the noise."""
        return self.high < 1.0

    @property
    def is_decided(self) -> bool:
        """Whether the candidate is faster, slower or as fast as the baseline, beyond the noise."""
        is_equal = self.low >= 1 - EQUAL and self.high <= 1 + EQUAL
        return self.is_faster or self.is_slower or is_equal

    @property
    def is_equal(self) -> bool:
        """Whether 1 is in the interval, so that no difference is known."""
        return self.low <= 1 + _ROUNDING and self.high >= 1 - _ROUNDING


@dataclass(frozen=True)
class Measurement:
    """A measured latency.

    Attributes:
        median_us, low_us, high_us: median of the samples, with its confidence interval.
        samples_us: all samples in order.
        clock_mhz: the device's clock right after the last sample; None if unknown.
        throttled_by: the reasons for a lower clock than possible.
        disturbed_by: the interference in words, if the latency is unreliable.
        rested_us: latencies of the first run after idle, by round, while samples are of runs in a row; else empty.
        runs_us: latencies of all single runs, if a sample is the median of several; else empty.
        slowness: of the machine against the speed of stage latencies; None if unknown or already corrected.
    """

    median_us: float
    low_us: float
    high_us: float
    samples_us: tuple[float, ...]
    clock_mhz: int | None = None
    throttled_by: tuple[str, ...] = ()
    disturbed_by: tuple[str, ...] = ()
    rested_us: tuple[float, ...] = ()
    runs_us: tuple[float, ...] = ()
    slowness: float | None = None

    @property
    def every_run_us(self) -> tuple[float, ...]:
        """The latencies of all single runs in a row."""
        return self.runs_us or self.samples_us

    @property
    def min_us(self) -> float:
        """The fastest sample."""
        return min(self.samples_us, default=self.median_us)

    @property
    def p10_us(self) -> float:
        """The 10 % quantile of single runs."""
        return quantile(self.every_run_us, 0.1) if self.samples_us else self.median_us

    @property
    def interval(self) -> Interval | None:
        """The median's interval, or the computed one; None with too few samples."""
        is_known = len(self.samples_us) >= LEAST_SAMPLES if self.samples_us else math.isfinite(self.high_us)
        return Interval(self.median_us, self.low_us, self.high_us) if is_known else None

    @property
    def p99(self) -> Interval | None:
        """The 99 % quantile of single runs; None with too few runs for its interval."""
        ends = quantile_interval(self.every_run_us, 0.99)
        return None if ends is None else Interval(quantile(self.every_run_us, 0.99), *ends)

    @property
    def rested(self) -> Measurement | None:
        """The latency after idle; None if unmeasured."""
        return summarize(self.rested_us) if self.rested_us else None

    @property
    def p90_us(self) -> float:
        """The 90 % quantile of single runs."""
        return quantile(self.every_run_us, 0.9) if self.samples_us else self.median_us

    @property
    def relative_width(self) -> float:
        """Width of the confidence interval over the median; infinite with too few samples."""
        if len(self.samples_us) < LEAST_SAMPLES:
            return math.inf
        return (self.high_us - self.low_us) / self.median_us if self.median_us > 0 else 0.0


UNRUNNABLE = Measurement(math.inf, math.inf, math.inf, ())
"""Of something that the device cannot run."""

FAILED = Measurement(math.inf, math.inf, math.inf, ())
"""Of something that failed by a fault; unlike `UNRUNNABLE`, it is not stored."""

NOTHING_TO_RUN = Measurement(0.0, 0.0, 0.0, ())
"""Of something without kernels."""


@dataclass(frozen=True)
class MeasureSettings:
    """Limits for a measurement.

    Attributes:
        warmup: runs before the first sample.
        min_samples, max_samples: limits of the number of samples.
        relative_width: sampling stops when the median's interval is narrower than this share of the median.
        max_seconds: sampling stops after this total time of runs, warm-up included, with at least one sample.
    """

    warmup: int = 3
    min_samples: int = 7
    max_samples: int = 60
    relative_width: float = 0.03
    max_seconds: float = 3.0

    def __post_init__(self) -> None:
        if self.warmup < 0 or not 1 <= self.min_samples <= self.max_samples:
            raise ValueError("a measurement needs warmup >= 0 and 1 <= min_samples <= max_samples")


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The `fraction` quantile, interpolated between order statistics; raises a ValueError without samples."""
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@lru_cache(maxsize=1024)
def _lowest_rank(count: int, fraction: float, confidence: float) -> int:
    """The rank, from 1, of the sample that starts the interval of a quantile; 0 if none does.

    The number of samples below the true quantile is Binomial(count, fraction), so the k-th smallest sample is above it
    with probability P(Binomial < k), of which half of 1 - confidence is allowed. By symmetry, the k-th largest one ends
    the interval if k is this rank for 1 - fraction.
    """
    tail, rank = 0.0, 0
    while rank < count:
        tail += _binomial(count, rank, fraction)
        if 2 * tail > 1 - confidence:
            break
        rank += 1
    return rank


def _binomial(count: int, successes: int, fraction: float) -> float:
    """P(Binomial(count, fraction) = successes), also for large counts."""
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(ways + successes * math.log(fraction) + (count - successes) * math.log1p(-fraction))


def quantile_interval(
    samples: Sequence[float], fraction: float, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Distribution-free confidence interval of the `fraction` quantile of independent samples; None with too few
    samples.

    H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.
    """
    count = len(samples)
    low, high = (_lowest_rank(count, part, confidence) for part in (fraction, 1 - fraction))
    if low == 0 or high == 0:
        return None
    ordered = sorted(samples)
    return ordered[low - 1], ordered[count - high]


def least_samples(fraction: float, confidence: float = CONFIDENCE) -> int:
    """The least number of samples for the interval of a quantile: 6 for the median, 368 for the 0.99 quantile."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(fraction, 1 - fraction)))


def interval_coverage(count: int, confidence: float = CONFIDENCE) -> float:
    """Probability that `median_interval` of `count` samples contains the true median; lower with too few samples."""
    missed = 2 * sum(math.comb(count, k) for k in range(_outside(count, confidence) + 1)) / (1 << count)
    return max(0.0, 1 - missed)


def _outside(count: int, confidence: float) -> int:
    return max(_lowest_rank(count, 0.5, confidence) - 1, 0)


LEAST_SAMPLES = least_samples(0.5)
"""The least number of samples whose median has an interval with `CONFIDENCE`: six for 95 %."""


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, from order statistics; spans all samples if they are too
    few.

    Exact for a predetermined number of samples, and slightly narrow if sampling stops at a width. See
    `quantile_interval`. Raises a ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _outside(len(ordered), confidence)
    return ordered[rank], ordered[-1 - rank]


def summarize(samples_us: Sequence[float]) -> Measurement:
    """The measurement of these samples, in microseconds; raises a ValueError without any or for impossible ones; O(n
    log n).
    """
    if not all(math.isfinite(sample) and sample >= 0 for sample in samples_us):
        raise ValueError("latencies must be finite and not negative")
    low, high = median_interval(samples_us)
    return Measurement(quantile(samples_us, 0.5), low, high, tuple(float(sample) for sample in samples_us))


def measure(
    run_batch: Callable[[int], Sequence[float]],
    settings: MeasureSettings,
    *,
    worse_than_us: float | None = None,
    warm_up: Callable[[int], Sequence[float]] | None = None,
    is_hopeless: Callable[[], bool] = lambda: False,
) -> Measurement:
    """Measures until the median is known well enough, or clearly above `worse_than_us`.

    Time is the sum of latencies, not a clock, so that equal samples give equal decisions.

    Args:
        run_batch: runs the candidate a number of times, and returns microseconds.
        warm_up: the same for runs that are not kept; by default `run_batch`.
        is_hopeless: whether more samples are useless; called from `min_samples` on.

    Raises:
        ValueError: `run_batch` returns the wrong number of latencies, or impossible ones.
    """
    spent_us, last_us = _warm_up(warm_up or run_batch, settings)
    samples: list[float] = []
    while True:
        wanted = settings.min_samples - len(samples) if len(samples) < settings.min_samples else len(samples) // 2
        wanted = min(max(wanted, 1), settings.max_samples - len(samples))
        batch = _checked_batch(run_batch, _affordable(wanted, settings.max_seconds * 1e6 - spent_us, last_us))
        samples += batch
        spent_us += sum(batch)
        last_us = quantile(batch, 0.5)
        found = summarize(samples)
        if _is_enough(found, spent_us, settings, worse_than_us):
            return found
        if len(samples) >= settings.min_samples and is_hopeless():
            return found


def _warm_up(run_batch: Callable[[int], Sequence[float]], settings: MeasureSettings) -> tuple[float, float]:
    if settings.warmup == 0:
        return 0.0, 0.0
    (first,) = _checked_batch(run_batch, 1)
    left_us = settings.max_seconds * 1e6 - first
    if settings.warmup == 1 or left_us < 2 * first:
        return first, first
    rest = _checked_batch(run_batch, _affordable(settings.warmup - 1, left_us, first))
    return first + sum(rest), rest[-1]


def _affordable(wanted: int, left_us: float, each_us: float) -> int:
    if wanted * each_us <= left_us:
        return wanted
    return max(1, int(left_us / each_us)) if each_us > 0 else 1


def _checked_batch(run_batch: Callable[[int], Sequence[float]], count: int) -> Sequence[float]:
    batch = run_batch(count)
    if len(batch) != count:
        raise ValueError(f"asked for {count} latencies, got {len(batch)}")
    return batch


def is_thorough(found: Measurement, settings: MeasureSettings) -> bool:
    """Whether the samples suffice by `settings`: they are many, or agree."""
    count = len(found.samples_us)
    agree = count >= settings.min_samples and found.relative_width <= settings.relative_width
    return agree or count >= settings.max_samples


def _is_enough(found: Measurement, spent_us: float, settings: MeasureSettings, worse_than_us: float | None) -> bool:
    if is_thorough(found, settings) or spent_us >= settings.max_seconds * 1e6:
        return True
    if len(found.samples_us) < settings.min_samples:
        return False
    return worse_than_us is not None and found.low_us > worse_than_us
