"""What a device has to spare in the stages of a schedule, and what could be added there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Stage
from iosched.scheduler.teams import Teams

ChangeKind = Literal["width", "kernel", "branch"]


@dataclass(frozen=True)
class Ratio:
    """How many times as long a stage takes with a change as without it.

    Attributes:
        value: the median of what was measured in turn, or what the model says.
        low, high: the ends of its interval: of 95 % where it was measured, else of `uncertainty.LEVEL`.
        is_free: whether the change costs nothing as far as this tells, see `headroom.ratios`.
    """

    value: float
    low: float
    high: float
    is_free: bool


@dataclass(frozen=True)
class Change:
    """Something more in a stage.

    Attributes:
        kind: more channels of an operator, a larger kernel, or a copy of a group beside the others.
        operator: the operator; of a group that is copied, its first one.
        now: the channels, the extents of the kernel, or how many groups there are.
        to: likewise, with the change: the most that is free of what was tried, or else the least that is not.
        ratio: what that takes.
        tried: how many values were tried.
        readers: of a wider operator, the operators of later stages that read its new channels, and have more to do
            there; that is not counted.
    """

    kind: ChangeKind
    operator: str
    now: tuple[int, ...]
    to: tuple[int, ...]
    ratio: Ratio
    tried: int
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class StageCapacity:
    """What a stage leaves idle, and what could be added to it.

    Attributes:
        block: the number of its block.
        index: its number in the block.
        stage: the stage, of operators of the model.
        latency_us: what it takes; None where that is not known.
        idle: the part of the cores' or the SMs' time that it leaves idle, from 0 to 1; None where that is not known.
        changes: what was tried; empty where `why` says why nothing was.
        apart_us: what it takes apart from the model, which its changes are compared with; None where that is not known.
        why: why nothing was tried.
    """

    block: int
    index: int
    stage: Stage
    latency_us: float | None
    idle: float | None
    changes: tuple[Change, ...] = ()
    apart_us: float | None = None
    why: str | None = None

    @property
    def idle_us(self) -> float:
        """For how long the whole device would be idle, if all that is left idle were left at once; 0 if not known."""
        return (self.idle or 0.0) * (self.latency_us or 0.0)


@dataclass(frozen=True)
class Capacity:
    """What a device has to spare in a schedule.

    Attributes:
        document: the schedule, as one of the model that was given.
        device_name: the device that the schedule is for.
        cost: "measured" or "analytic".
        lanes: how many cores run a stage; None on a GPU.
        teams: the teams that run the schedule; all is then said of one of them. None where all cores run it together.
        channel_block: how many channels kernels compute at once.
        stages: in the order in which they run.
        measurements: how many stages were measured, changed ones included.
        why: why nothing can be said of any stage; None if something can.
    """

    document: ScheduleDocument
    device_name: str
    cost: str
    lanes: int | None
    teams: Teams | None
    channel_block: int
    stages: Sequence[StageCapacity]
    measurements: int = 0
    why: str | None = None
