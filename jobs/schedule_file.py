"""The records of a schedule file: model, device, machine, versions and search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.jobs.provenance import provenance
from iosched.models.version import iosched_version
from iosched.runtime.inputs import DEFAULT_SEED
from iosched.scheduler import document_format as file
from iosched.scheduler.document import ScheduleDocument, model_dtype

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.profiler.devices.profiled_device import AttachedModel
    from iosched.runtime.device import Device
    from iosched.scheduler.pruning import Pruning
    from iosched.scheduler.schedule import Schedule
    from iosched.scheduler.search import SearchResult
    from iosched.scheduler.strategies import RecordedStrategy


def document_from(model: Model, device: Device, attached: AttachedModel | None, schedule: Schedule) -> ScheduleDocument:
    """A schedule file with model, device, machine and versions, without the search.

    If latencies are computed, it has no machine and is the same everywhere.

    Args:
        attached: the model that was open on the device, if that is attached.
    """
    return ScheduleDocument(
        model=model.name,
        sha256=model.digest,
        inputs=dict(model.bindings),
        dtype=model_dtype(model.graph),
        device={**device.info.design, "kind": device.info.kind, "name": device.info.name},
        schedule=schedule,
        cost=device.info.cost_kind,
        versions={"iosched": iosched_version(), **({} if attached is None else attached.measuring.versions)},
        structure=model.structure,
        provenance={} if device.info.cost_kind == "analytic" else provenance({"inputs": DEFAULT_SEED}).as_kept(),
    )


def search_record(
    strategy: RecordedStrategy, pruning: Pruning, found: SearchResult, attached: AttachedModel | None
) -> file.SearchRecord:
    """The search in a schedule file; `attached` is the open model on an attached device."""
    signatures = found.measured if attached is None else attached.cost.signatures
    counts = file.Counts(found.states, found.transitions, found.stages, signatures)
    return file.SearchRecord(strategy, file.Limits(pruning.r, pruning.s), counts)
