"""CuPy's own arrays as inputs and outputs, and onnxruntime between captured graphs, on a GPU in host memory."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Iterator
from typing import Any

import desk_cupy
import numpy as np
import pytest
from desk_cuda import DeskCuda
from gpu_plans import expected_outputs, relative_error
from host_driver import HostChoice
from onnx import helper
from small_models import loaded, proto_of, sliced

from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.cuda.gpu.exchange import CupyExchange
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider, ProviderSessions
from iosched.runtime.cuda.onnxruntime.sessions import SessionDevice
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

_MISSING = desk_cupy.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")
if _MISSING is None:
    desk_cupy.install()  # before anybody imports CuPy

IN_PLACE = Provider("CPUExecutionProvider", "cpu", takes_stream=False)


@pytest.fixture
def desk() -> Iterator[DeskCuda]:
    """One GPU."""
    with desk_cupy.one_gpu() as found:
        yield found


@pytest.fixture
def two_gpus() -> Iterator[DeskCuda]:
    with desk_cupy.two_gpus() as found:
        yield found


def compiled(model: Model, index: int = 0) -> CudaModel:
    driver = CupyDriver(index)
    sessions = ProviderSessions(driver, IN_PLACE)
    choose: Any = HostChoice(None)  # type: ignore[arg-type]
    backend = CudaBackend(model, driver, choose, Precision("fp32"), sessions=sessions, exchange=CupyExchange(index))
    return backend.compile(greedy(backend.graph))


def on_gpu(inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    cupy = importlib.import_module("cupy")
    return {name: filled(cupy.empty(array.shape, array.dtype), array) for name, array in inputs.items()}


def filled(array: Any, content: np.ndarray) -> Any:
    """`array` with this content, at once."""
    ctypes.memmove(array.data.ptr, np.asarray(content, order="C").ctypes.data, content.nbytes)
    return array


def on_host(outputs: Any) -> dict[str, np.ndarray]:
    """The content that a consumer reads when its own stream is done."""
    cupy = importlib.import_module("cupy")
    found = {}
    for name, each in outputs.items():
        with cupy.cuda.Stream(non_blocking=True) as stream:
            array = cupy.from_dlpack(each)
        stream.synchronize()
        data = (ctypes.c_uint8 * array.nbytes).from_address(array.data.ptr)
        found[name] = np.ndarray(array.shape, array.dtype, bytes(data))
    return found


def two_inputs() -> Model:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["v"], ["e"]),
        helper.make_node("Add", ["a", "e"], ["y"]),
        helper.make_node("Greater", ["v", "e"], ["s"]),
    ]
    return loaded(proto_of(nodes, {"x": (2, 3, 4, 8), "v": (8,)}, {"y": 1, "s": 9}))


@pytest.mark.parametrize("stream", [False, True])
def test_cupy_arrays_are_read_and_returned_in_place(desk: DeskCuda, stream: bool) -> None:
    cupy = importlib.import_module("cupy")
    model = two_inputs()
    found = compiled(model)
    theirs = cupy.cuda.Stream(non_blocking=True)
    with theirs:
        inputs = on_gpu(random_inputs(model.graph.inputs))
        for seed in range(3):
            wanted = random_inputs(model.graph.inputs, seed)
            for name, array in wanted.items():
                filled(inputs[name], array)
            desk.calls.clear()
            outputs = found.run_on_device(inputs, stream=theirs.ptr if stream else None)
            assert not any("memcpy" in call.lower() for call in desk.calls)
            assert ("streamBeginCapture" in desk.calls) == (seed == 0)
            if seed and stream:
                assert "streamSynchronize" not in desk.calls
            expected = expected_outputs(model, wanted)
            got = on_host(outputs)
            assert np.array_equal(got.pop("s"), expected.pop("s"))
            assert relative_error(got, expected) < 1e-5


def test_arrays_on_the_second_gpu_are_read_where_the_first_is_current(two_gpus: DeskCuda) -> None:
    cupy = importlib.import_module("cupy")
    model = two_inputs()
    found = compiled(model, 1)
    inputs = random_inputs(model.graph.inputs)
    with cupy.cuda.Device(1):
        theirs = cupy.cuda.Stream(non_blocking=True)
        with theirs:
            arrays = on_gpu(inputs)
    outputs = found.run_on_device(arrays, stream=theirs.ptr)
    two_gpus.calls.clear()
    outputs["y"].__dlpack__(stream=theirs.ptr)
    assert "streamWaitEvent" in two_gpus.calls
    assert two_gpus.get_device() == 0
    with cupy.cuda.Device(1):
        got = on_host(outputs)
    assert relative_error({"y": got["y"]}, {"y": expected_outputs(model, inputs)["y"]}) < 1e-5


def test_a_run_waits_for_the_stream_that_is_current_for_arrays_of_cupy(desk: DeskCuda) -> None:
    cupy = importlib.import_module("cupy")
    model = two_inputs()
    found = compiled(model)
    inputs = on_gpu(random_inputs(model.graph.inputs))
    found.run_on_device(inputs)
    desk.calls.clear()
    with cupy.cuda.Stream(non_blocking=True):
        found.run_on_device(inputs)
    assert desk.calls.count("streamWaitEvent") == len(inputs)
    assert desk.calls.index("streamWaitEvent") < desk.calls.index("graphLaunch")


def test_a_consumer_on_another_stream_waits_for_the_run(desk: DeskCuda) -> None:
    cupy = importlib.import_module("cupy")
    model = two_inputs()
    found = compiled(model)
    theirs, other = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with theirs:
        outputs = found.run_on_device(on_gpu(random_inputs(model.graph.inputs)), stream=theirs.ptr)
    desk.calls.clear()
    with other:
        cupy.from_dlpack(outputs["y"])
    assert "streamWaitEvent" in desk.calls


def test_an_array_that_cupy_cannot_take_is_named(desk: DeskCuda) -> None:
    model = two_inputs()
    found = compiled(model)
    inputs = on_gpu(random_inputs(model.graph.inputs))
    channels_last = importlib.import_module("cupy").empty((2, 4, 8, 3), np.float32).transpose(0, 3, 1, 2)
    with pytest.raises(UsageError, match="input 'x' is not contiguous"):
        found.run_on_device({**inputs, "x": channels_last})

    class Refusing:
        def __dlpack__(self, **_: Any) -> Any:
            raise BufferError("it requires grad")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(UsageError, match="cannot read input 'v' in place: it requires grad"):
        found.run_on_device({**inputs, "v": Refusing()})


def test_an_unaligned_array_is_copied_on_the_gpu(desk: DeskCuda) -> None:
    cupy = importlib.import_module("cupy")
    model = two_inputs()
    found = compiled(model)
    given = random_inputs(model.graph.inputs)
    inputs = on_gpu(given)
    inputs["v"] = filled(cupy.empty(9, np.float32)[1:], given["v"])
    got = on_host(found.run_on_device(inputs))
    assert relative_error({"y": got["y"]}, {"y": expected_outputs(model, given)["y"]}) < 1e-5


def test_onnxruntime_reads_and_writes_memory_of_cupy(desk: DeskCuda) -> None:
    model = sliced()
    found = compiled(model)
    assert set(found.executor.session_devices.values()) == {SessionDevice.PARTLY}
    for seed in range(2):
        found.executor.poison()
        inputs = random_inputs(model.graph.inputs, seed)
        assert relative_error(found.run(inputs), expected_outputs(model, inputs)) < 1e-5
        assert relative_error(on_host(found.run_on_device(on_gpu(inputs))), expected_outputs(model, inputs)) < 1e-5
