"""Whole-model candidates on the CPU: schedules compiled for it, and plain onnxruntime in its best setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from iosched.models.model import Model
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement, quantile
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.reference import candidates as reference_candidates

REST_SECONDS = 0.1
"""About what waiting for quiet takes before each run."""

WARMUP_ROUNDS = 2

IN_A_ROW_SECONDS, MOST_IN_A_ROW = 0.01, 10
"""How long a turn of runs in a row lasts, and how many runs that is at most; one at least."""

MANY_SESSIONS_NBYTES = 256 << 20
"""Weights above this are not held by several sessions at once just to find onnxruntime's best setting."""

Arrays = Mapping[str, np.ndarray]


class Runnable(Protocol):
    """Runs a whole model."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run; outputs by name."""
        ...

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


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


QUICK = Budget(rounds=3, max_seconds=6.0, least_rounds=1)
"""Enough to choose a setting of onnxruntime, not to claim that it is the fastest."""


def measure_in_turn(
    runnables: Mapping[str, Runnable],
    inputs: Arrays,
    budget: Budget,
    observer: Callable[[int, int], None] | None = None,
) -> Mapping[str, Measurement]:
    """Latency of every candidate in a row, and after a rest; sample k of each taken in round k.

    In its turn a candidate rests, is run once, and then in a row: a sample is the median of the runs in a row.
    """
    turns = {name: _Turns(runnable, inputs) for name, runnable in runnables.items()}
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

    runnable: Runnable
    inputs: Arrays
    rested_us: list[float] = field(default_factory=list)

    def take(self) -> float:
        """Microseconds of a run in a row."""
        rested_us, *in_a_row_us = self.runnable.time(self.inputs, 1 + self._count())
        self.rested_us.append(rested_us)
        return quantile(in_a_row_us, 0.5)

    def _count(self) -> int:
        if not self.rested_us or self.rested_us[-1] <= 0:
            return 1
        return min(max(int(IN_A_ROW_SECONDS * 1e6 / self.rested_us[-1]), 1), MOST_IN_A_ROW)


def turn_seconds(run_s: float) -> float:
    """About what a turn of a candidate takes whose runs take `run_s`."""
    return REST_SECONDS + run_s + max(run_s, IN_A_ROW_SECONDS)


def best_reference(model: Model, inputs: Arrays, threads: int) -> ReferenceSettings:
    """The setting in which plain onnxruntime is fastest, by a few quick rounds.

    Where it is the only one, or every session would copy large weights, it is sequential mode on all threads.
    """
    settings = reference_candidates(threads)
    if len(settings) == 1 or sum(array.nbytes for array in model.weights.values()) > MANY_SESSIONS_NBYTES:
        return settings[0]
    opened = {str(index): Reference(model, setting) for index, setting in enumerate(settings)}
    try:
        found = measure_in_turn(opened, inputs, QUICK)
    finally:
        for reference in opened.values():
            reference.close()
    return settings[int(min(found, key=lambda name: found[name].min_us))]


def close_all(runnables: Sequence[Runnable]) -> None:
    """Closes every candidate."""
    for runnable in runnables:
        runnable.close()
