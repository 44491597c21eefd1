"""What the stages of a schedule leave idle: cores by what units take alone, SMs by the analytic model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from iosched.jobs.headroom.trying import Allowance
from iosched.profiler.devices.cost import MeasuredCosts, known_us
from iosched.profiler.devices.device import OpenModel
from iosched.scheduler.schedule import Stage

_FOR_A_UNIT = 2  # measurements: on one lane, and on all
Spare = tuple[float | None, float | None]
"""A stage's latency in microseconds, and the part of the device's time that it leaves idle; None where not known."""


def spare_of(
    opened: OpenModel, stages: Sequence[Stage], allowance: Allowance, first: Collection[int] = ()
) -> list[Spare]:
    """The latencies of stages of units, and what they leave idle.

    Of measured stages, what their units take of a lane is what they take alone, on one lane or on all, whichever is
    less (`operator_work_us`); the rest of the lanes' time is idle. Beside others, or split, an operator takes rather
    more: so much is idle, or less, and what keeps a split operator from using all lanes counts as idle as well.

    Args:
        allowance: what may be measured, of those stages first that took longest when the schedule was made.
        first: the places of stages that come before all others, since more is asked of them.
    """
    if opened.here is None:
        return [_computed(opened, stage) for stage in stages]
    cost = opened.here.cost
    order = sorted(range(len(stages)), key=lambda place: (place not in first, -(stages[place].latency_us or 0.0)))
    found = {place: _measured(cost, stages[place], allowance) for place in order}
    return [found[place] for place in range(len(stages))]


def _measured(cost: MeasuredCosts, stage: Stage, allowance: Allowance) -> Spare:
    latency_us = _latency_us(cost, stage, allowance)
    return latency_us, _idle(latency_us, _work_us(cost, stage, allowance), cost.lanes)


def _computed(opened: OpenModel, stage: Stage) -> Spare:
    latency_us, busy_us = opened.cost.stage_latency_us(stage), opened.throughputs.busy_us
    if busy_us is None:
        return latency_us, None
    return latency_us, max(1 - busy_us(stage) / latency_us, 0.0) if latency_us else None


def _latency_us(cost: MeasuredCosts, stage: Stage, allowance: Allowance) -> float | None:
    found = known_us(cost, stage)
    if found is None and allowance.take(1):
        found = cost.stage_latency_us(stage)
    return found


def _work_us(cost: MeasuredCosts, stage: Stage, allowance: Allowance) -> float | None:
    """Lane-microseconds of all units of the stage; None where one is not known, and may not be measured."""
    total = 0.0
    for name in stage.operators:
        found = cost.known_work_us(name)
        if found is None:
            if allowance.left < _FOR_A_UNIT:
                return None
            allowance.take(_FOR_A_UNIT)
            found = cost.operator_work_us(name)
        total += found
    return total


def _idle(latency_us: float | None, work_us: float | None, lanes: int) -> float | None:
    if not latency_us or work_us is None:
        return None
    return max(1 - work_us / (latency_us * lanes), 0.0)
