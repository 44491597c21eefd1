"""The schedule that a model runs by at its batch size: one of several, or one of another model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from iosched.models.errors import InvalidScheduleError
from iosched.models.model import Model
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import fitted, rebatched


@dataclass(frozen=True)
class SelectedSchedule:
    """The schedule that a model is run by.

    Attributes:
        document: the schedule, of that model.
        batch_size: the size that it was searched for.
        is_exact: whether the model has this batch size, not just a near one.
    """

    document: ScheduleDocument
    batch_size: int
    is_exact: bool = True


def for_batch(schedules: BatchSchedules, model: Model) -> SelectedSchedule:
    """The schedule for the batch size that `model` is bound to, or that for the nearest one.

    The nearest one's stages are kept, without latencies.
    """
    batch_size = schedules.batch_of(model.bindings)
    if batch_size is None:
        return _of_other_names(schedules, model)
    size = schedules.nearest(batch_size)
    document = schedules.by_size[size]
    if size == batch_size:
        return SelectedSchedule(document, size)
    return SelectedSchedule(rebatched(document, model), size, is_exact=False)


def taken_over(source: ScheduleDocument | BatchSchedules, model: Model) -> ScheduleDocument:
    """The schedule of `source` for the batch size of `model`, or the nearest one, as a schedule of `model`."""
    if isinstance(source, BatchSchedules):
        return fitted(for_batch(source, model).document, model)
    try:
        return fitted(source, model)
    except InvalidScheduleError:
        return rebatched(source, model)


def _of_other_names(schedules: BatchSchedules, model: Model) -> SelectedSchedule:
    """The schedule that fits a model with other input names, or else the nearest one."""
    for size, document in schedules.by_size.items():
        with suppress(InvalidScheduleError):
            return SelectedSchedule(fitted(document, model), size)
    size = schedules.nearest(max(model.batch_size, 1))
    return SelectedSchedule(rebatched(schedules.by_size[size], model), size, is_exact=False)
