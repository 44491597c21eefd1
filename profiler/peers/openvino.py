"""OpenVINO on the CPU, as a peer."""

from __future__ import annotations

import time
from pathlib import Path

from iosched.models.errors import DeviceError
from iosched.models.model import Model
from iosched.profiler.measuring.in_turn import Candidate
from iosched.runtime.inputs import Arrays


def open_openvino(model: Model, threads: int, inputs: Arrays) -> Candidate:
    """Opens OpenVINO on `threads` cores with its settings for low latency, in the precision of the model.

    Raises:
        DeviceError: OpenVINO is not installed, or cannot run this model.
    """
    try:
        import openvino
    except ImportError as error:
        raise DeviceError('not installed; install it with: pip install "iosched[bench]"') from error
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    source = str(model.original) if isinstance(model.original, Path) else model.original
    core = openvino.Core()
    try:
        network = core.read_model(source)
        network.reshape({name: list(shape) for name, shape in model.bindings.items()})
        compiled = core.compile_model(network, "CPU", settings)
    except RuntimeError as error:
        raise DeviceError("it cannot run this model") from error
    request, given = compiled.create_infer_request(), dict(inputs)

    def timed(repeats: int) -> tuple[float, ...]:
        samples = []
        for _ in range(repeats):
            started = time.perf_counter_ns()
            request.infer(given, share_inputs=True, share_outputs=True)
            samples.append((time.perf_counter_ns() - started) / 1e3)
        return tuple(samples)

    return Candidate(timed)
