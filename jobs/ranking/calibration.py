"""How far sums of stages are from what whole models take, learned from models that were measured both ways.

A stage measured alone finds the caches otherwise than amid its neighbours, a whole model waits between its stages, and
what ships is sometimes a library without a schedule: sums are off by a factor that is much the same for all models on a
device, and by some more that is not. The factor is the median over the models measured both ways. What is left of the
error is taken as it was seen on each of these models with the factor of the others (leave-one-out, as conformal
prediction has it: Vovk et al., Algorithmic Learning in a Random World, 2005; Barber et al., Annals of Statistics, 2021,
on the jackknife): the interval holds with the probability `LEVEL` for models of the kind that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iosched.profiler.devices.uncertainty import LEVEL
from iosched.profiler.measuring.statistics import Interval, quantile

LEAST_MODELS = 9
"""With fewer models even the largest error seen is exceeded more often than `LEVEL` allows: n / (n + 1) is below it."""


@dataclass(frozen=True)
class Calibration:
    """By what sums of stages are multiplied, and how exact that is.

    Attributes:
        models: how many models it was learned from.
        factor: what whole models take over the sum of their stages; 1 where there are too few models.
        error: by what factor, at most, the product is off with the probability `LEVEL`; None where there are too few.
    """

    models: int
    factor: float = 1.0
    error: float | None = None

    def applied(self, sum_us: float) -> Interval | None:
        """What a whole model takes in microseconds by the sum of its stages; None where the error is not known."""
        value = sum_us * self.factor
        return None if self.error is None else Interval(value, value / self.error, value * self.error)


def calibrated(pairs: Sequence[tuple[float, float]]) -> Calibration:
    """Learns from pairs of a sum of stages and what the whole model took, both in microseconds.

    Complexity: O(n^2 log n) for n pairs.
    """
    logs = [math.log(whole / total) for total, whole in pairs if total > 0 and whole > 0]
    if len(logs) < LEAST_MODELS:
        return Calibration(len(logs))
    missed = sorted(abs(each - quantile([*logs[:place], *logs[place + 1 :]], 0.5)) for place, each in enumerate(logs))
    rank = math.ceil((len(logs) + 1) * LEVEL)
    return Calibration(len(logs), math.exp(quantile(logs, 0.5)), math.exp(missed[min(rank, len(missed)) - 1]))
