"""Interleaved throughput of whole models, with as many concurrent runs as they take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleaved_models import REST_SECONDS, Budget
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.executor import Candidate

TURN_SECONDS = 0.25
"""Approximate duration of the runs of a sample; there is at least one."""


def measure_rates(
    candidates: Mapping[str, Candidate],
    budget: Budget,
    observer: Callable[[int, int], None] | None = None,
    rest: Callable[[], None] = wait_until_idle,
) -> Mapping[str, Measurement]:
    """The microseconds between the ends of consecutive runs, of every candidate; sample k is of round k.

    A candidate runs once, since the first run after idle differs, and then for `TURN_SECONDS`. The sample is the
    wall-clock mean of these, over the concurrent runs. The first round is dropped.
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
    """Approximate seconds of a sample of a candidate whose runs take `run_s` seconds."""
    return REST_SECONDS + run_s + max(run_s, TURN_SECONDS)


def _turn_us(candidate: Candidate) -> float:
    first_s = candidate.time(1)[0] / 1e6
    count = max(int(TURN_SECONDS / first_s), 1) if first_s > 0 else 1
    began = time.perf_counter_ns()
    candidate.time(count)
    return (time.perf_counter_ns() - began) / 1e3 / count / candidate.in_flight
