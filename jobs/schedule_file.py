"""Where a schedule file comes from: the part of it that does not depend on how its schedule was found."""

from __future__ import annotations

from iosched.jobs.provenance import provenance
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.devices.device import AttachedModel
from iosched.runtime.device import Device
from iosched.runtime.inputs import DEFAULT_SEED
from iosched.scheduler import document_format as file
from iosched.scheduler.document import ScheduleDocument, model_dtype
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import RecordedStrategy


def document_from(model: Model, device: Device, here: AttachedModel | None, schedule: Schedule) -> ScheduleDocument:
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
    strategy: RecordedStrategy, pruning: Pruning, found: SearchResult, here: AttachedModel | None
) -> file.SearchRecord:
    """What a schedule file says of a search; `here` is the model as it was open, if the device is at hand."""
    signatures = found.measured if here is None else here.cost.signatures
    counts = file.Counts(found.states, found.transitions, found.stages, signatures)
    return file.SearchRecord(strategy, file.Limits(pruning.r, pruning.s), counts)
