"""The best schedule of stages that were all measured, alongside one with computed stages.

A search prefers stages that the model underestimates, so computed parts of the schedule found tend to be too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import ExecutionError
from iosched.profiler.devices.profiled_device import OpenModel
from iosched.scheduler.schedule import Stage
from iosched.scheduler.search import search
from iosched.scheduler.strategies import is_searched


@dataclass(frozen=True, eq=False)
class MeasuredOnly:
    """Stages that were not measured cannot be run; a `CostModel` with `OperatorKeys`.

    Attributes:
        known_us: the latency of a stage in microseconds; None if it was not measured.
        operator_key: a text that is equal for operators that are alike.
    """

    known_us: Callable[[Stage], float | None]
    operator_key: Callable[[str], str]

    def stage_latency_us(self, stage: Stage) -> float:
        """The latency of the stage; infinite where it was not measured."""
        known = self.known_us(stage)
        return math.inf if known is None else known

    def lower_bound_us(self, stage: Stage) -> float:
        """The same."""
        return self.stage_latency_us(stage)


def best_measured_us(opened: OpenModel, settings: OptimizeSettings) -> float | None:
    """The latency of the best schedule of stages that were all measured elsewhere, in microseconds.

    None if there is no such schedule, nothing is searched, or there is a budget. Complexity: that of `search`, which
    asks for no latency that has to be computed.
    """
    measured = opened.details.imported.measured
    if measured is None or settings.budget_s is not None or not is_searched(settings.strategy):
        return None
    cost = MeasuredOnly(measured.known_us, opened.cost.operator_key)
    try:
        return search(opened.graph, cost, strategy=settings.strategy, pruning=settings.pruning).schedule.predicted_us
    except ExecutionError:
        return None


def measured_stages_notes(
    opened: OpenModel, settings: OptimizeSettings, measured_share: float | None
) -> tuple[str, ...]:
    """The latency of the best schedule of measured stages, as a note, if the share is below 1."""
    if measured_share is None or measured_share == 1 or settings.schedule_from is not None:
        return ()
    latency_us = best_measured_us(opened, settings)
    if latency_us is None:
        return ()
    return (f"The best schedule that uses only measured stages takes {latency_us:,.1f} us.",)
