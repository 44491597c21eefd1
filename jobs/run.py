"""Opens what `run` runs: a schedule on a device, or plain onnxruntime where that is what was shipped."""

from __future__ import annotations

from iosched.jobs.fitting import fitted
from iosched.models.model import Model
from iosched.profiler.devices.device import Executor
from iosched.profiler.devices.resolve import runner
from iosched.scheduler.document import ScheduleDocument

__all__ = ["Executor", "open_executor"]


def open_executor(
    model: Model, document: ScheduleDocument | None, *, device: str = "auto", threads: int | None = None
) -> Executor:
    """Opens `model` under `document`; without one, or where it says so, on plain onnxruntime.

    The schedule may be one of another model of the same structure. On a GPU that was asked for, a model without a
    schedule runs one operator after another.

    Raises:
        InvalidScheduleError: the schedule is one of another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
    """
    document = None if document is None else fitted(document, model)
    return runner(device, document).executor(model, document, threads)
