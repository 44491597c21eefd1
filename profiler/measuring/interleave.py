"""Several alternatives measured in turn, A B C A B C, so that a slow minute of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement, median_interval, quantile, summarize


@dataclass(frozen=True)
class Comparison:
    """How much faster one alternative is than another, round by round.

    Attributes:
        speedup: median over the rounds of (baseline latency / candidate latency); above 1 the candidate is faster.
        low: lower end of that median's confidence interval.
        high: upper end of it.
        ratios: the ratio of every round.
    """

    speedup: float
    low: float
    high: float
    ratios: tuple[float, ...]

    @property
    def is_faster(self) -> bool:
        """Whether the candidate is faster beyond the noise."""
        return self.low > 1.0

    @property
    def is_slower(self) -> bool:
        """Whether the candidate is slower beyond the noise."""
        return self.high < 1.0


def interleave(
    runs: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    warmup: int = 2,
    max_seconds: float | None = None,
    least_rounds: int = 1,
    rest: Callable[[], None] = lambda: None,
    observer: Callable[[int, int], None] | None = None,
) -> Mapping[str, Measurement]:
    """Measures all alternatives in one run; sample k of each was taken in round k.

    Args:
        runs: by name, what runs the alternative once and returns its latency in microseconds.
        rounds: samples of each.
        warmup: rounds before the first sample; thrown away.
        max_seconds: start no further round once the runs add up to this time.
        least_rounds: so many are kept in any case.
        rest: called before each run, so that what ran before is over.
        observer: told (rounds done, rounds in all), warm-up included.

    Raises:
        ValueError: where there is nothing to run or no round.
    """
    if not runs or rounds < 1:
        raise ValueError("interleave needs at least one alternative and one round")
    samples: dict[str, list[float]] = {name: [] for name in runs}
    spent_us = 0.0
    for index in range(warmup + rounds):
        for name, run in runs.items():
            rest()
            samples[name].append(run())
            spent_us += samples[name][-1]
        if observer is not None:
            observer(index + 1, warmup + rounds)
        kept = index + 1 - warmup
        if max_seconds is not None and kept >= least_rounds and spent_us >= max_seconds * 1e6:
            break
    return {name: summarize(taken[warmup:]) for name, taken in samples.items()}


def compare(baseline: Measurement, candidate: Measurement) -> Comparison | None:
    """Speed-up of `candidate` over `baseline`, both from one `interleave`; None where it cannot be told.

    Ratios are taken within a round, where both met the same weather; the median of ratios has the same
    distribution-free interval as any median. Nothing is told from fewer than `LEAST_SAMPLES` rounds, which have no
    such interval, or of something that takes no time.

    Raises:
        ValueError: where the two do not have the same number of samples.
    """
    pairs = list(zip(baseline.samples_us, candidate.samples_us, strict=True))
    if len(pairs) < LEAST_SAMPLES or any(after <= 0 for _, after in pairs):
        return None
    ratios = tuple(before / after for before, after in pairs)
    low, high = median_interval(ratios)
    return Comparison(quantile(ratios, 0.5), low, high, ratios)


def speedup_text(found: Comparison) -> str:
    """The speed-up with its interval, for people."""
    return f"{found.speedup:.3f}x ({found.low:.3f} to {found.high:.3f})"
