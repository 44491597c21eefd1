"""Opens what `run` runs: a schedule on this machine's cores, or plain onnxruntime where that is what was shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np

from iosched.jobs.fitting import fitted
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.cpu.candidates import Runnable
from iosched.profiler.devices.cuda.attached import attach
from iosched.profiler.devices.cuda.session_note import session_notes
from iosched.profiler.devices.resolve import attached_index, require_cpu
from iosched.runtime.cpu.backend import CpuBackend, cpu_count
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.cuda.gpu.exchange import DeviceArray
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION


@dataclass(frozen=True, eq=False)
class Executor:
    """A model that is ready to run, a line that says how it runs, and who is asked for `notes`."""

    runnable: Runnable
    backend: CpuBackend | None
    description: str
    remarks: Callable[[], Sequence[str]] = tuple

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is amiss; all is known after a run."""
        return tuple(self.remarks())

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; outputs by name."""
        return self.runnable.run(inputs)

    def run_on_device(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, DeviceArray]:
        """One run on arrays that lie on the GPU; see `CudaModel.run_on_device`.

        Raises:
            UsageError: this runs on the CPU, or an input is not what it should be.
        """
        if not isinstance(self.runnable, CudaModel):
            raise UsageError("this model runs on the CPU: arrays that lie on a GPU need device='cuda'")
        return self.runnable.run_on_device(inputs, stream=stream)

    def time(self, inputs: Mapping[str, np.ndarray], repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        return self.runnable.time(inputs, repeats)

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        self.runnable.close()
        if self.backend is not None:
            self.backend.close()


def runs_on_gpu(device: str, document: ScheduleDocument | None) -> bool:
    """Whether `open_executor` takes an attached GPU: where one is asked for, or a schedule was made on one."""
    made_on_gpu = document is not None and document.device.get("kind") == "cuda"
    return attached_index(device) is not None and (device != "auto" or made_on_gpu)


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
    if runs_on_gpu(device, document):
        return _open_on_gpu(model, document, attached_index(device) or 0)
    require_cpu(device)
    lanes = threads or cpu_count()
    if document is None or document.shipped == "reference":
        settings = _reference_settings(document, lanes)
        return Executor(Reference(model, settings), None, f"onnxruntime, {settings.description}")
    backend = CpuBackend(model, lanes=lanes)
    if not backend.is_supported():
        backend.close()
        settings = _reference_settings(None, lanes)
        return Executor(Reference(model, settings), None, f"onnxruntime, {settings.description}")
    kind = "compiled" if backend.is_native else "Python"
    return Executor(backend.compile(document.schedule), backend, f"iosched, {lanes} threads, {kind} executor")


def _open_on_gpu(model: Model, document: ScheduleDocument | None, index: int) -> Executor:
    gpu = attach(index)
    precision = DEFAULT_PRECISION if document is None else document.precision
    backend = gpu.backend(model, precision, gpu.plans_of(document))
    schedule = sequential(backend.graph) if document is None else document.schedule
    compiled = backend.compile(schedule, barriers=has_barriers(document))
    description = f"iosched, {gpu.name}, {precision}, {compiled.kernel_count} kernels"
    return Executor(compiled, None, description, lambda: (*backend.notes, *session_notes(compiled)))


def has_barriers(document: ScheduleDocument | None) -> bool:
    """Whether stages wait for one another on a GPU, as `optimize` found it better."""
    return document is None or document.runtime.get("barriers") != "none"


def _reference_settings(document: ScheduleDocument | None, lanes: int) -> ReferenceSettings:
    """The setting that `optimize` found best, as far as the file says so and this machine has the cores."""
    known = document.runtime.get("reference") if document is not None else None
    if not isinstance(known, dict):
        return ReferenceSettings("sequential", lanes)
    mode = known.get("mode")
    intra, inter = known.get("intra_threads"), known.get("inter_threads")
    if mode not in ("sequential", "parallel") or not isinstance(intra, int) or not isinstance(inter, int):
        return ReferenceSettings("sequential", lanes)
    known_mode = cast(Literal["sequential", "parallel"], mode)
    return ReferenceSettings(known_mode, min(max(intra, 1), lanes), min(max(inter, 1), lanes))
