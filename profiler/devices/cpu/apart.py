"""Runs the models of a composed one in a session of a library each, where that is what was shipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from iosched.models.composition.members import members_of
from iosched.models.model import Model
from iosched.profiler.devices.cpu.remarks import thread_remarks
from iosched.runtime.executor import Executor
from iosched.scheduler.document import ScheduleDocument

if TYPE_CHECKING:
    from iosched.runtime.side_by_side import Library


def apart_executor(
    model: Model, document: ScheduleDocument, lanes: int, library: Library, notes: tuple[str, ...] = ()
) -> Executor | None:
    """The models in sessions of their own; None where the file does not ask for it, or the model is not composed.

    Raises:
        InvalidModelError: onnxruntime refuses a model.
        DeviceError: the library is not installed, or OpenVINO refuses a model.
    """
    known, members = document.runtime.get("sessions"), members_of(model.proto)
    if not isinstance(known, dict) or not members:
        return None
    side_by_side, threads = (known.get(name) for name in ("lanes", "threads"))
    if not isinstance(side_by_side, int) or not isinstance(threads, int):
        return None
    from iosched.runtime.side_by_side import SessionsSettings, SideBySide

    settings = SessionsSettings(min(max(side_by_side, 1), lanes), min(max(threads, 1), lanes), library)
    remarks = (*notes, *thread_remarks(settings.lanes * settings.threads))
    return Executor(SideBySide(model, members, settings), settings.description, lambda: remarks, by="library")
