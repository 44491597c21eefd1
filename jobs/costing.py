"""What any schedule of a model takes on a device, as the sum of its stages, also one made for another device."""

from __future__ import annotations

import math
from dataclasses import replace

from iosched.profiler.devices.analytic import AnalyticCost
from iosched.profiler.devices.cpu.cost import StageCost
from iosched.profiler.devices.cuda.cost import CudaStageCost
from iosched.runtime.cpu.backend import unit_stages
from iosched.scheduler.cost import Remeasurable
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import STAGES


def analytic_latency_us(cost: AnalyticCost, schedule: Schedule) -> float:
    """Latency of `schedule` under the analytic model; O(operators)."""
    return sum(analytic_stage_us(cost, stage) for stage in schedule.stages)


def analytic_stage_us(cost: AnalyticCost, stage: Stage) -> float:
    """Latency of a stage under the analytic model; side by side where its operators cannot run by its strategy.

    The CPU merges units of several operators.
    """
    refusal = STAGES[stage.strategy].refusal(cost.graph, stage.operators)
    return cost.stage_latency_us(stage if refusal is None else replace(stage, strategy=Strategy.CONCURRENT))


def measured_latency_us(cost: StageCost, schedule: Schedule) -> float:
    """Latency of `schedule`, whose stages name operators or units, on this CPU; measures stages not yet known.

    Every stage counts with a latency that no search has chosen it for (`StageCost.remeasure`): the least of many noisy
    latencies is too low, which would favour the schedule that was searched with them.
    """
    stages = unit_stages(cost.backend.coarse, schedule)
    return sum(measured_stage_us(cost, Stage(strategy, tuple(map(tuple, groups)))) for strategy, groups in stages)


def gpu_latency_us(cost: CudaStageCost, schedule: Schedule) -> float:
    """Latency of `schedule` on an attached GPU, as `measured_latency_us` tells the CPU's."""
    return sum(measured_stage_us(cost, stage) for stage in schedule.stages)


def measured_stage_us(cost: Remeasurable, stage: Stage) -> float:
    """Latency of a stage, measured twice (`measured_latency_us`); side by side where it cannot be merged here."""
    latency_us = cost.remeasure(stage)
    return cost.remeasure(replace(stage, strategy=Strategy.CONCURRENT)) if math.isinf(latency_us) else latency_us
