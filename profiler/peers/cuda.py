"""Other runtimes on an attached GPU, to measure beside ours. To add one: a function that opens it, a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from iosched.models.errors import DeviceError
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.reference import bound_source
from iosched.runtime.session import load_onnxruntime, open_session, running

Once = Callable[[], float]
"""Runs a whole model once on inputs that lie on the GPU, and tells the microseconds between events there."""


@dataclass(frozen=True, eq=False)
class GpuPlace:
    """Where a peer runs, and what on."""

    model: Model
    inputs: Mapping[str, np.ndarray]
    precision: Precision
    driver: Driver
    provider: Provider


def open_onnxruntime(place: GpuPlace) -> Once:
    """Plain onnxruntime on its CUDA provider; what that cannot run is run on the CPU, as its users have it.

    Raises:
        DeviceError: the provider is not there, or does not compute in this precision.
        InvalidModelError: onnxruntime refuses the model.
    """
    if place.precision.name == "fp16":
        raise DeviceError("runs the model in its own types, not in fp16")
    provider, stream = place.provider, place.driver.new_stream()
    if not provider.is_there():
        raise DeviceError("has no CUDA provider here: install it with: pip install 'iosched[cuda]'")
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source, kept = bound_source(place.model, options)
    handle = int(getattr(stream, "ptr", 0))
    providers = [(provider.name, provider.with_stream(handle))]
    session = open_session(source, options, providers=providers)
    if provider.name not in session.get_providers():
        raise DeviceError("its CUDA provider does not load: install what it needs with: pip install 'iosched[cuda]'")
    binding = session.io_binding()
    make = onnxruntime.OrtValue.ortvalue_from_numpy
    values = {name: make(array, provider.device, provider.index) for name, array in place.inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for output in session.get_outputs():
        binding.bind_output(output.name, provider.device, provider.index)
    return partial(_timed, place.driver, stream, partial(_run_bound, session, binding), (stream, values, kept))


def _run_bound(session: Any, binding: Any) -> None:
    with running():
        session.run_with_iobinding(binding)


def _timed(driver: Driver, stream: Any, run: Callable[[], None], kept: object) -> float:
    """Microseconds of `run`, which works on `stream`; `kept` is what it needs to stay alive."""
    del kept
    start, end = driver.new_event(timing=True), driver.new_event(timing=True)
    driver.record(start, stream)
    run()
    driver.record(end, stream)
    return driver.elapsed_us(start, end)


def open_torch(way: str, place: GpuPlace) -> Once:
    """PyTorch on the model as onnx2torch converts it.

    Args:
        way: of `torch_ways.WAYS`.

    Raises:
        DeviceError: PyTorch or onnx2torch is missing, or one of them cannot do this model.
    """
    try:
        from onnx2torch import convert

        from iosched.profiler.peers.torch_ways import open_way
    except ImportError as error:
        raise DeviceError(f"{error.name} is not installed; install it with: pip install torch onnx2torch") from error
    proto = onnx.load_from_string(write_model(place.model.proto, place.model.weights, None) or b"")
    try:
        network = convert(proto)
    except (NotImplementedError, RuntimeError, ValueError, KeyError) as error:
        raise DeviceError(f"onnx2torch cannot convert this model: {error}") from error
    arrays = [place.inputs[spec.name] for spec in place.model.graph.inputs]
    return open_way(way, network, arrays, place.precision).once


OPENERS: Mapping[str, Callable[[GpuPlace], Once]] = {
    "onnxruntime-cuda": open_onnxruntime,
    "torch": partial(open_torch, "torch"),
    "torch-cudagraph": partial(open_torch, "torch-cudagraph"),
    "torch-compile": partial(open_torch, "torch-compile"),
}
