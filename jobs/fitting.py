"""Translates a schedule to a model of the same structure, or to the same model at another batch size."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from iosched.models.errors import InvalidScheduleError
from iosched.models.model import Model
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import rebatched, transferred


def fitted(document: ScheduleDocument, model: Model) -> ScheduleDocument:
    """`document` as a schedule of `model`, which may have other weights and names than the model that it was made for.

    Raises:
        InvalidScheduleError: `document` was made for another structure, shape or type; the text says which operator
            differs, and how.
    """
    found = transferred(document, model.graph, model.digest, model.bindings, lambda: model.structure)
    return found if found is document else replace(found, model=model.name)


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
    return _at_its_batch(document, model), size


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
        return _at_its_batch(source, model)


def _at_its_batch(document: ScheduleDocument, model: Model) -> ScheduleDocument:
    found = rebatched(document, model.graph, model.digest, model.bindings, lambda: model.structure)
    return replace(found, model=model.name)


def _of_other_names(schedules: BatchSchedules, model: Model) -> tuple[ScheduleDocument, int]:
    """The schedule that fits a model whose inputs are called otherwise, or else the nearest one."""
    for size, document in schedules.by_size.items():
        with suppress(InvalidScheduleError):
            return fitted(document, model), size
    size = schedules.nearest(max(model.batch_size, 1))
    return _at_its_batch(schedules.by_size[size], model), size
