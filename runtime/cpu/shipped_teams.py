"""Makes a model ready to run on this CPU in teams of cores, or for several requests at a time."""

from __future__ import annotations

from contextlib import closing

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.remarks import core_remarks, thread_remarks
from iosched.runtime.cpu.team_model import TeamBackends, open_divided
from iosched.runtime.divided_sessions import is_divided, open_shared
from iosched.runtime.executor import By, Executor
from iosched.runtime.openvino.model import open_requests
from iosched.runtime.requests import Requests
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.teams import Teams


def in_teams(model: Model, document: ScheduleDocument, fitted: Teams, lanes: int) -> Executor:
    """The model on onnxruntime, on OpenVINO, or by its schedule, with `lanes` cores divided into teams.

    Args:
        fitted: the teams of the file on so many cores, see `ScheduleDocument.teams_on`.

    Raises:
        UsageError: the model does not compute the images of its batch apart.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: onnxruntime is not installed.
    """
    if document.shipped == "openvino":
        return _on_openvino(model, fitted, lanes)
    if document.shipped == "reference" or not _is_supported(model):
        return _on_onnxruntime(model, fitted, lanes)
    backends, cpus = TeamBackends(model, fitted.lanes(lanes)), LaneCpus(lanes)

    def frees() -> None:
        backends.close()
        cpus.close()

    found = open_divided(backends, document.schedule, fitted, cpus)
    text = f"iosched, {lanes} threads, {fitted.text}"
    return Executor(found, text, lambda: core_remarks(cpus), frees=frees, in_flight=found.in_flight)


def _is_supported(model: Model) -> bool:
    with closing(CpuBackend(model, lanes=1)) as backend:
        return backend.is_supported()


def _on_onnxruntime(model: Model, teams: Teams, lanes: int, notes: tuple[str, ...] = ()) -> Executor:
    by: By = "library" if is_divided(model, teams) else "reference"
    return _executor(open_shared(model, teams, lanes), f"onnxruntime, {lanes} threads, {teams.text}", lanes, by, notes)


def _on_openvino(model: Model, teams: Teams, lanes: int) -> Executor:
    try:
        found = Requests(open_requests(model, lanes, teams.requests))
    except DeviceError as error:
        return _on_onnxruntime(model, teams, lanes, (f"Not run on OpenVINO as it was shipped: {error}",))
    return _executor(found, f"OpenVINO, {lanes} threads, {teams.text}", lanes, "library")


def _executor(found: Requests, text: str, lanes: int, by: By, notes: tuple[str, ...] = ()) -> Executor:
    return Executor(found, text, lambda: (*notes, *thread_remarks(lanes)), in_flight=found.in_flight, by=by)
