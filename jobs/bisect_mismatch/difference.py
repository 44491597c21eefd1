"""The first operator that differs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from iosched.scheduler.schedule import Schedule
from iosched.scheduler.strategies import runs_as_one

Cause = Literal["runtime", "model", "rounding"]


@dataclass(frozen=True)
class SchedulePosition:
    """The position of an operator in a schedule.

    Attributes:
        stage: the number of its stage, counted from 0 over all blocks.
        group: the number of its group in the stage, from 0.
        as_one_with: the operators that run as one with it.
    """

    block: int
    stage: int
    group: int
    strategy: str
    as_one_with: tuple[str, ...] = ()


@dataclass(frozen=True)
class FirstDifference:
    """The first operator whose results exceed the tolerance while its inputs do not.

    Attributes:
        unseen: operators right before it that could not be inspected separately: it may be one of them.
        place: its position in the schedule; None if there is none.
        max_abs: the largest difference of its results from onnxruntime's; None if they cannot be compared, for example
            with NaN.
        max_rel: the same relative to the scale of the tensor.
        inputs_max_rel: the same of all that it reads; None if that could not be looked at.
        reason: the difference, for display.
        cause: from onnxruntime's results for the same operator inputs. "runtime": they differ, so the operator runs
            wrongly; "model": only those of the original's operator differ, so the file differs; "rounding": they are
            equal, so small differences accumulated. None if that could not be tried.
        vanishes: whether outputs were correct in an inspecting run, for example if memory is overwritten.
        is_complete: whether the search finished.
        looks: the number of inspecting runs.
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
    """The position of `operator` in `schedule`, if any."""
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
