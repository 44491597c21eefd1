"""Opens baselines on an attached GPU. A new one has a module, its name in `names.py`, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnx

from iosched.models.errors import DeviceError
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.profiler.baselines.library import LibraryBaseline
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.failures import how_to_install
from iosched.runtime.cuda.gpu.lanes import elapsed_each_us
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider, bound_run
from iosched.runtime.cuda.onnxruntime.tensorrt import Engine, TensorrtProcess
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import bound_source
from iosched.runtime.session import load_onnxruntime, open_session


def open_torch(way: str, setup: GpuSetup) -> Candidate:
    """Opens PyTorch on the network that onnx2torch makes of the model; `way` is a key of `torch_runs.WAYS`.

    Raises:
        DeviceError: PyTorch or onnx2torch is not installed, or cannot handle this model.
    """
    try:
        from onnx2torch import convert

        from iosched.profiler.baselines.torch_runs import open_way
    except ImportError as error:
        raise DeviceError(
            f"{error.name} is not installed; install it with: pip install torch onnx2torch"
            " (with [cuda12]: 'torch<2.15' from https://download.pytorch.org/whl/cu126)"
        ) from error
    proto = onnx.load_from_string(write_model(setup.model.proto, setup.model.weights, None) or b"")
    try:
        network = convert(proto)
    except (NotImplementedError, RuntimeError, ValueError, KeyError) as error:
        raise DeviceError(f"onnx2torch cannot convert this model: {error}") from error
    arrays = [setup.inputs[spec.name] for spec in setup.model.graph.inputs]
    with setup.driver.current():  # also makes it PyTorch's current GPU
        run = open_way(way, network, arrays, setup.precision)
    notes = (f"PyTorch used the faster image layout, {run.layout}.",)

    def time(repeats: int) -> tuple[float, ...]:
        with setup.driver.current():
            return run.time(repeats)

    return Candidate(time, notes=lambda: notes)


def open_on_gpu(setup: GpuSetup) -> Candidate:
    """Opens onnxruntime with the provider of `setup`, which leaves operators without a kernel to the CPU.

    Raises:
        DeviceError: the provider is missing, or it does not compute in this precision.
        InvalidModelError: onnxruntime refuses the model.
    """
    if setup.precision.name == "fp16":
        raise DeviceError("computes in the model's own types, not in fp16")
    provider, stream = setup.provider, setup.driver.new_stream()
    kind = provider.name.removesuffix("ExecutionProvider")
    if not provider.is_available():
        raise DeviceError(f"has no {kind} provider; {how_to_install(provider.index)}")
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source, kept = bound_source(setup.model, options)
    handle = int(getattr(stream, "ptr", 0))
    providers = [(provider.name, provider.with_stream(handle))]
    session = open_session(source, options, providers=providers)
    if provider.name not in session.get_providers():
        raise DeviceError(f"cannot load its CUDA provider; {how_to_install(provider.index)}")
    run = bound_run(session, provider, setup.inputs)
    return Candidate(partial(_timed, setup.driver, stream, run, (stream, kept)))


@dataclass(frozen=True, eq=False)
class TensorrtBaseline(LibraryBaseline):
    """TensorRT on the original model, in a separate process.

    Attributes:
        limit_s: the seconds that building the engine may take; None for the default.
    """

    name = "tensorrt"
    label = "TensorRT"
    limit_s: float | None = None
    engine: Engine = field(kw_only=True)

    @property
    def text(self) -> str:
        """See `LibraryBaseline`; raises as `opened` does."""
        opened = self.opened
        assert isinstance(opened, TensorrtProcess)
        return f"{opened.description}, {self.precision}"

    def _open(self) -> TensorrtProcess:
        return TensorrtProcess(self.model, self.engine, self.limit_s)


def open_in_tensorrt(setup: GpuSetup) -> Candidate:
    """Opens onnxruntime with its TensorRT provider, which builds an engine first.

    Raises:
        DeviceError: TensorRT is missing, or does not run the whole model.
    """
    opened = TensorrtProcess(setup.model, setup.engine)
    return Candidate(partial(opened.time, setup.inputs), opened.close)


def _timed(driver: Driver, stream: Any, run: Callable[[], None], kept_alive: object, repeats: int) -> tuple[float, ...]:
    """Microseconds of consecutive runs on `stream`; `kept_alive` are the objects that these need.

    onnxruntime waits for the GPU after each run, so every run finds it idle.
    """
    del kept_alive
    return tuple(elapsed_each_us(driver, stream, run, repeats))


GPU_OPENERS: Mapping[str, Callable[[GpuSetup], Candidate]] = {
    "onnxruntime-cuda": open_on_gpu,
    "onnxruntime-tensorrt": open_in_tensorrt,
    **{way: partial(open_torch, way) for way in ("torch", "torch-cudagraph", "torch-compile")},
}
"""Openers of baselines by name."""


@dataclass(frozen=True, eq=False)
class GpuSetup:
    """A GPU, and the model, inputs and precision of a baseline."""

    model: Model
    inputs: Arrays
    precision: Precision
    driver: Driver
    provider: Provider
    engine: Engine
