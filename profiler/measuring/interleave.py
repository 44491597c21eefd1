"""Interleaved measurements, A B C A B C, so that drift of the machine affects all; and comparisons of two."""

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
    """Measures all alternatives interleaved; sample k of each is of round k.

    Args:
        runs: by name, run an alternative once and return microseconds.
        warmup: rounds before the first sample.
        max_seconds: no further round starts after this total time of runs.
        least_rounds: rounds in any case.
        rest: called before each run, to wait for effects of the run before.
        observer: called after each round with the rounds done and the total, warm-up included.
        is_quiet: called after each round; whether there was no interference.
        repeats: further rounds in place of those with interference, at most half of those wanted.

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
    """The speedup of `candidate` over `baseline`, both of one call of `interleave`; None if unknown.

    The interval is that of the median ratio within rounds, which share the machine's speed, and distribution-free. On a
    drifting machine the quotient of medians may be outside; the interval then extends to it. It needs `LEAST_SAMPLES`
    rounds and a candidate that takes time. Raises a ValueError if the numbers of samples differ.
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
