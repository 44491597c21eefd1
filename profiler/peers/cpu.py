"""Other runtimes on the CPU, to measure beside ours. To add one: a function that opens it, a line in `OPENERS`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.profiler.devices.cpu.candidates import Arrays, Runnable, best_reference
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings


def open_onnxruntime(model: Model, threads: int) -> Runnable:
    """Plain onnxruntime in the setting in which it is fastest."""
    return Reference(model, best_reference(model, random_inputs(model.graph.inputs), threads))


def open_onnxruntime_parallel(model: Model, threads: int) -> Runnable:
    """Plain onnxruntime's own parallel mode."""
    return Reference(model, ReferenceSettings("parallel", max(1, threads // 2), threads))


@dataclass(frozen=True, eq=False)
class _OpenVino:
    request: Any
    outputs: tuple[str, ...]

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run; outputs by name."""
        found = self.request.infer(dict(inputs), share_inputs=True)
        return {name: np.array(found[index]) for index, name in enumerate(self.outputs)}

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        samples = []
        given = dict(inputs)
        for _ in range(repeats):
            started = time.perf_counter_ns()
            self.request.infer(given, share_inputs=True, share_outputs=True)
            samples.append((time.perf_counter_ns() - started) / 1e3)
        return tuple(samples)

    def close(self) -> None:
        """Nothing is held beside the request."""


def open_openvino(model: Model, threads: int) -> Runnable:
    """OpenVINO for latency on all cores, in the precision of the model."""
    try:
        import openvino
    except ImportError as error:
        raise DeviceError('not installed; install it with: pip install "iosched[bench]"') from error
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    given = str(model.original) if isinstance(model.original, Path) else model.original
    core = openvino.Core()
    try:
        network = core.read_model(given)
        network.reshape({name: list(shape) for name, shape in model.bindings.items()})
        compiled = core.compile_model(network, "CPU", settings)
    except RuntimeError as error:
        raise DeviceError("it cannot run this model") from error
    return _OpenVino(compiled.create_infer_request(), model.graph.outputs)


OPENERS: Mapping[str, Callable[[Model, int], Runnable]] = {
    "onnxruntime": open_onnxruntime,
    "onnxruntime-parallel": open_onnxruntime_parallel,
    "openvino": open_openvino,
}
