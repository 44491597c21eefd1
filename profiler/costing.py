"""What any schedule of a model takes on a device, as the sum of its stages, also one made for another device."""

from __future__ import annotations

import math
from dataclasses import replace

from iosched.profiler.analytic import AnalyticCost
from iosched.profiler.cpu_cost import StageCost
from iosched.runtime.cpu.backend import unit_stages
from iosched.scheduler.merge import can_merge
from iosched.scheduler.schedule import Schedule, Stage, Strategy


def analytic_latency_us(cost: AnalyticCost, schedule: Schedule) -> float:
    """Latency of `schedule` under the analytic model; O(operators)."""
    return sum(cost.stage_latency_us(_runnable(cost, stage)) for stage in schedule.stages)


def _runnable(cost: AnalyticCost, stage: Stage) -> Stage:
    """What the CPU merges may be more than convolutions: it merges units of several operators."""
    merges = stage.strategy is Strategy.MERGE and not can_merge(cost.graph, stage.operators)
    return replace(stage, strategy=Strategy.CONCURRENT) if merges else stage


def measured_latency_us(cost: StageCost, schedule: Schedule) -> float:
    """Latency of `schedule`, whose stages name operators or units, on this CPU; measures stages not yet known.

    Every stage counts with a latency that no search has chosen it for (`StageCost.remeasure`): the least of many noisy
    latencies is too low, which would favour the schedule that was searched with them.
    """
    total_us = 0.0
    for strategy, groups in unit_stages(cost.backend.coarse, schedule):
        stage = Stage(strategy, tuple(map(tuple, groups)))
        latency_us = cost.remeasure(stage)
        if math.isinf(latency_us):  # cannot be merged here, and is then run side by side
            latency_us = cost.remeasure(replace(stage, strategy=Strategy.CONCURRENT))
        total_us += latency_us
    return total_us
