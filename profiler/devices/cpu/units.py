"""Schedules in terms of the CPU's units, and back in terms of the model's own operators."""

from __future__ import annotations

from collections.abc import Iterator

from iosched.runtime.cpu.backend import unit_stages
from iosched.runtime.cpu.ownership import CoarseGraph
from iosched.scheduler.schedule import Block, Schedule, Stage


def unit_schedule(coarse: CoarseGraph, schedule: Schedule) -> Schedule:
    """The schedule in terms of the CPU's units; one block where it was made elsewhere and takes units apart."""
    unit_of = coarse.unit_of()
    blocks = tuple(
        Block(block.index, tuple(_in_units(unit_of, stage) for stage in block.stages), block.optimal)
        for block in schedule.blocks
    )
    named = [name for block in blocks for stage in block.stages for name in stage.operators]
    if len(named) == len(set(named)):
        return Schedule(blocks)
    stages = (Stage(strategy, tuple(map(tuple, groups))) for strategy, groups in unit_stages(coarse, schedule))
    return Schedule((Block(0, tuple(stages), optimal=False),))


def _in_units(unit_of: dict[str, str], stage: Stage) -> Stage:
    groups: Iterator[tuple[str, ...]] = (
        tuple(dict.fromkeys(unit_of[name] for name in group)) for group in stage.groups
    )
    return Stage(stage.strategy, tuple(groups), stage.predicted_us, stage.measured_us)


def expand(coarse: CoarseGraph, schedule: Schedule) -> Schedule:
    """The same schedule in terms of the model's own operators instead of the CPU's units."""
    return Schedule(
        tuple(
            Block(block.index, tuple(_expanded(coarse, stage) for stage in block.stages), block.optimal)
            for block in schedule.blocks
        )
    )


def _expanded(coarse: CoarseGraph, stage: Stage) -> Stage:
    groups = tuple(tuple(name for unit in group for name in coarse.members[unit]) for group in stage.groups)
    return Stage(stage.strategy, groups, stage.predicted_us, stage.measured_us)
