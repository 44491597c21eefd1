"""On a GPU, arrays of other libraries are read in place, and onnxruntime runs operators without a kernel."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from gpu_kernels import IS_DESK
from gpu_plans import expected_outputs, relative_error
from onnx import TensorProto, helper
from small_models import loaded, node, proto_of, sliced

from iosched.models.model import Model
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.profiler.devices.cuda.device import session_notes
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.cuda.onnxruntime.sessions import SessionDevice
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy


def counted() -> Model:
    """CumSum along an axis that is an input: no kernel of ours; onnxruntime's CUDA kernel reads it on the host."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("CumSum", ["a", "axis"], ["c"]),
        node("Exp", ["c"], ["e"]),
        node("Neg", ["e"], ["y"]),
    ]
    return loaded(proto_of(nodes, {"x": (3, 8), "axis": (TensorProto.INT64, [])}, ["y"]))


TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 2e-2}
RUNS = 3 if IS_DESK else 200

needs_gpu = pytest.mark.skipif(IS_DESK, reason="the desk has no CUDA provider and no libraries but CuPy")

Arrays = Mapping[str, np.ndarray]


def opened(gpu: AttachedGpu, model: Model, precision: str = "fp32") -> CudaModel:
    backend = gpu.backend(model, precision, KnownCudnnPlans({}))
    return backend.compile(greedy(backend.graph))


def two_inputs() -> Model:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["v"], ["e"]),
        helper.make_node("Add", ["a", "e"], ["y"]),
        helper.make_node("Exp", ["v"], ["s"]),
    ]
    return loaded(proto_of(nodes, {"x": (2, 16, 32, 32), "v": (32,)}, ["y", "s"]))


def agrees(model: Model, found: Arrays, inputs: Arrays, tolerance: float = 1e-4) -> None:
    expected = expected_outputs(model, inputs)
    assert relative_error(found, expected) < tolerance


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_operators_without_a_kernel(gpu: AttachedGpu, precision: str) -> None:
    model = sliced()
    compiled = opened(gpu, model, precision)
    for seed in range(3):
        compiled.executor.poison()
        inputs = random_inputs(model.graph.inputs, seed)
        found, expected = compiled.run(inputs), expected_outputs(model, inputs)
        if precision == "fp16":  # rounding makes ties
            del found["at"], expected["at"]
        assert relative_error(found, expected) < TOLERANCE[precision]
    first = compiled.run(inputs)
    for _ in range(RUNS):
        compiled.executor.poison()
        assert all(array.tobytes() == first[name].tobytes() for name, array in compiled.run(inputs).items())


@needs_gpu
def test_operators_without_a_kernel_run_in_the_cuda_provider(gpu: AttachedGpu) -> None:
    if "CUDAExecutionProvider" not in importlib.import_module("onnxruntime").get_available_providers():
        pytest.skip("this onnxruntime has no CUDA provider")
    devices = opened(gpu, sliced()).executor.session_devices
    assert devices["top"] == SessionDevice.PROVIDER, devices
    assert devices["n"] in (SessionDevice.PROVIDER, SessionDevice.PARTLY), devices
    (note,) = session_notes(opened(gpu, sliced()))
    assert "CUDA provider" in note


def test_host_inputs_of_a_provider_kernel_are_copied_in_every_run(gpu: AttachedGpu) -> None:
    model = counted()
    compiled = opened(gpu, model)
    for seed in range(4):
        for axis in (0, 1):
            inputs = {**random_inputs(model.graph.inputs, seed), "axis": np.array(axis, np.int64)}
            compiled.executor.poison()
            agrees(model, compiled.run(inputs), inputs)


def device_array(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def host_arrays(outputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    import cupy

    return {name: cupy.asnumpy(cupy.from_dlpack(each)) for name, each in outputs.items()}


@needs_gpu
@pytest.mark.parametrize("model", [two_inputs(), sliced()], ids=["captured", "with sessions"])
def test_arrays_of_cupy(gpu: AttachedGpu, model: Model) -> None:
    compiled = opened(gpu, model)
    given = {name: device_array(array) for name, array in random_inputs(model.graph.inputs).items()}
    for seed in range(RUNS):
        inputs = random_inputs(model.graph.inputs, seed)
        for name, array in inputs.items():
            given[name].set(array)
        agrees(model, host_arrays(compiled.run_on_device(given)), inputs)
    unaligned = {name: device_array(np.append(np.zeros(1, array.dtype), array))[1:] for name, array in inputs.items()}
    shaped = {name: each.reshape(inputs[name].shape) for name, each in unaligned.items()}
    agrees(model, host_arrays(compiled.run_on_device(shaped)), inputs)


@needs_gpu
@pytest.mark.parametrize("on_side_stream", [False, True])
def test_arrays_of_torch_in_the_order_of_its_stream(gpu: AttachedGpu, on_side_stream: bool) -> None:
    """Nothing waits for the GPU in between: inputs are overwritten as soon as a run is enqueued."""
    torch = pytest.importorskip("torch")
    model = two_inputs()
    compiled = opened(gpu, model)
    drawn = [random_inputs(model.graph.inputs, seed) for seed in range(4)]
    pool = [{name: torch.from_numpy(array).cuda() for name, array in inputs.items()} for inputs in drawn]
    given = {name: torch.empty_like(each) for name, each in pool[0].items()}
    stream = torch.cuda.Stream() if on_side_stream else torch.cuda.default_stream()
    torch.cuda.synchronize()
    kept = []
    with torch.cuda.stream(stream):
        for number in range(RUNS):
            for name, each in pool[number % 4].items():
                given[name].copy_(each)
            outputs = compiled.run_on_device(given, stream=stream.cuda_stream)
            kept.append({name: torch.from_dlpack(each).clone() for name, each in outputs.items()})
    torch.cuda.synchronize()
    for number, found in enumerate(kept):
        agrees(model, {name: each.cpu().numpy() for name, each in found.items()}, drawn[number % 4])


@needs_gpu
def test_torch_without_a_stream(gpu: AttachedGpu) -> None:
    torch = pytest.importorskip("torch")
    model = two_inputs()
    compiled = opened(gpu, model)
    for seed in range(6):  # new arrays each time
        inputs = random_inputs(model.graph.inputs, seed)
        given = {name: torch.from_numpy(array).cuda() for name, array in inputs.items()}
        outputs = compiled.run_on_device(given)
        agrees(model, {name: torch.from_dlpack(each).cpu().numpy() for name, each in outputs.items()}, inputs)
