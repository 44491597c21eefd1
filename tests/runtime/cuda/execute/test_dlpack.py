"""Inputs and outputs stay in place on the GPU."""

from __future__ import annotations

import ctypes
from typing import Any
from weakref import ref

import numpy as np
import pytest
from gpu_plans import expected_outputs, relative_error
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver
from host_gpu import HERE, HostExchange, OnDevice, on_host
from onnx import helper
from small_models import loaded, proto_of, sliced

from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.execute.executor import MAX_RECAPTURES
from iosched.runtime.cuda.gpu.exchange import host_array
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.onnxruntime.provider import Provider, ProviderSessions
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy

pytestmark = needs_compiler


def two_inputs() -> Model:
    """One input in the layout of the device, one that is converted to it; an output that is an input, and a sum."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Exp", ["v"], ["e"]),
        helper.make_node("Add", ["a", "e"], ["y"]),
        helper.make_node("Sigmoid", ["v"], ["s"]),
    ]
    return loaded(proto_of(nodes, {"x": (2, 3, 4, 8), "v": (8,)}, ["y", "s"]))


def read_by_a_session() -> Model:
    """onnxruntime reads its input in place."""
    nodes = [helper.make_node("Det", ["x"], ["d"]), helper.make_node("Exp", ["d"], ["y"])]
    return loaded(proto_of(nodes, {"x": (5, 3, 3)}, ["y"]))


class Desk:
    """A model on a GPU that is simulated in host memory."""

    def __init__(self, model: Model, seed: int = 0, provider: Provider | None = None) -> None:
        self.model, self.driver = model, HostDriver(seed)
        self.theirs = self.driver.new_stream()
        self.exchange = HostExchange(self.driver, {77: self.theirs})
        choose = HostChoice(self.driver)
        sessions = None if provider is None else ProviderSessions(self.driver, provider, id)
        precision = Precision("fp32")
        backend = CudaBackend(model, self.driver, choose, precision, sessions=sessions, exchange=self.exchange)
        self.compiled: CudaModel = backend.compile(greedy(backend.graph))

    def error(self, found: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> float:
        return relative_error(found, expected_outputs(self.model, inputs))

    def run(self, inputs: dict[str, Any], **how: Any) -> dict[str, np.ndarray]:
        return {name: on_host(each) for name, each in self.compiled.run_on_device(inputs, **how).items()}


def aligned(array: np.ndarray, offset: int = 0) -> np.ndarray:
    """A copy that begins `offset` bytes after a multiple of 64."""
    room = np.zeros(array.nbytes + 64 + offset, np.uint8)
    start = -room.ctypes.data % 64 + offset
    found = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def arrays(model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    return {name: aligned(array) for name, array in random_inputs(model.graph.inputs, seed).items()}


@pytest.mark.parametrize("model", [two_inputs(), sliced()], ids=["captured", "with sessions"])
def test_inputs_are_read_in_place_without_copies(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(model)
    given = arrays(model)
    if not desk.compiled.executor.session_devices:  # operators on the host get copies
        monkeypatch.setattr(desk.driver, "upload", lambda *_: pytest.fail("copies an input"))
    wrapped = {name: OnDevice(array) for name, array in given.items()}
    for seed in range(3):  # the same arrays, refilled
        for name, array in random_inputs(model.graph.inputs, seed).items():
            given[name][...] = array
        assert desk.error(desk.run(wrapped), given) < 1e-5
    assert desk.driver.copied_nbytes == 0
    for each in wrapped.values():
        assert each.asked == [desk.compiled.executor.origin] * 3


def captures(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    begin = desk.driver.begin_capture
    monkeypatch.setattr(desk.driver, "begin_capture", lambda stream: (found.append(1), begin(stream))[1])
    return found


def test_a_set_of_arrays_is_captured_once_while_it_is_among_the_last_few(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_inputs()
    desk = Desk(model)
    captured = captures(desk, monkeypatch)
    sets = [arrays(model, seed) for seed in range(MAX_RECAPTURES + 1)]
    for given in (*sets[:MAX_RECAPTURES], *sets[:MAX_RECAPTURES]):
        assert desk.error(desk.run({name: OnDevice(array) for name, array in given.items()}), given) < 1e-5
    assert len(captured) == MAX_RECAPTURES
    desk.run({name: OnDevice(array) for name, array in sets[-1].items()})
    desk.run({name: OnDevice(array) for name, array in sets[0].items()})
    assert len(captured) == MAX_RECAPTURES + 2
    assert desk.error(desk.compiled.run(sets[1]), sets[1]) < 1e-5  # on its own buffers, as always
    assert len(captured) == MAX_RECAPTURES + 2


def test_arrays_of_the_host_are_copied_and_may_be_mixed_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_inputs()
    desk, given = Desk(model), arrays(model)
    mixed = {"x": given["x"], "v": OnDevice(given["v"])}
    assert desk.error(desk.run(mixed), given) < 1e-5
    captured = captures(desk, monkeypatch)
    other = arrays(model, 1)
    assert desk.error(desk.run(other), other) < 1e-5
    assert not captured
    listed = {**other, "v": [float(value) for value in other["v"]]}
    with pytest.raises(UsageError, match="float64 of shape 8; expected float32 of shape 8"):
        desk.run(listed)


@pytest.mark.parametrize("provider", [None, Provider("CPUExecutionProvider", "cpu", takes_stream=False)])
def test_onnxruntime_reads_arrays_in_place(provider: Provider | None) -> None:
    model = read_by_a_session()
    desk = Desk(model, provider=provider)
    sets = [arrays(model, seed) for seed in range(3)]
    for given in (*sets, *sets):
        assert desk.error(desk.run({"x": OnDevice(given["x"])}), given) < 1e-5
        given["x"][...] += 0.5
    assert desk.error(desk.compiled.run(sets[0]), sets[0]) < 1e-5


def test_an_unaligned_array_is_copied_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_inputs()
    desk, given = Desk(model), arrays(model)
    given["x"] = aligned(given["x"], offset=4)
    captured = captures(desk, monkeypatch)
    assert desk.error(desk.run({"x": OnDevice(given["x"]), "v": given["v"]}), given) < 1e-5
    assert desk.driver.copied_nbytes == given["x"].nbytes
    assert not captured


@pytest.mark.parametrize("seed", range(4))
def test_a_run_on_a_stream_follows_earlier_work_and_precedes_later_work_of_that_stream(
    seed: int,
) -> None:
    model = two_inputs()
    desk, given = Desk(model, seed), arrays(model, seed)
    wrapped = {name: OnDevice(array) for name, array in given.items()}
    later = arrays(model, seed + 50)
    desk.run(wrapped, stream=77)
    for array in given.values():
        array[...] = 0
    wanted = arrays(model, seed + 20)
    for name, array in wanted.items():
        desk.driver.upload(given[name].ctypes.data, array, desk.theirs)
    outputs = desk.compiled.run_on_device(wrapped, stream=77)
    assert desk.driver.pending
    for name, array in later.items():
        desk.driver.upload(given[name].ctypes.data, array, desk.theirs)
    found = {name: on_host(each) for name, each in outputs.items()}
    assert desk.error(found, wanted) < 1e-5


@pytest.mark.parametrize("kind", [None, 3], ids=["of numpy", "of another library"])
def test_with_a_stream_pinned_inputs_may_be_refilled_immediately(kind: int | None) -> None:
    """CUDA reads pinned memory when the stream comes to it."""
    model = two_inputs()
    desk, given = Desk(model), arrays(model)
    wanted = {name: array.copy() for name, array in given.items()}
    desk.driver.pinned += given.values()
    wrapped = {name: array if kind is None else OnDevice(array, (kind, 0)) for name, array in given.items()}
    outputs = desk.compiled.run_on_device(wrapped, stream=77)
    assert desk.driver.pending
    for array in given.values():
        array[...] = 0
    assert desk.error({name: on_host(each) for name, each in outputs.items()}, wanted) < 1e-5


def test_copies_of_inputs_live_until_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA may read ordinary memory, too, after the call that copies it."""
    model = two_inputs()
    desk, copies = Desk(model), list[ref[np.ndarray]]()
    upload = desk.driver.upload

    def recorded(address: int, content: np.ndarray, stream: Any) -> None:
        copies.append(ref(content))
        upload(address, content.copy(), stream)

    monkeypatch.setattr(desk.driver, "upload", recorded)
    desk.compiled.run_on_device(arrays(model), stream=77)
    assert [copy() is not None for copy in copies] == [True, True]
    desk.compiled.run_on_device(arrays(model), stream=77)
    assert [copy() is not None for copy in copies] == [False, False, True, True]


def test_without_a_stream_the_run_is_done_when_it_returns() -> None:
    model = two_inputs()
    desk, given = Desk(model), arrays(model)
    desk.compiled.run_on_device({name: OnDevice(array) for name, array in given.items()})
    assert not desk.driver.pending


def test_an_output_has_shape_type_and_device_and_outlives_the_model() -> None:
    model = two_inputs()
    desk, given = Desk(model), arrays(model)
    outputs = desk.compiled.run_on_device(given)
    assert (outputs["y"].shape, outputs["y"].dtype, outputs["y"].__dlpack_device__()) == ((2, 3, 4, 8), "float32", HERE)
    desk.compiled.close()
    np.testing.assert_allclose(on_host(outputs["s"]), expected_outputs(model, given)["s"], rtol=1e-5)


class Refusing(OnDevice):
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it requires grad")


@pytest.mark.parametrize(
    ("v", "message"),
    [
        (OnDevice(np.zeros(8, np.float64)), r"input 'v' is float64 of shape 8; expected float32 of shape 8"),
        (OnDevice(np.zeros((1, 8), np.float32)), r"input 'v' is float32 of shape 1x8; expected float32 of shape 8"),
        (OnDevice(np.zeros(16, np.float32)[::2]), r"input 'v' is not contiguous"),
        (OnDevice(np.zeros(8, np.float32), (2, 3)), r"input 'v' is on GPU 3, but the model is on GPU 0"),
        (OnDevice(np.zeros(8, np.float32), (8, 0)), r"input 'v' is on a device of DLPack type 8"),
        (Refusing(np.zeros(8, np.float32)), r"cannot read input 'v' in place: it requires grad"),
        (Refusing(np.zeros(8, np.float32), (1, 0)), r"cannot read input 'v' in place: it requires grad"),
        (np.zeros((2, 4), np.float32), r"input 'v' is float32 of shape 2x4; expected"),
    ],
)
def test_an_array_that_cannot_be_read_is_refused_by_name(v: Any, message: str) -> None:
    model = two_inputs()
    with pytest.raises(UsageError, match=message):
        Desk(model).compiled.run_on_device({"x": arrays(model)["x"], "v": v})


def test_refusing_an_array_leaves_no_copy_of_another_pending() -> None:
    """Its memory may be freed next."""
    model = two_inputs()
    desk, given = Desk(model), arrays(model)
    x = OnDevice(aligned(given["x"], offset=4))
    with pytest.raises(UsageError, match="float64"):
        desk.compiled.run_on_device({"x": x, "v": OnDevice(np.zeros(8, np.float64))}, stream=77)
    assert desk.driver.copied_nbytes == given["x"].nbytes
    assert not any(each.touches for each in desk.driver.pending)


def test_missing_unknown_and_misshapen_inputs_are_refused() -> None:
    model = two_inputs()
    given = arrays(model)
    desk = Desk(model)
    with pytest.raises(UsageError, match="input 'v' is missing"):
        desk.compiled.run_on_device({"x": given["x"]})
    with pytest.raises(UsageError, match="no input 'w'; it has x, v"):
        desk.compiled.run_on_device({**given, "w": given["v"]})
    with pytest.raises(UsageError, match="float32 of shape 8"):
        desk.compiled.run({**given, "v": given["x"]})


def test_pinned_memory_of_another_library_counts_as_host_memory() -> None:
    array = np.arange(3, dtype=np.float32)
    assert host_array("v", OnDevice(array)) is None
    found = host_array("v", OnDevice(array, (1, 0)))
    assert found is not None
    assert found.ctypes.data == array.ctypes.data
    assert ctypes.c_float.from_address(found.ctypes.data + 8).value == 2


def test_without_an_exchange_run_on_device_is_refused() -> None:
    model = two_inputs()
    driver = HostDriver()
    backend = CudaBackend(model, driver, HostChoice(driver), Precision("fp32"))
    with pytest.raises(UsageError, match="in host memory to `run`"):
        backend.compile(greedy(backend.graph)).run_on_device(arrays(model))
