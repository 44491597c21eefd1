"""Operators without a kernel run in onnxruntime, in place or on host copies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver
from lowering import random_schedule
from onnx import TensorProto, helper
from small_models import loaded, proto_of, sliced

from iosched.models.errors import ExecutionError, InvalidModelError
from iosched.models.model import Model
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import Precision, SessionKernel
from iosched.runtime.cuda.layout import is_row_major
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower
from iosched.runtime.cuda.onnxruntime import provider as module
from iosched.runtime.cuda.onnxruntime.provider import Provider, ProviderSessions
from iosched.runtime.cuda.onnxruntime.sessions import HostSessions, SessionDevice, Sessions, Tensor, described
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import View
from iosched.scheduler.baselines import greedy

IN_PLACE = Provider("CPUExecutionProvider", "cpu", takes_stream=False)
"""Binds addresses as the CUDA provider does; those of the driver of tests are onnxruntime's own."""


def lowered(model: Model, precision: str = "fp32", seed: int | None = None) -> Lowering:
    network = LoweredModel(model, Precision(precision))
    return lower(network, greedy(model.graph) if seed is None else random_schedule(model.graph, seed))


def session_tasks(lowering: Lowering) -> Sequence[Any]:
    tasks = [task for lane in lowering.plan.lanes for task in lane]
    return [task for task in tasks if isinstance(lowering.kernels[task.kernel], SessionKernel)]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_session_sees_row_major_tensors_of_the_models_types(precision: str) -> None:
    model = sliced()
    for seed in range(4):
        lowering = lowered(model, precision, seed)
        assert set(lowering.sessions) == {"n", "top"}
        for task in session_tasks(lowering):
            for view in (*task.reads, *task.writes):
                assert view.dtype in ("float32", "int64")
                assert view.offset % 16 == 0
                item = np.dtype(view.dtype).itemsize
                assert view.strides is None or is_row_major(view.shape or (), view.strides, item)
        inputs = random_inputs(model.graph.inputs)
        found, wanted = interpreted(lowering, inputs, seed), expected_outputs(model, inputs)
        assert relative_error({**found, "at": wanted["at"]}, wanted) < (1e-5 if precision == "fp32" else 2e-2)


def test_types_unknown_to_numpy_are_passed_and_returned() -> None:
    pytest.importorskip("onnxruntime", "1.32", reason="opset 28")
    nodes = [helper.make_node("ReverseSequence", ["x", "lengths"], ["y"])]
    brain = TensorProto.BFLOAT16
    model = loaded(proto_of(nodes, {"x": (brain, (4, 2))}, {"y": brain}, {"lengths": np.array([2, 4])}, opset=28))
    lowering = lowered(model)
    assert set(lowering.sessions) == {"y"}
    x = np.arange(8).reshape(4, 2).astype(helper.tensor_dtype_to_np_dtype(brain))
    found = interpreted(lowering, {"x": x}, seed=0)["y"]
    assert found.dtype == x.dtype
    assert found.astype(int).tolist() == [[2, 7], [0, 5], [4, 3], [6, 1]]


@pytest.mark.parametrize(("precision", "copies"), [("fp32", 0), ("fp16", 2)])
def test_tensors_in_the_layout_of_the_session_are_not_copied(precision: str, copies: int) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Det", ["a"], ["d"])]
    nodes.append(helper.make_node("Exp", ["d"], ["y"]))
    lowering = lowered(loaded(proto_of(nodes, {"x": (5, 3, 3)}, ["y"])), precision)
    names = [task.name for lane in lowering.plan.lanes for task in lane]
    assert names.count("d") == 1 + copies
    (task,) = session_tasks(lowering)
    assert {view.dtype for view in (*task.reads, *task.writes)} == {"float32"}


def test_operators_that_differ_only_by_name_share_a_kernel_and_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Det", ["a"], ["d"], name="first"),
        helper.make_node("Sigmoid", ["x"], ["b"]),
        helper.make_node("Det", ["b"], ["y"], name="second"),
        helper.make_node("Exp", ["d"], ["z"]),
    ]
    model = loaded(proto_of(nodes, {"x": (5, 3, 3)}, ["y", "z"]))
    lowering = lowered(model)
    assert lowering.sessions == {"d": ("Det",), "y": ("Det",)}
    assert len({task.kernel for task in session_tasks(lowering)}) == 1
    made: list[int] = []
    make = module.open_session
    monkeypatch.setattr(module, "open_session", lambda *given, **how: (made.append(1), make(*given, **how))[1])
    driver = HostDriver()
    sessions = ProviderSessions(driver, IN_PLACE, id)
    stream = driver.new_stream()
    for task in session_tasks(lowering):
        kernel = lowering.kernels[task.kernel]
        assert isinstance(kernel, SessionKernel)
        tensors = [Tensor(driver.allocate(view.nbytes).ptr, view) for view in (*task.reads, *task.writes)]
        sessions.open(kernel, tensors[:1], tensors[1:], stream)
    assert len(made) == 2  # wholly on the provider, which the CPU is not, and then partly


def test_an_unaligned_tensor_is_copied() -> None:
    """The second part of a Split begins after 36 bytes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Split", ["a"], ["p", "q"], axis=0, num_outputs=2),
        helper.make_node("Det", ["p"], ["y"]),
        helper.make_node("Det", ["q"], ["z"]),
    ]
    lowering = lowered(loaded(proto_of(nodes, {"x": (2, 3, 3)}, ["y", "z"], opset=18)))
    names = [task.name for lane in lowering.plan.lanes for task in lane]
    assert (names.count("y"), names.count("z")) == (1, 2)
    assert all(view.offset % 16 == 0 for task in session_tasks(lowering) for view in task.reads)


def opened(model: Model, sessions: Sessions | None, driver: HostDriver, precision: str = "fp32") -> CudaExecutor:
    return CudaExecutor(lowered(model, precision), driver, HostChoice(driver), sessions=sessions)


def outputs(model: Model, executor: CudaExecutor, seed: int) -> float:
    """The error, of which indices may have none."""
    inputs = random_inputs(model.graph.inputs, seed)
    found = executor.run({view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs})
    named = {name.removesuffix("@caller"): array for name, array in found.items()}
    wanted = expected_outputs(model, inputs)
    assert np.array_equal(named["at"], wanted["at"])
    return relative_error(named, wanted)


@needs_compiler
@pytest.mark.parametrize("in_place", [True, False])
def test_sessions_and_graphs_take_turns(in_place: bool) -> None:
    model = sliced()
    for seed in range(3):
        driver = HostDriver(seed)
        sessions = ProviderSessions(driver, IN_PLACE, id) if in_place else None
        executor = opened(model, sessions, driver)
        executor.poison()
        assert outputs(model, executor, seed) < 1e-5
        assert outputs(model, executor, seed + 10) < 1e-5
        assert not executor.is_captured
        assert executor.session_devices == dict.fromkeys(
            ("n", "top"), SessionDevice.PARTLY if in_place else SessionDevice.CPU
        )


@needs_compiler
def test_with_the_provider_tensors_are_not_copied_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    model, driver = sliced(), HostDriver()
    executor = opened(model, ProviderSessions(driver, IN_PLACE, id), driver)
    for name in ("download", "upload"):
        monkeypatch.setattr(driver, name, lambda *_: pytest.fail("copies through the host"))
    executor.launch()


@needs_compiler
def test_the_time_spent_in_onnxruntime_is_reported() -> None:
    driver = HostDriver()
    executor = opened(sliced(), None, driver)
    within_us, total_us = executor.time_sessions()
    assert (within_us, total_us) == (2 * 10.0, 10.0)  # the driver's events are always 10 us apart


# The CUDA provider, as far as it can be tested without a GPU.


class Stream:
    ptr = 4711


class FakeBinding:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def bind_input(self, *args: Any) -> None:
        self.log.append(("input", *args))

    def bind_output(self, *args: Any) -> None:
        self.log.append(("output", *args))

    def synchronize_inputs(self) -> None:
        self.log.append("inputs there")

    def synchronize_outputs(self) -> None:
        self.log.append("outputs there")


class FakeSession:
    def __init__(self, log: list[Any], providers: Sequence[str], memory: str, failure: str = "") -> None:
        self.log, self.providers, self.memory, self.failure = log, providers, memory, failure

    def get_providers(self) -> Sequence[str]:
        return self.providers

    def io_binding(self) -> FakeBinding:
        return FakeBinding(self.log)

    def get_input_memory_infos(self) -> list[Any]:
        return [SimpleNamespace(name=self.memory)]

    def get_output_memory_infos(self) -> list[Any]:
        return [SimpleNamespace(name="Cuda")]

    def run_with_iobinding(self, binding: FakeBinding, options: Any) -> None:
        assert isinstance(binding, FakeBinding)
        self.log.append("run and wait" if _waits(options) else "run")
        if self.failure:
            raise RuntimeError(self.failure)


def _waits(options: Any) -> bool:
    from onnxruntime.capi.onnxruntime_pybind11_state import Fail

    try:
        return bool(options.get_run_config_entry("disable_synchronize_execution_providers") != "1")
    except (Fail, RuntimeError):  # it is not set
        return True


class QuietDriver(HostDriver):
    def __init__(self, log: list[Any]) -> None:
        super().__init__()
        self.log = log

    def synchronize(self, stream: Any) -> None:
        assert isinstance(stream, Stream)
        self.log.append("waits")


CUDA = Provider.cuda(1, Precision("fp32"))


def det() -> tuple[SessionKernel, Tensor, Tensor]:
    lowering = lowered(sliced())
    kernel = lowering.kernels[session_tasks(lowering)[0].kernel]
    assert isinstance(kernel, SessionKernel)
    shape = (2, 3, 4, 5)
    return kernel, Tensor(0x100, View("a", "float32", shape)), Tensor(0x200, View("n", "float32", shape))


def run_of(
    monkeypatch: pytest.MonkeyPatch, log: list[Any], makes: Any, available: Sequence[str] = ("CUDAExecutionProvider",)
) -> module.SessionRun:
    """The run that `ProviderSessions` opens if `makes(providers)` makes the sessions."""
    monkeypatch.setattr(module, "open_session", lambda model, options, *, providers: makes(providers))
    monkeypatch.setattr(Provider, "is_available", lambda self: self.name in available)
    kernel, read, write = det()
    return ProviderSessions(QuietDriver(log), CUDA).open(kernel, [read], [write], Stream())


def test_a_session_on_the_device_is_bound_once_and_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    asked: list[Any] = []

    def make(providers: Sequence[Any]) -> FakeSession:
        asked.append(providers)
        return FakeSession(log, ["CUDAExecutionProvider", "CPUExecutionProvider"], "Cuda")

    run = run_of(monkeypatch, log, make)
    run(Stream())
    run(Stream())
    assert run.runs_on == SessionDevice.PROVIDER
    (((name, options),),) = asked
    assert name == "CUDAExecutionProvider"
    assert (options["user_compute_stream"], options["device_id"], options["use_tf32"]) == ("4711", "1", "0")
    assert log == [
        ("input", "t0", "cuda", 1, 1, [2, 3, 4, 5], 0x100),
        ("output", "t1", "cuda", 1, 1, [2, 3, 4, 5], 0x200),
        "run",
        "run",
    ]


def test_host_inputs_of_a_provider_kernel_are_copied_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    run = run_of(monkeypatch, log, lambda providers: FakeSession(log, ["CUDAExecutionProvider"], "Cpu"))
    log.clear()
    for _ in range(2):
        run(Stream())
    bound = ("input", "t0", "cuda", 1, 1, [2, 3, 4, 5], 0x100)
    assert log == ["waits", bound, "inputs there", "run and wait", "outputs there"] * 2


def test_an_operator_that_runs_partly_on_the_provider_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []

    def make(providers: Sequence[Any]) -> FakeSession:
        if len(providers) == 1:
            raise InvalidModelError("nodes are assigned to the CPU")
        return FakeSession(log, ["CUDAExecutionProvider", "CPUExecutionProvider"], "Cuda")

    run = run_of(monkeypatch, log, make)
    run(Stream())
    assert run.runs_on == SessionDevice.PARTLY
    assert log[0] == ("output", "t1", "cuda", 1, 1, [2, 3, 4, 5], 0x200)
    assert log[1] == "waits"


@pytest.mark.parametrize("available", [(), ("CUDAExecutionProvider",)])
def test_without_the_provider_or_its_libraries_an_operator_runs_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, available: Sequence[str]
) -> None:
    def make(providers: Sequence[Any]) -> FakeSession:
        return FakeSession([], ["CPUExecutionProvider"], "Cpu")

    assert run_of(monkeypatch, [], make, available).runs_on == SessionDevice.NO_PROVIDER


def test_a_kernel_that_fails_at_first_goes_to_the_cpu_and_one_that_fails_later_is_an_error() -> None:
    class Run:
        runs_on = SessionDevice.PROVIDER

        def __init__(self, failures: Sequence[bool]) -> None:
            self.failures = list(failures)

        def __call__(self, stream: Any) -> None:
            if self.failures.pop(0):
                raise ExecutionError("no kernel image")

    class OnCpu:
        runs_on, runs = SessionDevice.CPU, 0

        def __call__(self, stream: Any) -> None:
            self.runs += 1

    instead = OnCpu()
    run = module._WithFallback(Run([True]), instead)
    run(None)
    run(None)
    assert (run.runs_on, instead.runs) == (SessionDevice.CPU, 2)
    later = module._WithFallback(Run([False, True]), instead)
    later(None)
    with pytest.raises(ExecutionError, match="kernel image"):
        later(None)


def test_libraries_are_searched_once_silently(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    calls: list[int] = []

    def preload_dlls() -> None:
        calls.append(1)
        sys.stdout.write("Failed to load libcudart")

    fake = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider"], preload_dlls=preload_dlls)
    monkeypatch.setattr(module, "load_onnxruntime", lambda: fake)
    assert CUDA.is_available()
    assert CUDA.is_available()
    assert calls == [1]
    assert capsys.readouterr().out == ""
    fake.get_available_providers = lambda: ["CPUExecutionProvider"]
    assert not CUDA.is_available()


def test_operators_are_named_with_their_device() -> None:
    kinds = {**dict.fromkeys("abcde", ("Det",)), "top": ("TopK", "Cast"), "m": ("Mod",)}
    devices = {**dict.fromkeys(kinds, SessionDevice.PROVIDER), "top": SessionDevice.CPU}
    assert described(kinds, devices) == (
        "Det 'a', 'b', 'c' and 2 more, Mod 'm' in onnxruntime's CUDA provider;"
        " TopK+Cast 'top' in onnxruntime on the CPU"
    )


def test_precision_tf32_is_passed_to_the_provider() -> None:
    assert dict(Provider.cuda(0, Precision("tf32")).options)["use_tf32"] == "1"


def test_the_host_run_reads_and_writes_the_bytes_of_its_tensors() -> None:
    kernel, read, write = det()
    driver = HostDriver()
    stream = driver.new_stream()
    source, target = (driver.allocate(480) for _ in range(2))
    array = random_inputs(sliced().graph.inputs)["x"]
    driver.upload(source.ptr, array, stream)
    run = HostSessions(driver).open(kernel, [Tensor(source.ptr, read.view)], [Tensor(target.ptr, write.view)], stream)
    run(stream)
    found = np.empty_like(array)
    driver.download(target.ptr, found, stream)
    np.testing.assert_allclose(np.abs(found).sum(axis=1), 1, rtol=1e-5)
