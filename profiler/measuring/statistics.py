"""Statistics of latency samples: quantiles, their confidence intervals, and when there are enough samples.

On a shared machine latencies have a heavy right tail (another process takes the core), so means and standard deviations
say little. Everything here rests on order statistics, which hold for any distribution of independent samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95
"""Probability that the interval of a quantile contains the true one, if there are enough samples (`least_samples`)."""

EQUAL = 0.03
"""Alternatives whose speedup surely differs from 1 by less than this are equally fast."""

_ROUNDING = 1e-9  # sums of the same latencies in another order differ by less


@dataclass(frozen=True)
class Interval:
    """A latency in microseconds, or the baseline's latency over the candidate's, with its confidence interval.

    Attributes:
        value: what was measured or computed; it lies within.
        low: lower end.
        high: upper end.
        of: "BASELINE/CANDIDATE" where a report names them; else empty.
    """

    value: float
    low: float
    high: float
    of: str = ""

    def __contains__(self, value: object) -> bool:
        """Whether a number lies in the interval, ends included."""
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
        """Whether the candidate is faster, slower, or as fast as the baseline, all beyond the noise."""
        is_equal = self.low >= 1 - EQUAL and self.high <= 1 + EQUAL
        return self.is_faster or self.is_slower or is_equal

    @property
    def is_equal(self) -> bool:
        """Whether no difference is known, so that 1 lies in the interval."""
        return self.low <= 1 + _ROUNDING and self.high >= 1 - _ROUNDING


@dataclass(frozen=True)
class Measurement:
    """A latency that was measured.

    Attributes:
        median_us: median of the samples.
        low_us: lower end of the median's confidence interval.
        high_us: upper end of it.
        samples_us: every sample in the order in which it was taken.
        clock_mhz: the clock of the device, read right after the last sample; None if it was not read.
        throttled_by: the reasons why that clock was lower than it could be.
        disturbed_by: what else the machine did meanwhile, in words, if that was too much for the latency to be trusted.
        rested_us: latencies of the first run after a rest, round by round, while the samples are of runs in a row;
            empty if they were not measured.
        runs_us: latencies of all single runs in a row, if a sample is the median of several of them; else empty.
        slowness: how many times as long as at the speed of stage latencies the machine took meanwhile; None where that
            is not known, or the samples are already at that speed.
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
        """The latencies of all single runs in a row: `runs_us` if there are any, else the samples."""
        return self.runs_us or self.samples_us

    @property
    def min_us(self) -> float:
        """The fastest sample."""
        return min(self.samples_us, default=self.median_us)

    @property
    def p10_us(self) -> float:
        """The latency that one run in ten is faster than."""
        return quantile(self.every_run_us, 0.1) if self.samples_us else self.median_us

    @property
    def interval(self) -> Interval | None:
        """The interval that has the median with `CONFIDENCE`, or the computed one; None with too few samples for one.

        What spans few samples says little of the next run.
        """
        is_known = len(self.samples_us) >= LEAST_SAMPLES if self.samples_us else math.isfinite(self.high_us)
        return Interval(self.median_us, self.low_us, self.high_us) if is_known else None

    @property
    def p99(self) -> Interval | None:
        """The latency that one run in a hundred is slower than; None with too few runs for its interval."""
        ends = quantile_interval(self.every_run_us, 0.99)
        return None if ends is None else Interval(quantile(self.every_run_us, 0.99), *ends)

    @property
    def rested(self) -> Measurement | None:
        """The latency after a rest; None if it was not measured."""
        return summarize(self.rested_us) if self.rested_us else None

    @property
    def p90_us(self) -> float:
        """The latency that one run in ten is slower than."""
        return quantile(self.every_run_us, 0.9) if self.samples_us else self.median_us

    @property
    def relative_width(self) -> float:
        """Width of the confidence interval over the median; infinite if there are too few samples for an interval."""
        if len(self.samples_us) < LEAST_SAMPLES:
            return math.inf
        return (self.high_us - self.low_us) / self.median_us if self.median_us > 0 else 0.0


UNRUNNABLE = Measurement(math.inf, math.inf, math.inf, ())
"""Stands for the measurement of something that the device cannot run."""

FAILED = Measurement(math.inf, math.inf, math.inf, ())
"""Stands for the measurement of something that failed: unlike `UNRUNNABLE`, by a fault, so that it is not kept."""

NOTHING_TO_RUN = Measurement(0.0, 0.0, 0.0, ())
"""Stands for the measurement of something that has no kernel to run: it takes no time, and there is no sample."""


@dataclass(frozen=True)
class MeasureSettings:
    """How long to measure.

    Attributes:
        warmup: the number of runs before the first sample, whose latencies are thrown away.
        min_samples: the number of samples that are taken before measuring may stop.
        max_samples: the number of samples after which measuring stops in any case.
        relative_width: measuring stops when the interval of the median is narrower than this part of the median.
        max_seconds: measuring stops after the runs, warm-up included, have taken this long together; at least one
            sample is taken.
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
    """The `fraction` quantile, interpolated between neighbouring order statistics.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


@lru_cache(maxsize=1024)
def _lowest_place(count: int, fraction: float, confidence: float) -> int:
    """Which of the samples in ascending order, counted from 1, begins the interval of a quantile; 0 if none does.

    The number of samples below the true quantile is Binomial(count, fraction), so the k-th smallest sample lies above
    it with probability P(Binomial < k), of which half of 1 - confidence is allowed. By symmetry, the k-th largest one
    ends the interval if k is this place for 1 - fraction.
    """
    tail, place = 0.0, 0
    while place < count:
        tail += _binomial(count, place, fraction)
        if 2 * tail > 1 - confidence:
            break
        place += 1
    return place


def _binomial(count: int, successes: int, fraction: float) -> float:
    """P(Binomial(count, fraction) = successes), also for large counts."""
    ways = math.lgamma(count + 1) - math.lgamma(successes + 1) - math.lgamma(count - successes + 1)
    return math.exp(ways + successes * math.log(fraction) + (count - successes) * math.log1p(-fraction))


def quantile_interval(
    samples: Sequence[float], fraction: float, confidence: float = CONFIDENCE
) -> tuple[float, float] | None:
    """Distribution-free confidence interval of a quantile, from order statistics; None if there are too few samples.

    `least_samples` says how many it takes. The confidence holds for independent samples.
    H. A. David, H. N. Nagaraja, Order Statistics, 3rd edition, section 7.1.

    Args:
        samples: latencies in any order.
        fraction: which quantile, between 0 and 1: 0.99 for the one that one sample in a hundred lies above.
    """
    count = len(samples)
    low, high = (_lowest_place(count, part, confidence) for part in (fraction, 1 - fraction))
    if low == 0 or high == 0:
        return None
    ordered = sorted(samples)
    return ordered[low - 1], ordered[count - high]


def least_samples(fraction: float, confidence: float = CONFIDENCE) -> int:
    """The least number of samples that a quantile has an interval with: 6 for the median, 368 for the 0.99 quantile.

    With fewer, all samples lie on one side of the true quantile too often.
    """
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(fraction, 1 - fraction)))


def interval_coverage(count: int, confidence: float = CONFIDENCE) -> float:
    """Probability that `median_interval` of `count` samples contains the true median.

    It is lower than `confidence` if there are too few samples.
    """
    missed = 2 * sum(math.comb(count, k) for k in range(_outside(count, confidence) + 1)) / (1 << count)
    return max(0.0, 1 - missed)


def _outside(count: int, confidence: float) -> int:
    """How many samples at each end lie outside the interval of the median; none if there are too few samples."""
    return max(_lowest_place(count, 0.5, confidence) - 1, 0)


LEAST_SAMPLES = least_samples(0.5)
"""The least number of samples whose median has an interval with `CONFIDENCE`: six for 95 %."""


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Distribution-free confidence interval of the median, from order statistics.

    If there are too few samples for `confidence` (fewer than six for 95 %), the interval spans all of them. Its
    confidence is exact for a number of samples that is fixed beforehand, and slightly lower if sampling stops when the
    interval is narrow. See `quantile_interval`.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("no samples")
    ordered = sorted(samples)
    rank = _outside(len(ordered), confidence)
    return ordered[rank], ordered[-1 - rank]


def summarize(samples_us: Sequence[float]) -> Measurement:
    """The measurement that has these samples, in microseconds; O(n log n).

    Raises:
        ValueError: there is no sample, or one is negative or not a finite number.
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
    """Measures until the median is known well enough, or the candidate is clearly worse than the best known.

    No clock is read here: the time spent is the sum of the latencies, so that equal samples give equal decisions.

    Args:
        run_batch: runs the candidate a number of times, and returns the latency of each run in microseconds.
        settings: how long to measure.
        worse_than_us: measuring stops as soon as the whole interval lies above this latency.
        warm_up: runs it where the latencies are not kept, and need not be as exact; by default `run_batch`.
        is_hopeless: whether more samples make the latency no better known; not asked before there are `min_samples`.

    Raises:
        ValueError: `run_batch` returns another number of latencies than it was asked for, or impossible latencies.
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
    """Runs the warm-up as far as time allows; returns the time spent and an estimate of one run, in microseconds."""
    if settings.warmup == 0:
        return 0.0, 0.0
    (first,) = _checked_batch(run_batch, 1)
    left_us = settings.max_seconds * 1e6 - first
    if settings.warmup == 1 or left_us < 2 * first:
        return first, first
    rest = _checked_batch(run_batch, _affordable(settings.warmup - 1, left_us, first))
    return first + sum(rest), rest[-1]


def _affordable(wanted: int, left_us: float, each_us: float) -> int:
    """How many of the `wanted` runs fit into the time that is left; at least one."""
    if wanted * each_us <= left_us:
        return wanted
    return max(1, int(left_us / each_us)) if each_us > 0 else 1


def _checked_batch(run_batch: Callable[[int], Sequence[float]], count: int) -> Sequence[float]:
    batch = run_batch(count)
    if len(batch) != count:
        raise ValueError(f"asked for {count} latencies, got {len(batch)}")
    return batch


def is_thorough(found: Measurement, settings: MeasureSettings) -> bool:
    """Whether the samples suffice by `settings`, even if there is time left: they are many, or agree."""
    count = len(found.samples_us)
    agree = count >= settings.min_samples and found.relative_width <= settings.relative_width
    return agree or count >= settings.max_samples


def _is_enough(found: Measurement, spent_us: float, settings: MeasureSettings, worse_than_us: float | None) -> bool:
    if is_thorough(found, settings) or spent_us >= settings.max_seconds * 1e6:
        return True
    if len(found.samples_us) < settings.min_samples:
        return False
    return worse_than_us is not None and found.low_us > worse_than_us
