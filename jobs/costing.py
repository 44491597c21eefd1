"""What any schedule of a model takes on a device, as the sum of its stages, also one made for another device."""

from __future__ import annotations

import math
from dataclasses import replace

from iosched.profiler.devices.device import OpenModel
from iosched.scheduler.cost import Remeasurable
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import STAGES


def schedule_latency_us(opened: OpenModel, schedule: Schedule) -> float:
    """Latency of `schedule`, of operators or of units, on this device; measures stages that are not known yet."""
    return sum(stage_latency_us(opened, stage) for stage in opened.units.stages(schedule))


def stage_latency_us(opened: OpenModel, stage: Stage) -> float:
    """Latency of a stage of units; side by side where its operators cannot run by its strategy here.

    A stage that is measured counts with a latency that no search has chosen it for (`Remeasurable`): the least of many
    noisy latencies is too low, which would favour the schedule that was searched with them.
    """
    if opened.here is not None:
        return measured_stage_us(opened.here.cost, stage)
    refusal = STAGES[stage.strategy].refusal(opened.graph, stage.operators)
    return opened.cost.stage_latency_us(stage if refusal is None else _side_by_side(stage))


def measured_stage_us(cost: Remeasurable, stage: Stage) -> float:
    """Latency of a stage, measured twice; side by side where it cannot be merged here."""
    latency_us = cost.remeasure(stage)
    return cost.remeasure(_side_by_side(stage)) if math.isinf(latency_us) else latency_us


def _side_by_side(stage: Stage) -> Stage:
    return replace(stage, strategy=Strategy.CONCURRENT)
