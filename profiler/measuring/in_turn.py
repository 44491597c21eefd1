"""Whole models measured in turn on a CPU: each in a row, and after a rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement, quantile

REST_SECONDS = 0.1
"""About what waiting for quiet takes before each run."""

WARMUP_ROUNDS = 2

IN_A_ROW_SECONDS, MOST_IN_A_ROW = 0.01, 10
"""How long a turn of runs in a row lasts, and how many runs that is at most; one at least."""


def _nothing() -> None:
    """A candidate that holds nothing has nothing to close."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A whole model that is ready to be timed on inputs it was given.

    Attributes:
        time: runs it so many times; the microseconds of each run.
        close: frees the sessions, buffers and threads it holds.
        notes: sentences on what a user should know of how it runs; asked after it ran.
    """

    time: Callable[[int], Sequence[float]]
    close: Callable[[], None] = _nothing
    notes: Callable[[], Sequence[str]] = tuple


@dataclass(frozen=True)
class Budget:
    """How long to measure whole models in turn.

    Attributes:
        rounds: that are kept, as far as there is time.
        max_seconds: of running, after which no further round begins.
        least_rounds: that are kept in any case; by default as many as it takes to tell what is faster.
    """

    rounds: int = 15
    max_seconds: float = 20.0
    least_rounds: int = LEAST_SAMPLES


def measure_in_turn(
    candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
) -> Mapping[str, Measurement]:
    """Latency of every candidate in a row, and after a rest; sample k of each taken in round k.

    In its turn a candidate rests, is run once, and then in a row: a sample is the median of the runs in a row.
    """
    turns = {name: _Turns(candidate) for name, candidate in candidates.items()}
    found = interleave(
        {name: each.take for name, each in turns.items()},
        budget.rounds,
        warmup=WARMUP_ROUNDS,
        max_seconds=budget.max_seconds / 2,  # every sample has a run before it that is none
        least_rounds=budget.least_rounds,
        rest=wait_until_idle,
        observer=observer,
    )
    return {name: replace(each, rested_us=_last(turns[name].rested_us, each)) for name, each in found.items()}


def _last(rested_us: Sequence[float], found: Measurement) -> tuple[float, ...]:
    """Those of the rounds that were kept."""
    return tuple(rested_us[-len(found.samples_us) :])


@dataclass(frozen=True)
class _Turns:
    """One candidate's turns, and what the first run of each took."""

    candidate: Candidate
    rested_us: list[float] = field(default_factory=list)

    def take(self) -> float:
        """Microseconds of a run in a row."""
        rested_us, *in_a_row_us = self.candidate.time(1 + self._count())
        self.rested_us.append(rested_us)
        return quantile(in_a_row_us, 0.5)

    def _count(self) -> int:
        if not self.rested_us or self.rested_us[-1] <= 0:
            return 1
        return min(max(int(IN_A_ROW_SECONDS * 1e6 / self.rested_us[-1]), 1), MOST_IN_A_ROW)


def turn_seconds(run_s: float) -> float:
    """About what a turn of a candidate takes whose runs take `run_s`."""
    return REST_SECONDS + run_s + max(run_s, IN_A_ROW_SECONDS)


def close_all(candidates: Iterable[Candidate]) -> None:
    """Closes every candidate."""
    for candidate in candidates:
        candidate.close()
