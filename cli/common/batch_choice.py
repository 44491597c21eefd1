"""Select a batch size in models and files that have schedules for several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from iosched.cli.common.options import Binding, batch_size_option
from iosched.cli.common.output import note
from iosched.models.errors import InvalidScheduleError, UsageError

if TYPE_CHECKING:
    from iosched.jobs.schedule_selection import SelectedSchedule
    from iosched.models.load import UnboundModel
    from iosched.models.model import Model
    from iosched.scheduler.batch_schedules import BatchSchedules
    from iosched.scheduler.document import ScheduleDocument

Shapes = Callable[[], Mapping[str, tuple[int, ...]]]
"""Reads the shapes of input files on demand."""

which_schedule_option = batch_size_option("Schedule to use in a file for several batch sizes. Default: the smallest.")
"""`--batch-size` of commands that read schedules."""

INSIDE = "the schedules inside the model"


def parse_schedules(data: bytes | str, place: str) -> ScheduleDocument | BatchSchedules:
    """Parse a schedule file of either version; errors name it `place`.

    Raises:
        InvalidScheduleError: the text is not a schedule.
    """
    from iosched.scheduler.batch_schedules import read_schedules

    try:
        return read_schedules(data if isinstance(data, str) else data.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidScheduleError(f"{place}: not a schedule: the file is not UTF-8 text") from None
    except InvalidScheduleError as error:
        raise InvalidScheduleError(f"{place}: {error}") from None


def schedules_inside(unbound: UnboundModel) -> BatchSchedules | None:
    """Schedules for several batch sizes in a model, or None.

    Raises:
        InvalidScheduleError: they are invalid.
    """
    from iosched.scheduler.document import ScheduleDocument

    if unbound.schedules_json is None:
        return None
    found = parse_schedules(unbound.schedules_json, INSIDE)
    if isinstance(found, ScheduleDocument):
        raise InvalidScheduleError(f"{INSIDE} are for one batch size; optimize the model again")
    return found


def bound(unbound: UnboundModel, binding: Binding, shapes: Shapes = dict) -> Model:
    """Bind the dimensions of a model by the options.

    A model with schedules for several batch sizes gets the batch size of its input files, else the smallest.

    Args:
        shapes: returns the shapes of input files.

    Raises:
        UsageError: the options do not fit the model.
        InvalidModelError: a dynamic dimension is unbound.
        InvalidScheduleError: the schedules that give the batch size are invalid.
    """
    if binding.input_shapes or unbound.schedules_json is None:
        return unbound.bound(batch_size=binding.batch_size, input_shapes=binding.input_shapes or None)
    schedules = schedules_inside(unbound)
    assert schedules is not None
    size = binding.batch_size or schedules.batch_of(shapes())
    if size is None:
        size = schedules.batch_sizes[0]
        note(f"{unbound.name} has schedules for {_sizes_text(schedules)}: using batch size {size}.")
    return unbound.bound(input_shapes=schedules.shapes_at(size))


def chosen_size(schedules: BatchSchedules, batch_size: int | None, place: str) -> int:
    """Batch size of the requested schedule; without a request the smallest, with a note.

    Raises:
        UsageError: there is no schedule for that batch size.
    """
    if batch_size is None:
        size = schedules.batch_sizes[0]
        if len(schedules.batch_sizes) > 1:
            note(f"{place} has schedules for {_sizes_text(schedules)}: using the one for {size} (--batch-size N).")
        return size
    if batch_size not in schedules.by_size:
        raise UsageError(f"{place} has no schedule for batch size {batch_size}, only for {_sizes_text(schedules)}")
    return batch_size


def chosen(found: ScheduleDocument | BatchSchedules, batch_size: int | None, place: str) -> ScheduleDocument:
    """The requested schedule; see `chosen_size`."""
    from iosched.scheduler.document import ScheduleDocument

    if not isinstance(found, ScheduleDocument):
        return found.by_size[chosen_size(found, batch_size, place)]
    if batch_size not in (None, found.batch_size):
        raise UsageError(f"{place} has a schedule for batch size {found.batch_size} only, not for {batch_size}")
    return found


def for_model(found: ScheduleDocument | BatchSchedules, model: Model) -> SelectedSchedule:
    """Schedule for the batch size of `model`; prints a note if it is one for another size.

    Raises:
        InvalidScheduleError: the schedules are for another model.
    """
    from iosched.jobs.schedule_selection import SelectedSchedule, for_batch
    from iosched.scheduler.document import ScheduleDocument

    if isinstance(found, ScheduleDocument):
        return SelectedSchedule(found, found.batch_size)
    taken = for_batch(found, model)
    if not taken.is_exact:
        here, size = found.batch_of(model.bindings) or model.batch_size, taken.batch_size
        note(f"There is no schedule for batch size {here}: using the one for {size}, the nearest.")
    return taken


def _sizes_text(schedules: BatchSchedules) -> str:
    return f"batch size{'s' * (len(schedules.by_size) > 1)} {', '.join(map(str, schedules.batch_sizes))}"
