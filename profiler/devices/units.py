"""Schedules in terms of a device's units, and in terms of the model's own operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from iosched.scheduler.schedule import Schedule, Stage


class Units(Protocol):
    """What a device runs as one: single operators, or several that its kernels do together."""

    def unit_of(self, operator: str) -> str:
        """The unit that the operator is in."""
        ...

    def members(self, unit: str) -> tuple[str, ...]:
        """The operators of a unit."""
        ...

    def scheduled(self, schedule: Schedule) -> Schedule:
        """A schedule of operators as one of units; one block where it was made elsewhere and takes units apart."""
        ...

    def expanded(self, schedule: Schedule) -> Schedule:
        """A schedule of units as one of operators."""
        ...

    def stages(self, schedule: Schedule) -> Sequence[Stage]:
        """The stages that any schedule, of operators or of units, comes to on this device."""
        ...


class OperatorUnits:
    """Every operator is a unit."""

    def unit_of(self, operator: str) -> str:
        """The operator."""
        return operator

    def members(self, unit: str) -> tuple[str, ...]:
        """The operator alone."""
        return (unit,)

    def scheduled(self, schedule: Schedule) -> Schedule:
        """The schedule as it is."""
        return schedule

    def expanded(self, schedule: Schedule) -> Schedule:
        """The schedule as it is."""
        return schedule

    def stages(self, schedule: Schedule) -> Sequence[Stage]:
        """The schedule's own stages."""
        return tuple(schedule.stages)
