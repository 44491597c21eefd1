"""Opens a model on this CPU as its schedule file specifies: by its schedule, on onnxruntime, or on OpenVINO."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Literal, cast

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.runtime.cores import has_whole_machine, physical_cores
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.precision import precisions
from iosched.runtime.cpu.remarks import core_remarks, thread_remarks
from iosched.runtime.executor import By, Executor, Requests
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.document import ONNXRUNTIME, OPENVINO, ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.teams import Teams

if TYPE_CHECKING:
    from iosched.runtime.parallel_sessions import Library

_LARGEST_BASE = 1024

_BY_SCHEDULE = ("iosched", "sequential", "tensorrt", "serial", "packed", "batched", "mixed")
"""Values of `shipped` that run the schedule of the file, unless `ScheduleDocument.is_plain`."""


def is_by_schedule(document: ScheduleDocument | None) -> bool:
    """Whether our runtime runs the schedule of the file."""
    return document is not None and document.is_shipped and document.shipped in _BY_SCHEDULE


def shipped_executor(model: Model, document: ScheduleDocument | None, lanes: int) -> Executor:
    """Open `model` on `lanes` cores by its schedule, on plain onnxruntime, or on OpenVINO.

    If OpenVINO is missing or refuses the model, the fallback of the document runs, with a note. Plain onnxruntime also
    runs models without a schedule, and models for which no plan can be made.

    Raises:
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: onnxruntime is not installed.
    """
    if document is None:
        return _plain(model, ReferenceSettings("sequential", lanes))
    if (teams := document.teams_on(lanes)) is not None:
        return _in_teams(model, document, teams, lanes)
    if document.is_on_openvino:
        return _as_on_openvino(model, document, lanes)
    if document.is_plain:
        return _on_onnxruntime(model, document, lanes)
    return _as_shipped(model, document, document.shipped, lanes)


def _as_on_openvino(model: Model, document: ScheduleDocument, lanes: int) -> Executor:
    try:
        return _in_own_sessions(model, document, lanes, OPENVINO) or _on_openvino(model, lanes, document.precision)
    except DeviceError as error:
        notes = (_without_openvino(error),)
        if document.shipped != OPENVINO:
            return _on_onnxruntime(model, document, lanes, notes)
        return _as_shipped(model, document, document.shipped_without_openvino, lanes, notes)


def _on_onnxruntime(model: Model, document: ScheduleDocument, lanes: int, notes: tuple[str, ...] = ()) -> Executor:
    found = _in_own_sessions(model, document, lanes, ONNXRUNTIME, notes)
    return found or _as_shipped(model, document, "reference", lanes, notes)


def _in_own_sessions(
    model: Model, document: ScheduleDocument, lanes: int, library: Library, notes: tuple[str, ...] = ()
) -> Executor | None:
    """A session for each member of a composed model; None if the file requests none or the model is not composed."""
    known = document.runtime.get("sessions")
    if not isinstance(known, dict):
        return None
    concurrent, threads = (known.get(name) for name in ("lanes", "threads"))
    if not isinstance(concurrent, int) or not isinstance(threads, int):
        return None
    from iosched.models.composition.members import members_of
    from iosched.runtime.parallel_sessions import ParallelSessions, SessionsSettings

    members = members_of(model.proto)
    if not members:
        return None
    settings = SessionsSettings(min(max(concurrent, 1), lanes), min(max(threads, 1), lanes), library)
    remarks = (*notes, *thread_remarks(settings.lanes * settings.threads))
    return Executor(ParallelSessions(model, members, settings), settings.description, lambda: remarks, by="library")


def _as_shipped(
    model: Model, document: ScheduleDocument, shipped: str, lanes: int, notes: tuple[str, ...] = ()
) -> Executor:
    if shipped not in _BY_SCHEDULE:
        return _plain(model, reference_settings(document, lanes), notes)
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
    from iosched.runtime.openvino.openvino_model import OpenvinoModel

    notes: tuple[str, ...] = ()
    if precision not in precisions():
        notes = (f"This CPU has no {precision} instructions: the model runs in {DEFAULT_PRECISION}.",)
        precision = DEFAULT_PRECISION
    opened = OpenvinoModel(model, lanes, precision)
    suffix = "" if precision == DEFAULT_PRECISION else f", {precision}"
    description = f"OpenVINO {installed_version()}, {lanes} threads{suffix}"
    return Executor(opened, description, lambda: (*notes, *thread_remarks(lanes)), by="library")


def reference_settings(document: ScheduleDocument | None, lanes: int) -> ReferenceSettings:
    """The settings of plain onnxruntime that a schedule file names, with at most `lanes` threads."""
    known = None if document is None else document.runtime.get("reference")
    if not isinstance(known, dict):
        return ReferenceSettings("sequential", lanes)
    mode = known.get("mode")
    intra, inter = known.get("intra_threads"), known.get("inter_threads")
    if mode not in ("sequential", "parallel") or not isinstance(intra, int) or not isinstance(inter, int):
        return ReferenceSettings("sequential", lanes)
    known_mode = cast(Literal["sequential", "parallel"], mode)
    base = known.get("dynamic_block_base")
    is_same = has_whole_machine() and physical_cores() == intra <= lanes  # else onnxruntime chooses other threads
    return ReferenceSettings(
        known_mode,
        min(max(intra, 1), lanes),
        min(max(inter, 1), lanes),
        int(base) if isinstance(base, int) and 0 <= base <= _LARGEST_BASE else 0,
        known.get("binds_threads") is True and is_same,
    )


def _in_teams(model: Model, document: ScheduleDocument, teams: Teams, lanes: int) -> Executor:
    if document.shipped == "openvino":
        return _teams_on_openvino(model, teams, lanes)
    if document.shipped == "reference" or not _is_supported(model):
        return _teams_on_onnxruntime(model, teams, lanes)
    from iosched.runtime.cpu.team_model import TeamBackends, open_divided

    backends, cpus = TeamBackends(model, teams.lanes(lanes)), LaneCpus(lanes)

    def release() -> None:
        backends.close()
        cpus.close()

    requests = open_divided(backends, document.schedule, teams, cpus)
    description = f"iosched, {lanes} threads, {teams.text}"
    return Executor(requests, description, lambda: core_remarks(cpus), frees=release, in_flight=requests.in_flight)


def _is_supported(model: Model) -> bool:
    from iosched.runtime.cpu.backend import CpuBackend

    with closing(CpuBackend(model, lanes=1)) as backend:
        return backend.is_supported()


def _teams_on_onnxruntime(model: Model, teams: Teams, lanes: int, notes: tuple[str, ...] = ()) -> Executor:
    from iosched.runtime.divided_sessions import is_divided, open_shared

    by: By = "library" if is_divided(model, teams) else "reference"
    return _of_requests(
        open_shared(model, teams, lanes), f"onnxruntime, {lanes} threads, {teams.text}", lanes, by, notes
    )


def _teams_on_openvino(model: Model, teams: Teams, lanes: int) -> Executor:
    from iosched.runtime.openvino.openvino_model import open_requests

    try:
        requests = Requests(open_requests(model, lanes, teams.requests))
    except DeviceError as error:
        return _teams_on_onnxruntime(model, teams, lanes, (_without_openvino(error),))
    return _of_requests(requests, f"OpenVINO, {lanes} threads, {teams.text}", lanes, "library")


def _of_requests(requests: Requests, description: str, lanes: int, by: By, notes: tuple[str, ...] = ()) -> Executor:
    return Executor(
        requests, description, lambda: (*notes, *thread_remarks(lanes)), in_flight=requests.in_flight, by=by
    )


def _without_openvino(error: DeviceError) -> str:
    return f"Runs without OpenVINO: {error}"
