"""Measures in turn how many runs of whole models are done a second, with as many at the same time as they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleaved_models import REST_SECONDS, Budget
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.executor import Candidate

TURN_SECONDS = 0.25
"""About how long the runs of a turn last; there is one at least."""


def measure_rates(
    candidates: Mapping[str, Candidate],
    budget: Budget,
    observer: Callable[[int, int], None] | None = None,
    rest: Callable[[], None] = wait_until_idle,
) -> Mapping[str, Measurement]:
    """The microseconds from the end of one run to that of the next, of every candidate; sample k is of round k.

    In its turn a candidate is run once, since the first run after a rest is another, and then as often as take
    `TURN_SECONDS`. The sample is the mean of these by the clock on the wall, from the begin of the first to the end of
    the last, over the runs that go on at the same time. The first round is thrown away.

    Args:
        candidates: whole models, ready to be timed, by name.
        budget: how long to measure.
        observer: is called after each round with the rounds done and the rounds in all.
        rest: is called before each turn.
    """
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    began = time.monotonic()
    for done in range(1 + budget.rounds):
        for name, candidate in candidates.items():
            rest()
            samples[name].append(_turn_us(candidate))
        if observer is not None:
            observer(done + 1, 1 + budget.rounds)
        if done >= budget.least_rounds and time.monotonic() - began >= budget.max_seconds:
            break
    return {name: summarize(taken[1:]) for name, taken in samples.items()}


def turn_seconds(run_s: float) -> float:
    """About how many seconds a turn takes of a candidate whose runs take `run_s` seconds."""
    return REST_SECONDS + run_s + max(run_s, TURN_SECONDS)


def _turn_us(candidate: Candidate) -> float:
    first_s = candidate.time(1)[0] / 1e6
    count = max(int(TURN_SECONDS / first_s), 1) if first_s > 0 else 1
    began = time.perf_counter_ns()
    candidate.time(count)
    return (time.perf_counter_ns() - began) / 1e3 / count / candidate.in_flight
