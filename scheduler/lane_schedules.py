"""Schedules whose stages name the lanes of their groups, as they were measured."""

from __future__ import annotations

from dataclasses import replace

from iosched.scheduler.cost import CostModel, Dividing
from iosched.scheduler.schedule import Schedule


def divided(schedule: Schedule, cost: CostModel) -> Schedule:
    """The schedule with the division of each stage that its latency is of, if the cost model chooses among several."""
    if not isinstance(cost, Dividing):
        return schedule
    blocks = (replace(block, stages=tuple(map(cost.divided, block.stages))) for block in schedule.blocks)
    return Schedule(tuple(blocks))
