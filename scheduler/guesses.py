"""Latencies that a search may expect, to tell what it would ask next if they came true.

Bounds are good guesses once they are scaled by what the stages that were measured take over theirs. Nothing of this is
an answer: a search goes by what it is told alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from iosched.scheduler.cost import Remeasurable
from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import popcount
from iosched.scheduler.schedule import Stage, Strategy

_OVER_BOUND = 1.1  # until something is known
_SLOWER_AGAIN = 1.02  # what is measured again is what seemed fast


def supposed(latencies: KnownLatencies) -> KnownLatencies:
    """A copy of what is known that answers for itself, by guesses, and changes nothing of the original."""
    scale = {strategy: _scale(latencies, strategy) for strategy in latencies.strategies}
    place = {name: index for index, name in enumerate(latencies.names)}
    kind = _GuessedAgain if isinstance(latencies.cost, Remeasurable) else _Guessed
    return latencies.copied(lambda copy: kind(copy, scale, place))


def _scale(latencies: KnownLatencies, strategy: Strategy) -> float:
    """What measured stages of several operators take over their bounds, by the median."""
    value, bound = latencies.value[strategy], latencies.bound[strategy]
    known = np.isfinite(value) & np.isfinite(bound) & (bound > 0) & (popcount(latencies.lattice.stages) > 1)
    return float(np.median(value[known] / bound[known])) if known.any() else _OVER_BOUND


@dataclass(frozen=True, eq=False)
class _Guessed:
    """A cost model of guesses; what has no bound counts as not worth running so."""

    latencies: KnownLatencies
    scale: dict[Strategy, float]
    place: dict[str, int]

    def stage_latency_us(self, stage: Stage) -> float:
        position = self.latencies.position(sum(1 << self.place[name] for name in stage.operators))
        bound_us = self.latencies.least_us(position, stage.strategy)
        return bound_us * self.scale[stage.strategy] if bound_us > 0 else math.inf

    def lower_bound_us(self, stage: Stage) -> float:
        return 0.0


@dataclass(frozen=True, eq=False)
class _GuessedAgain(_Guessed):
    """The same, and expects to measure once more what was measured."""

    def remeasure(self, stage: Stage) -> float:
        position = self.latencies.position(sum(1 << self.place[name] for name in stage.operators))
        return float(self.latencies.value[stage.strategy][position]) * _SLOWER_AGAIN
