"""The latency of a schedule on any device, also one that it was not made for, as the sum of its stages' latencies."""

from __future__ import annotations

import math
from dataclasses import replace

from iosched.profiler.devices.device import OpenModel
from iosched.scheduler.cost import Question, Remeasurable, announce
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import STAGE_RULES


def schedule_latency_us(opened: OpenModel, schedule: Schedule) -> float:
    """Latency in microseconds of a schedule of operators or units; measures stages whose latencies are not known."""
    stages = tuple(opened.units.stages(schedule))
    announce(opened.cost, [Question(stage, "again") for stage in stages])
    return sum(stage_latency_us(opened, stage) for stage in stages)


def stage_latency_us(opened: OpenModel, stage: Stage) -> float:
    """Latency in microseconds of a stage of units; if it cannot be merged on this device, of its groups side by side.

    A measured stage counts with its second measurement (`Remeasurable`). The first one is too low on average for the
    stages that a search chose by it, which would favour the schedule that was found with these latencies.
    """
    if opened.here is not None:
        return measured_stage_us(opened.here.cost, stage)
    return opened.cost.stage_latency_us(_runnable(opened, stage))


def stages_as_run(opened: OpenModel, schedule: Schedule) -> tuple[Stage, ...]:
    """The stages that a device which is not attached would run; they take `schedule_latency_us`."""
    return tuple(_runnable(opened, stage) for stage in opened.units.stages(schedule))


def _runnable(opened: OpenModel, stage: Stage) -> Stage:
    """The stage, or its groups side by side where it cannot be merged."""
    refusal = STAGE_RULES[stage.strategy].refusal(opened.graph, stage.operators)
    return stage if refusal is None else _side_by_side(stage)


def measured_share(opened: OpenModel, schedule: Schedule) -> float | None:
    """The part of `schedule_latency_us` that was measured elsewhere; None if nothing was, see `ImportedProfile`."""
    return opened.details.elsewhere.share(stages_as_run(opened, schedule), opened.cost.stage_latency_us)


def measured_stage_us(cost: Remeasurable, stage: Stage) -> float:
    """The second measurement of a stage in microseconds; if it cannot be merged here, of its groups side by side."""
    latency_us = cost.remeasure(stage)
    return cost.remeasure(_side_by_side(stage)) if math.isinf(latency_us) else latency_us


def _side_by_side(stage: Stage) -> Stage:
    return replace(stage, strategy=Strategy.CONCURRENT)
