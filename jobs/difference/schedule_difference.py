"""Compares two schedule files, whose schedules may be of different models and devices."""

from __future__ import annotations

from dataclasses import dataclass

from iosched.jobs.difference.conditions import unlike_places
from iosched.models.errors import InvalidScheduleError, MismatchError, UsageError
from iosched.models.model import Model
from iosched.scheduler.difference import ScheduleDifference, difference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import fitted


@dataclass(frozen=True)
class SchedulesDifference:
    """Differences of two schedule files.

    Attributes:
        before: the first one, in the names of the second one's model if that is known and has the same structure.
        found: how their schedules differ.
        remarks: notes on other differences.
    """

    before: ScheduleDocument
    after: ScheduleDocument
    found: ScheduleDifference
    remarks: tuple[str, ...]

    @property
    def failure(self) -> MismatchError | None:
        """The error to end with; None if the schedules are equal."""
        if self.found.equal:
            return None
        changed = len(self.found.operators)
        return MismatchError(f"the schedules differ: {changed} of {self.found.count} operators run differently")


def compare_schedules(
    before: tuple[ScheduleDocument, Model | None],
    after: tuple[ScheduleDocument, Model | None],
    *,
    anyway: bool = False,
) -> SchedulesDifference:
    """Compares two schedules by the names of their operators.

    Args:
        before: the first one, and its model if known.
        after: the second one, likewise. With a model of the same structure available, names need not be the same.
        anyway: whether to compare schedules of different models.

    Raises:
        UsageError: the schedules are of different models.
    """
    one, other = _in_one_language(before, after)
    if not _is_one_model(one, other) and not anyway:
        raise UsageError(
            f"the schedules are for different models ({before[0].model} and {after[0].model}) or input shapes:"
            " use --anyway to compare them"
        )
    return SchedulesDifference(one, other, difference(one.schedule, other.schedule), _remarks(one, other))


def _in_one_language(
    before: tuple[ScheduleDocument, Model | None], after: tuple[ScheduleDocument, Model | None]
) -> tuple[ScheduleDocument, ScheduleDocument]:
    """Both schedules with the operator names of one model, if either model is known and fits the other."""
    (one, first), (other, second) = before, after
    try:
        if second is not None:
            return fitted(one, second), fitted(other, second)
        if first is not None:
            return fitted(one, first), fitted(other, first)
    except InvalidScheduleError:
        pass  # another model or other shapes: the caller distinguishes them
    return one, other


def _is_one_model(one: ScheduleDocument, other: ScheduleDocument) -> bool:
    names = [{name for stage in each.schedule.stages for name in stage.operators} for each in (one, other)]
    is_alike = one.sha256 == other.sha256 or (one.structure is not None and one.structure == other.structure)
    return is_alike and dict(one.inputs) == dict(other.inputs) and bool(names[0] & names[1])


def _remarks(one: ScheduleDocument, other: ScheduleDocument) -> tuple[str, ...]:
    facts = (
        ("devices", one.device_name, other.device_name),
        ("precisions", one.precision, other.precision),
        ("objectives", one.objective, other.objective),
        ("kinds of latencies", one.cost, other.cost),
        ("shipped alternatives", one.shipped, other.shipped),
        ("teams", str(one.teams), str(other.teams)),
    )
    different = [f"Different {what}: {first} and {second}." for what, first, second in facts if first != second]
    return (*different, *(f"They are {text}." for text in unlike_places(one.provenance, other.provenance)))
