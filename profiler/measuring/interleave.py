"""Measures alternatives in turn, A B C A B C, so that a slow minute of the machine slows all; and compares two."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Interval, Measurement, median_interval, summarize


def interleave(
    runs: Mapping[str, Callable[[], float]],
    rounds: int,
    *,
    warmup: int = 2,
    max_seconds: float | None = None,
    least_rounds: int = 1,
    rest: Callable[[], None] = lambda: None,
    observer: Callable[[int, int], None] | None = None,
    is_quiet: Callable[[], bool] = lambda: True,
    repeats: int = 0,
) -> Mapping[str, Measurement]:
    """Measures all alternatives in turn; sample k of each is taken in round k.

    Args:
        runs: by name, functions that run an alternative once and return its latency in microseconds.
        rounds: the number of samples of each alternative.
        warmup: the number of rounds before the first sample, whose latencies are thrown away.
        max_seconds: no further round begins after the runs have taken this long together.
        least_rounds: the number of rounds that are kept in any case.
        rest: is called before each run, to wait until the run before has no more effect.
        observer: is called after each round with the rounds done and the rounds in all, warm-up included.
        is_quiet: is called after each round; returns whether nothing else ran meanwhile.
        repeats: how many rounds more are taken for those that were not quiet, but at most half of those wanted.

    Raises:
        ValueError: there is no alternative or no round.
    """
    if not runs or rounds < 1:
        raise ValueError("interleave needs at least one alternative and one round")
    samples: dict[str, list[float]] = {name: [] for name in runs}
    spent_us = 0.0
    n_quiet = 0
    for index in range(warmup + rounds + repeats):
        for name, run in runs.items():
            rest()
            samples[name].append(run())
            spent_us += samples[name][-1]
        if observer is not None:
            observer(min(index + 1, warmup + rounds), warmup + rounds)
        taken = index + 1 - warmup
        n_quiet += is_quiet() and taken > 0
        is_late = max_seconds is not None and spent_us >= max_seconds * 1e6
        wanted = min(least_rounds, rounds) if is_late else rounds
        if taken >= wanted and (n_quiet >= wanted or taken >= wanted + min(repeats, wanted // 2)):
            break
    return {name: summarize(each[warmup:]) for name, each in samples.items()}


def compare(baseline: Measurement, candidate: Measurement) -> Interval | None:
    """The speed-up of `candidate` over `baseline`, both measured by one call of `interleave`; None if it is not known.

    The interval is that of the median of the ratios within rounds, in which both met the same speed of the machine: it
    is distribution-free, as that of any median. On a drifting machine the quotient of the medians may lie outside; the
    interval then extends to it, so one is called faster only where both say so. It is not known from fewer than
    `LEAST_SAMPLES` rounds, which have no such interval, nor if the candidate takes no time.

    Raises:
        ValueError: the two do not have the same number of samples.
    """
    pairs = list(zip(baseline.samples_us, candidate.samples_us, strict=True))
    if len(pairs) < LEAST_SAMPLES or any(after <= 0 for _, after in pairs):
        return None
    speedup = baseline.median_us / candidate.median_us
    ends = median_interval([before / after for before, after in pairs])
    return Interval(speedup, min(speedup, *ends), max(speedup, *ends))


def speedup_text(found: Interval) -> str:
    """The speedup with its interval as text: "1.085x (1.062 to 1.101)"."""
    return f"{found.value:.3f}x ({found.low:.3f} to {found.high:.3f})"


def relative_speed_text(name: str, found: Interval, baseline: str) -> str:
    """The same as a sentence: "the schedule runs at 1.085x (1.062 to 1.101) the speed of onnxruntime"."""
    return f"{name} runs at {speedup_text(found)} the speed of {baseline}"
