"""Makes a model ready to run on this CPU in the way that its schedule file says is the fastest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.runtime.cores import has_whole_machine, physical_cores
from iosched.runtime.cpu.precision import precisions
from iosched.runtime.cpu.remarks import core_remarks, thread_remarks
from iosched.runtime.executor import Executor
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.document import ONNXRUNTIME, OPENVINO, ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION

if TYPE_CHECKING:
    from iosched.runtime.parallel_sessions import Library

_LARGEST_BASE = 1024

_BY_SCHEDULE = ("iosched", "sequential", "serial", "packed", "batched", "mixed")
"""What may ship that runs by the schedule in the file, unless that says otherwise (`ScheduleDocument.is_plain`)."""


def shipped_executor(model: Model, document: ScheduleDocument | None, lanes: int) -> Executor:
    """The model on plain onnxruntime, on OpenVINO, or by its schedule, on so many cores.

    Where it was shipped to run on OpenVINO, and that is missing or refuses the model, the model runs as it would have
    been shipped without, and `Executor.notes` says so. Of several models in one file each may run in a session of its
    own; where OpenVINO is missing, in one of onnxruntime. Plain onnxruntime runs a model without a schedule, and one
    that no plan can be made for.

    Raises:
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: onnxruntime is not installed.
    """
    if document is None:
        return _plain(model, ReferenceSettings("sequential", lanes))
    if (teams := document.teams_on(lanes)) is not None:
        from iosched.runtime.cpu.shipped_teams import in_teams

        return in_teams(model, document, teams, lanes)
    if document.is_on_openvino:
        return _as_on_openvino(model, document, lanes)
    if document.is_plain:
        return _on_onnxruntime(model, document, lanes)
    return _as_shipped(model, document, document.shipped, lanes)


def _as_on_openvino(model: Model, document: ScheduleDocument, lanes: int) -> Executor:
    try:
        return _apart(model, document, lanes, OPENVINO) or _on_openvino(model, lanes, document.precision)
    except DeviceError as error:
        notes = (f"Not run on OpenVINO as it was shipped: {error}",)
        if document.shipped != OPENVINO:
            return _on_onnxruntime(model, document, lanes, notes)
        return _as_shipped(model, document, document.shipped_without_openvino, lanes, notes)


def _on_onnxruntime(model: Model, document: ScheduleDocument, lanes: int, notes: tuple[str, ...] = ()) -> Executor:
    found = _apart(model, document, lanes, ONNXRUNTIME, notes)
    return found or _as_shipped(model, document, "reference", lanes, notes)


def _apart(
    model: Model, document: ScheduleDocument, lanes: int, library: Library, notes: tuple[str, ...] = ()
) -> Executor | None:
    """The models in sessions of their own; None where the file does not ask for it, or the model is not composed."""
    known = document.runtime.get("sessions")
    if not isinstance(known, dict):
        return None
    side_by_side, threads = (known.get(name) for name in ("lanes", "threads"))
    if not isinstance(side_by_side, int) or not isinstance(threads, int):
        return None
    from iosched.models.composition.members import members_of
    from iosched.runtime.parallel_sessions import SessionsSettings, SideBySide

    members = members_of(model.proto)
    if not members:
        return None
    settings = SessionsSettings(min(max(side_by_side, 1), lanes), min(max(threads, 1), lanes), library)
    remarks = (*notes, *thread_remarks(settings.lanes * settings.threads))
    return Executor(SideBySide(model, members, settings), settings.description, lambda: remarks, by="library")


def _as_shipped(
    model: Model, document: ScheduleDocument, shipped: str, lanes: int, notes: tuple[str, ...] = ()
) -> Executor:
    if shipped not in _BY_SCHEDULE:
        return _plain(model, _reference_settings(document, lanes), notes)
    from iosched.runtime.cpu.backend import CpuBackend

    backend = CpuBackend(model, lanes=lanes, units=document.units)
    if not backend.is_supported():
        backend.close()
        return _plain(model, ReferenceSettings("sequential", lanes), notes)
    kind = "compiled" if backend.is_native else "Python"
    description = f"iosched, {lanes} threads, {kind} executor"
    compiled = backend.compile(document.schedule)
    return Executor(
        compiled,
        description,
        lambda: (*notes, *core_remarks(backend.cpus)),
        frees=backend.close,
        traced=compiled.trace,
    )


def _plain(model: Model, settings: ReferenceSettings, notes: tuple[str, ...] = ()) -> Executor:
    remarks = thread_remarks(max(settings.intra_threads, settings.inter_threads))
    description = f"onnxruntime, {settings.description}"
    return Executor(Reference(model, settings), description, lambda: (*notes, *remarks), by="reference")


def _on_openvino(model: Model, lanes: int, precision: str) -> Executor:
    from iosched.runtime.openvino.library import installed_version
    from iosched.runtime.openvino.model import OpenvinoModel

    notes: tuple[str, ...] = ()
    if precision not in precisions():
        notes = (f"This CPU has no instructions for {precision}: the model runs in {DEFAULT_PRECISION}.",)
        precision = DEFAULT_PRECISION
    opened = OpenvinoModel(model, lanes, precision)
    words = "" if precision == DEFAULT_PRECISION else f", {precision}"
    description = f"OpenVINO {installed_version()}, {lanes} threads{words}"
    return Executor(opened, description, lambda: (*notes, *thread_remarks(lanes)), by="library")


def _reference_settings(document: ScheduleDocument, lanes: int) -> ReferenceSettings:
    """The setting that `optimize` found best, if the file says so, with no more threads than `lanes`."""
    known = document.runtime.get("reference")
    if not isinstance(known, dict):
        return ReferenceSettings("sequential", lanes)
    mode = known.get("mode")
    intra, inter = known.get("intra_threads"), known.get("inter_threads")
    if mode not in ("sequential", "parallel") or not isinstance(intra, int) or not isinstance(inter, int):
        return ReferenceSettings("sequential", lanes)
    known_mode = cast(Literal["sequential", "parallel"], mode)
    base = known.get("dynamic_block_base")
    is_same = has_whole_machine() and physical_cores() == intra <= lanes  # else onnxruntime would take other threads
    return ReferenceSettings(
        known_mode,
        min(max(intra, 1), lanes),
        min(max(inter, 1), lanes),
        int(base) if isinstance(base, int) and 0 <= base <= _LARGEST_BASE else 0,
        known.get("binds_threads") is True and is_same,
    )
