"""What is said of the first operator that differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from iosched.scheduler.schedule import Schedule
from iosched.scheduler.strategies import runs_as_one

Cause = Literal["runtime", "model", "rounding"]


@dataclass(frozen=True)
class SchedulePosition:
    """Where an operator stands in a schedule.

    Attributes:
        block: the index of its block.
        stage: the number of its stage, counted from 0 over all blocks.
        group: the number of its group in the stage, from 0.
        strategy: how the stage runs.
        as_one_with: the operators that run as one with it.
    """

    block: int
    stage: int
    group: int
    strategy: str
    as_one_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstDifference:
    """The first operator whose results are further off than allowed, while what it reads is not.

    Attributes:
        operator: its name.
        type: its type.
        unseen: operators right before it that could not be looked at apart from it: it may as well be one of them.
        place: where it stands in the schedule; None if there is none.
        max_abs: the largest difference of its results from onnxruntime's; None if they cannot be compared, as where
            there is NaN.
        max_rel: the same relative to the scale of the tensor.
        inputs_max_rel: the same of all that it reads; None if that could not be looked at.
        reason: what is wrong with its results, for display.
        cause: what onnxruntime says of the operator alone, given just what it read: "runtime", it computes other
            values, so how the operator is run is wrong; "model", it does so with the original's operator alone, so the
            file differs from the original; "rounding", it computes the same, so small differences before it have added
            up. None if that could not be tried.
        vanishes: whether the outputs were right in a run that was looked into, as where memory is overwritten.
        is_complete: whether the search came to its end.
        looks: how often the model was run to look into it.
    """

    operator: str
    type: str
    unseen: tuple[str, ...]
    place: SchedulePosition | None
    max_abs: float | None
    max_rel: float | None
    inputs_max_rel: float | None
    reason: str
    cause: Cause | None
    vanishes: bool
    is_complete: bool
    looks: int


def position_of(schedule: Schedule | None, operator: str) -> SchedulePosition | None:
    """Where `operator` stands in `schedule`; None if it does not, or there is none."""
    number = 0
    for block in () if schedule is None else schedule.blocks:
        for stage in block.stages:
            for group, names in enumerate(stage.groups):
                if operator in names:
                    others = tuple(name for name in stage.operators if name != operator)
                    return SchedulePosition(
                        block.index, number, group, stage.strategy.value, others if runs_as_one(stage) else ()
                    )
            number += 1
    return None
