"""Where a schedule file comes from: the part of it that does not depend on how its schedule was found."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iosched.jobs.provenance import provenance
from iosched.models.errors import InvalidScheduleError
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.runtime.device import Device
from iosched.runtime.inputs import DEFAULT_SEED
from iosched.scheduler import document_format as file
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.checks import model_dtype
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategy_names import RecordedStrategy
from iosched.scheduler.transfer import fitted, rebatched

if TYPE_CHECKING:  # running a model needs no profile database
    from iosched.profiler.devices.device import OpenModelHere


def document_from(model: Model, device: Device, here: OpenModelHere | None, schedule: Schedule) -> ScheduleDocument:
    """A schedule file that says of which model, device, machine and versions it is, and nothing of the search.

    One whose latencies are computed is the same on every machine, and says nothing of the one that it was made on.

    Args:
        model: that the schedule runs.
        device: for which it was found.
        here: the model as it was open there, if the device is at hand.
        schedule: what runs together.
    """
    return ScheduleDocument(
        model=model.name,
        sha256=model.digest,
        inputs=dict(model.bindings),
        dtype=model_dtype(model.graph),
        device={**device.info.design, "kind": device.info.kind, "name": device.info.name},
        schedule=schedule,
        cost=device.info.cost_kind,
        versions={"iosched": iosched_version(), **({} if here is None else here.measuring.versions)},
        structure=model.structure,
        provenance={} if device.info.cost_kind == "analytic" else provenance({"inputs": DEFAULT_SEED}).as_kept(),
    )


def search_record(
    strategy: RecordedStrategy, pruning: Pruning, found: SearchResult, here: OpenModelHere | None
) -> file.SearchRecord:
    """What a schedule file says of a search; `here` is the model as it was open, if the device is at hand."""
    signatures = found.measured if here is None else here.cost.signatures
    counts = file.Counts(found.states, found.transitions, found.stages, signatures)
    return file.SearchRecord(strategy, file.Limits(pruning.r, pruning.s), counts)


@dataclass(frozen=True)
class Taken:
    """The schedule that a model is run by.

    Attributes:
        document: the schedule, of that model.
        batch_size: the size that it was searched for.
        is_exact: whether the model has this batch size; otherwise it is the nearest that there is a schedule for.
    """

    document: ScheduleDocument
    batch_size: int
    is_exact: bool = True


def for_batch(schedules: BatchSchedules, model: Model) -> Taken:
    """The schedule for the batch size that `model` is bound to, or that for the nearest one.

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
        return Taken(document, size)
    return Taken(rebatched(document, model), size, is_exact=False)


def taken_over(source: ScheduleDocument | BatchSchedules, model: Model) -> ScheduleDocument:
    """The schedule of `source` for the batch size of `model`, or the nearest one, as a schedule of `model`.

    Raises:
        InvalidScheduleError: it was made for another structure, shape or type.
    """
    if isinstance(source, BatchSchedules):
        return fitted(for_batch(source, model).document, model)
    try:
        return fitted(source, model)
    except InvalidScheduleError:
        return rebatched(source, model)


def _of_other_names(schedules: BatchSchedules, model: Model) -> Taken:
    """The schedule that fits a model whose inputs are called otherwise, or else the nearest one."""
    for size, document in schedules.by_size.items():
        with suppress(InvalidScheduleError):
            return Taken(fitted(document, model), size)
    size = schedules.nearest(max(model.batch_size, 1))
    return Taken(rebatched(schedules.by_size[size], model), size, is_exact=False)
