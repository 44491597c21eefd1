"""Schedules as values: a list of stages for each block (thesis, chapter 3).

A `Schedule` holds only what runs together; `scheduler/document.py` adds how it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Scope = Literal["whole", "blocks"]
"""The scope of a proof: the whole graph, or each block."""


class Strategy(StrEnum):
    """The way a stage runs."""

    CONCURRENT = "concurrent"  # groups side by side
    MERGE = "merge"  # operators of one type stacked into one
    SESSION = "session"  # one operator after another, each over all cores, by a library's own session
    LANES = "lanes"  # each group in its order on a lane, waiting for results of other groups


@dataclass(frozen=True)
class Division:
    """The lanes of a device that the groups of a stage run on.

    Groups that share a lane run one after another on it, in the order of the stage. Lanes of a group ascend, and a lane
    may have no group. A device with another number of `lanes` ignores the division.
    """

    lanes: int
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Stage:
    """A set of operators that run together.

    Groups are the weakly connected components of the stage; operators of a group are in topological order, groups in
    the order of their first operators. A merge stage lists each merged operator as a group. Groups of a stage of lanes
    may read each other's results, and their operators may be in any order that `start_order` accepts. Without a
    `division` the device divides its lanes itself.
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
        """The stage with renamed operators."""
        return replace(self, groups=tuple(tuple(names[name] for name in group) for group in self.groups))

    @property
    def latency_us(self) -> float | None:
        """Measured, else predicted, else None."""
        return self.predicted_us if self.measured_us is None else self.measured_us


@dataclass(frozen=True)
class Block:
    """A part of the graph that is scheduled independently.

    `optimal`: no other schedule of these operators takes less under the cost of the search.
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
        """Sum of the stages' predicted latencies, or None if one is unknown."""
        return sum_us(stage.predicted_us for stage in self.stages)


def total_us(stages: Iterable[Stage]) -> float | None:
    """Latency of consecutive stages, measured or predicted; None if one is unknown."""
    return sum_us(stage.latency_us for stage in stages)


def sum_us(latencies_us: Iterable[float | None]) -> float | None:
    """The sum, or None if one of the latencies is unknown."""
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
