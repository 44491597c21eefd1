"""Schedules as values: a list of stages for each block (thesis, chapter 3).

A `Schedule` says only what runs together; what was known when it was made (device, versions, search) stands beside it
in the schedule file, see `scheduler/document.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Scope = Literal["whole", "blocks"]
"""What a proof is about: the whole graph, or each block as it was cut."""


class Strategy(StrEnum):
    """How a stage runs."""

    CONCURRENT = "concurrent"  # groups side by side
    MERGE = "merge"  # operators of one type stacked into one
    SESSION = "session"  # one operator after another, each over all cores, by a library's own session


@dataclass(frozen=True)
class Division:
    """Which lanes of a device the groups of a stage run on.

    Groups that have a lane in common run one after another on it, in the order of the stage. A lane may have no group.

    Attributes:
        lanes: how many the device has; on a device with another number the division means nothing.
        groups: for each group of the stage its lanes, by number, in ascending order.
    """

    lanes: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Stage:
    """A set of operators run together.

    Groups are the weakly connected components of the stage; operators of a group stand in topological order, groups
    in the order of their first operators. A merge stage lists each merged operator as a group of its own.

    Without a `division` the device divides its lanes among the groups as it thinks best.
    """

    strategy: Strategy
    groups: tuple[tuple[str, ...], ...]
    predicted_us: float | None = None
    measured_us: float | None = None
    division: Division | None = None

    @property
    def operators(self) -> tuple[str, ...]:
        """The stage's operators, group by group."""
        return tuple(name for group in self.groups for name in group)

    def renamed(self, names: Mapping[str, str]) -> Stage:
        """The same stage of other operators, by the operators' names in this one."""
        return replace(self, groups=tuple(tuple(names[name] for name in group) for group in self.groups))

    @property
    def latency_us(self) -> float | None:
        """Measured where it was, else predicted, else None."""
        return self.predicted_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class Block:
    """A part of the graph that was scheduled on its own.

    `optimal` says that no other schedule of these operators alone takes less under the cost it was searched with.
    """

    index: int
    stages: tuple[Stage, ...]
    optimal: bool = False


@dataclass(frozen=True)
class Schedule:
    """Blocks run one after another; so do the stages of a block."""

    blocks: tuple[Block, ...]

    @property
    def stages(self) -> Iterator[Stage]:
        """All stages in the order in which they run."""
        return (stage for block in self.blocks for stage in block.stages)

    @property
    def predicted_us(self) -> float | None:
        """Sum of the stages' predicted latencies, or None where one is not known."""
        return sum_us(stage.predicted_us for stage in self.stages)


def total_us(stages: Iterable[Stage]) -> float | None:
    """Latency of stages run one after another, measured or predicted; None where one is not known."""
    return sum_us(stage.latency_us for stage in stages)


def sum_us(latencies_us: Iterable[float | None]) -> float | None:
    """The sum, or None where one of the latencies is not known."""
    total = 0.0
    for latency_us in latencies_us:
        if latency_us is None:
            return None
        total += latency_us
    return total


def structure_text(schedule: Schedule) -> str:
    """A text of strategies, groups and divisions, without latencies; equal for schedules that run alike."""
    return repr([_stage_text(stage) for stage in schedule.stages])


def _stage_text(stage: Stage) -> tuple[object, ...]:
    own = stage.division
    return (stage.strategy.value, stage.groups, *(() if own is None else (own.lanes, own.groups)))
