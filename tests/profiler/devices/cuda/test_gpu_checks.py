"""The self-test runs each kernel, cuDNN plans, a graph of three streams and a model on a GPU, and names failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from host_cuda import needs_compiler
from host_driver import Graph, HostDriver, HostMemory, HostPlan, Stream
from host_gpu import HostGpu
from small_models import branches

from iosched.jobs import selftest as selftest_module
from iosched.jobs.selftest import SelfTest, selftest
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError
from iosched.profiler.devices.cuda import device as about_module
from iosched.profiler.devices.cuda import gpu_checks as checks_module
from iosched.profiler.devices.cuda.device import CudaDevice, about
from iosched.profiler.devices.cuda.gpu_checks import cuda_checks
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.kernel import CudaCall, Gpu
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES
from iosched.runtime.plan import View
from iosched.scheduler.precision import PRECISIONS

pytestmark = needs_compiler

FORMS = ("fp32 nhwc", "fp32 nchw", "fp16 nhwc", "fp16 nchw")
V100 = Gpu(capability=70, processors=80)


def host_gpu(driver: HostDriver) -> HostGpu:
    return HostGpu(0, "Host 1000", {"cudnn": "91900", "driver": "13000", "cuda": "12090", "cupy": "14.2.0"}, driver)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Callable[[HostDriver], SelfTest]:
    """The self-test of a GPU with such a driver, of few kernels and a small model."""

    def run(driver: HostDriver) -> SelfTest:
        monkeypatch.setattr(selftest_module, "resolve", lambda device: CudaDevice(host_gpu(driver)))
        monkeypatch.setattr(checks_module, "SAMPLES", {name: SAMPLES[name] for name in ("AddN", "Slice")})
        monkeypatch.setattr(checks_module, "CUDNN_SAMPLES", {"Conv": CUDNN_SAMPLES["Conv"]})
        monkeypatch.setattr(checks_module, "light_model", lambda name: branches())
        monkeypatch.setattr(checks_module, "_RUNS", 2)
        return selftest("cuda")

    return run


def failed(found: SelfTest) -> list[str]:
    return [each.title for each in found.failed]


def test_a_working_gpu_passes_the_self_test(tried) -> None:
    driver = HostDriver(collects=True)
    found = tried(driver)
    assert failed(found) == []
    assert [each.title for each in found.results] == [
        "compiler: all kernels",
        *(f"kernels: {kernel} {form}" for kernel in ("AddN", "Slice") for form in FORMS),
        "graph: 3 streams",
        *("cuDNN: Conv fp32", "cuDNN: Conv tf32", "cuDNN: Conv fp16"),
        "model: light_squeezenet",
    ]
    assert "compiler 1/1, kernels 8/8, graph 1/1, cuDNN 3/3, model 1/1" in found.summary
    assert driver.graph_launches >= 3
    assert driver.mistakes == []


@pytest.mark.slow
def test_every_check_of_the_full_self_test_passes() -> None:
    checks = cuda_checks(host_gpu(HostDriver()))
    assert {*SAMPLES, *CUDNN_SAMPLES} <= {check.name.split()[0] for check in checks}
    for check in checks:
        check.run()


def test_a_kernel_with_wrong_results_is_named(tried, monkeypatch: pytest.MonkeyPatch) -> None:
    right = AddN.call

    def call(self: AddN, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        found = right(self, reads, writes)
        return replace(found, source=found.source.replace("x0 + x1", "x0 - x1"))

    monkeypatch.setattr(AddN, "call", call)
    found = tried(HostDriver())
    assert failed(found) == [*(f"kernels: AddN {form}" for form in FORMS), "graph: 3 streams"]
    assert "differs by" in found.failed[0].detail


def test_a_kernel_that_does_not_compile_is_named(tried) -> None:
    class Driver(HostDriver):
        def load(self, call: CudaCall) -> CudaCall:
            if call.entry == "add_n" and "__half" in call.source:
                raise ExecutionError("a kernel does not compile: identifier is undefined")
            return super().load(call)

    found = tried(Driver())
    assert failed(found) == ["kernels: AddN fp16 nhwc", "kernels: AddN fp16 nchw"]
    compiled, total = found.results[0].detail.split(" of ")
    assert int(compiled) < int(total.split()[0])


def test_a_missing_compiler_is_reported(tried) -> None:
    class Driver(HostDriver):
        def load(self, call: CudaCall) -> CudaCall:
            raise DeviceError("CUDA headers are not installed")

    found = tried(Driver())
    assert "compiler: all kernels" in failed(found)
    assert failed(found)[-1] == "graph: 3 streams"
    assert [each.title for each in found.results if each.outcome == "passed"] == [
        *(f"cuDNN: Conv {precision}" for precision in ("fp32", "tf32", "fp16")),
        "model: light_squeezenet",  # the small model used in its place has only convolutions
    ]


def test_a_cudnn_plan_with_wrong_results_is_reported(tried, monkeypatch: pytest.MonkeyPatch) -> None:
    right = HostPlan.execute

    def execute(self: HostPlan, addresses: Sequence[int], workspace: int, stream: Stream) -> None:
        right(self, addresses, workspace, stream)
        self.driver.fill(addresses[-1], 0, 64, stream)

    monkeypatch.setattr(HostPlan, "execute", execute)
    assert failed(tried(HostDriver())) == [
        "cuDNN: Conv fp32", "cuDNN: Conv tf32", "cuDNN: Conv fp16", "model: light_squeezenet",
    ]  # fmt: skip


def test_a_failing_capture_is_reported(tried) -> None:
    class Driver(HostDriver):
        def end_capture(self, stream: Stream) -> Graph:
            super().end_capture(stream)
            raise ExecutionError("the GPU failed: cudaErrorStreamCaptureInvalidated")

    found = tried(Driver())
    assert failed(found) == ["graph: 3 streams", "model: light_squeezenet"]
    assert all("CaptureInvalidated" in each.detail for each in found.failed)


def test_an_unjoined_stream_is_reported(tried, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that do not wait for what they read give wrong numbers, or no graph."""
    monkeypatch.setattr(HostDriver, "wait", lambda self, stream, event: None)
    assert "graph: 3 streams" in failed(tried(HostDriver()))


@pytest.mark.parametrize("launches", [1, 9])
def test_a_lost_gpu_ends_the_self_test(tried, launches: int) -> None:
    class Driver(HostDriver):
        left = launches

        def launch(self, function: CudaCall, call: CudaCall, arguments: Sequence[Any], stream: Stream) -> None:
            self.left -= 1
            super().launch(function, call, arguments, stream)

        def synchronize(self, stream: Stream) -> None:
            if self.left <= 0:
                raise DeviceLostError("the GPU stopped working: cudaErrorIllegalAddress")
            super().synchronize(stream)

    found = tried(Driver())
    (lost,) = found.failed
    assert lost.title == {1: "kernels: AddN fp32 nhwc", 9: "graph: 3 streams"}[launches]
    after = [each.outcome for each in found.results[found.results.index(lost) + 1 :]]
    assert set(after) == {"not tried"}
    assert f"not tried because the device was lost: {len(after)}" in found.summary


def test_a_gpu_without_memory_is_reported(tried) -> None:
    class Driver(HostDriver):
        def allocate(self, nbytes: int) -> HostMemory:
            raise DeviceError("the GPU has not enough memory left")

    found = tried(Driver())
    assert [each.title for each in found.results if each.outcome == "passed"] == ["compiler: all kernels"]
    assert "kernels: AddN fp32 nhwc (the GPU has not enough memory left)" in found.summary


def test_an_executor_without_a_captured_graph_fails_the_check(tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaExecutor, "is_captured", False)
    assert failed(tried(HostDriver())) == ["graph: 3 streams"]


def test_a_gpu_is_checked_in_the_precisions_that_it_supports() -> None:
    names = [check.name for check in cuda_checks(host_gpu(HostDriver(gpu=V100)))]
    assert "Separable fp16 nhwc" in names
    assert not any("tf32" in name for name in names)


def test_checks_shared_by_precisions_or_layouts_run_once() -> None:
    names = [check.name for check in cuda_checks(host_gpu(HostDriver()))]
    assert len(names) == len(set(names))
    forms: dict[str, list[str]] = {}
    for name in names:
        forms.setdefault(name.split()[0], []).append(name.partition(" ")[2])
    assert forms["Softmax"] == ["fp32 nhwc", "fp16 nhwc"]
    assert forms["Pool"] == list(FORMS)
    assert forms["Separable"] == [f"{precision} {layout}" for precision in PRECISIONS for layout in Layout]
    assert forms["MatMul"] == ["tf32", "fp16"]
    assert forms["Conv"] == list(PRECISIONS)


def test_versions_are_in_the_usual_notation(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(about_module, "_MODULE", tmp_path / "version")
    found = about(host_gpu(HostDriver()))
    expected = {"capability": "9.0", "cuda_driver": "13.0", "cuda": "12.9", "cudnn": "9.19.0", "cupy": "14.2.0"}
    assert {name: found[name] for name in expected} == expected
    assert "driver" not in found
    (tmp_path / "version").write_text("580.65.06\n")
    assert about(host_gpu(HostDriver(gpu=V100)))["driver"] == "580.65.06"
    assert about(host_gpu(HostDriver(gpu=V100)))["capability"] == "7.0"
