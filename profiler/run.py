"""Opens what `run` runs: a schedule on this machine's cores, or plain onnxruntime where that is what was shipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from iosched.models.model import Model
from iosched.profiler.candidates import Runnable
from iosched.profiler.cuda_device import KnownPlans, attach
from iosched.profiler.target import attached_index, require_cpu
from iosched.runtime.cpu.backend import CpuBackend, cpu_count
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.scheduler.document import ScheduleDocument


@dataclass(frozen=True, eq=False)
class Executor:
    """A model that is ready to run, and a line that says how it runs."""

    runnable: Runnable
    backend: CpuBackend | None
    description: str

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One run; outputs by name."""
        return self.runnable.run(inputs)

    def time(self, inputs: Mapping[str, np.ndarray], repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        return self.runnable.time(inputs, repeats)

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        self.runnable.close()
        if self.backend is not None:
            self.backend.close()


def open_executor(
    model: Model, document: ScheduleDocument | None, *, device: str = "auto", threads: int | None = None
) -> Executor:
    """Opens `model` under `document`; without one, or where it says so, on plain onnxruntime.

    Raises:
        InvalidScheduleError: the schedule is one of another model, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
    """
    index = attached_index(device)
    if index is not None and document is not None and (device != "auto" or document.device.get("kind") == "cuda"):
        return _open_on_gpu(model, document, index)
    require_cpu(device)
    lanes = threads or cpu_count()
    if document is None or document.shipped == "reference":
        if document is not None:
            document.validate_for(model.graph, model.digest, model.bindings)
        settings = _reference_settings(document, lanes)
        return Executor(Reference(model, settings), None, f"onnxruntime, {settings.description}")
    document.validate_for(model.graph, model.digest, model.bindings)
    backend = CpuBackend(model, lanes=lanes)
    if not backend.is_supported():
        backend.close()
        settings = _reference_settings(None, lanes)
        return Executor(Reference(model, settings), None, f"onnxruntime, {settings.description}")
    kind = "compiled" if backend.is_native else "Python"
    return Executor(backend.compile(document.schedule), backend, f"iosched, {lanes} threads, {kind} executor")


def _open_on_gpu(model: Model, document: ScheduleDocument, index: int) -> Executor:
    document.validate_for(model.graph, model.digest, model.bindings)
    plans = document.runtime.get("cudnn_plans")
    known = {key: str(value) for key, value in plans.items()} if isinstance(plans, dict) else {}
    gpu = attach(index)
    if document.device.get("name") != gpu.name or document.versions.get("cudnn") != gpu.versions["cudnn"]:
        known = {}
    precision = str(document.runtime.get("precision", "fp32"))
    compiled = gpu.backend(model, precision, KnownPlans(known)).compile(document.schedule)
    sessions = compiled.lowering.sessions
    apart = f", {len(sessions)} operators in onnxruntime on the CPU ({', '.join(sessions)})" if sessions else ""
    return Executor(compiled, None, f"iosched, {gpu.name}, {precision}, {compiled.kernel_count} kernels{apart}")


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
