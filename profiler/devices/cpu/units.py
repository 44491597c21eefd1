"""The CPU's units: operators that onnxruntime fuses are scheduled as one unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from iosched.runtime.cpu.ownership import CoarseGraph
from iosched.runtime.cpu.units import unit_stages
from iosched.scheduler.schedule import Block, Schedule, Stage


@dataclass(frozen=True, eq=False)
class CpuUnits:
    """The units of a graph in which onnxruntime fused operators; see `Units`."""

    coarse: CoarseGraph

    def unit_of(self, operator: str) -> str:
        """The name of the unit that the operator is in."""
        return self._unit_of[operator]

    def members(self, unit: str) -> tuple[str, ...]:
        """The names of the operators of a unit."""
        return self.coarse.members[unit]

    def scheduled(self, schedule: Schedule) -> Schedule:
        """A schedule of operators as a schedule of units.

        A schedule of another device may separate operators of one unit; it then becomes a single block.
        """
        blocks = tuple(
            replace(block, stages=tuple(self._stage_of_units(stage) for stage in block.stages))
            for block in schedule.blocks
        )
        named = [name for block in blocks for stage in block.stages for name in stage.operators]
        if len(named) == len(set(named)):
            return Schedule(blocks)
        return Schedule((Block(0, tuple(self.stages(schedule)), optimal=False),))

    def expanded(self, schedule: Schedule) -> Schedule:
        """A schedule of units as a schedule of operators."""
        return Schedule(
            tuple(
                replace(block, stages=tuple(self._stage_of_operators(stage) for stage in block.stages))
                for block in schedule.blocks
            )
        )

    def stages(self, schedule: Schedule) -> Sequence[Stage]:
        """The stages of units that the CPU runs for a schedule, which may be one of operators or of units."""
        return tuple(unit_stages(self.coarse, schedule))

    @cached_property
    def _unit_of(self) -> dict[str, str]:
        return self.coarse.unit_of()

    def _stage_of_units(self, stage: Stage) -> Stage:
        groups = (tuple(dict.fromkeys(self._unit_of[name] for name in group)) for group in stage.groups)
        return replace(stage, groups=tuple(groups))

    def _stage_of_operators(self, stage: Stage) -> Stage:
        groups = (tuple(name for unit in group for name in self.coarse.members[unit]) for group in stage.groups)
        return replace(stage, groups=tuple(groups))
