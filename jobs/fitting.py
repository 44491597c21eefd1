"""Which schedule a model takes at its batch size, of those for several or of another model."""

from __future__ import annotations

from contextlib import suppress

from iosched.models.errors import InvalidScheduleError
from iosched.models.model import Model
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import fitted, rebatched


def for_batch(schedules: BatchSchedules, model: Model) -> tuple[ScheduleDocument, int]:
    """The schedule for the batch size that `model` is bound to, or that for the nearest one; and which size it is for.

    That for the nearest one is one of `model`: what runs together is the same, and no latency is known.

    Raises:
        InvalidScheduleError: the schedules were made for another structure, shape or type.
    """
    batch_size = schedules.batch_of(model.bindings)
    if batch_size is None:
        return _of_other_names(schedules, model)
    size = schedules.nearest(batch_size)
    document = schedules.by_size[size]
    if size == batch_size:
        return document, size
    return rebatched(document, model), size


def taken_over(source: ScheduleDocument | BatchSchedules, model: Model) -> ScheduleDocument:
    """The schedule of `source` for the batch size of `model`, or the nearest one, as a schedule of `model`.

    Raises:
        InvalidScheduleError: it was made for another structure, shape or type.
    """
    if isinstance(source, BatchSchedules):
        return fitted(for_batch(source, model)[0], model)
    try:
        return fitted(source, model)
    except InvalidScheduleError:
        return rebatched(source, model)


def _of_other_names(schedules: BatchSchedules, model: Model) -> tuple[ScheduleDocument, int]:
    """The schedule that fits a model whose inputs are called otherwise, or else the nearest one."""
    for size, document in schedules.by_size.items():
        with suppress(InvalidScheduleError):
            return fitted(document, model), size
    size = schedules.nearest(max(model.batch_size, 1))
    return rebatched(schedules.by_size[size], model), size
