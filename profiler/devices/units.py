"""Translates schedules of a model's operators to schedules of a device's units, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iosched.scheduler.schedule import Schedule, Stage


class Units(Protocol):
    """The units of a device: a unit is one operator, or several that the device's kernels compute together."""

    def unit_of(self, operator: str) -> str:
        """The name of the unit that the operator is in."""
        ...

    def members(self, unit: str) -> tuple[str, ...]:
        """The names of the operators of a unit."""
        ...

    def scheduled(self, schedule: Schedule) -> Schedule:
        """A schedule of operators as a schedule of units.

        A schedule of another device may separate operators of one unit; it then becomes a single block.
        """
        ...

    def expanded(self, schedule: Schedule) -> Schedule:
        """A schedule of units as a schedule of operators."""
        ...

    def stages(self, schedule: Schedule) -> Sequence[Stage]:
        """The stages of units that the device runs for a schedule, which may be one of operators or of units."""
        ...


class OperatorUnits:
    """The units of a device on which every operator is a unit of its own; see `Units`."""

    def unit_of(self, operator: str) -> str:
        """The operator's own name."""
        return operator

    def members(self, unit: str) -> tuple[str, ...]:
        """The unit's only operator, which has its name."""
        return (unit,)

    def scheduled(self, schedule: Schedule) -> Schedule:
        """The same schedule."""
        return schedule

    def expanded(self, schedule: Schedule) -> Schedule:
        """The same schedule."""
        return schedule

    def stages(self, schedule: Schedule) -> Sequence[Stage]:
        """The schedule's own stages."""
        return tuple(schedule.stages)
