"""The self-test on the real CuPy and cuDNN frontend, over a CUDA emulated in host memory that fails as CUDA does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import desk_cudnn
import desk_cupy
import pytest
from desk_cuda import CAPTURE_INVALIDATED, ILLEGAL_ADDRESS, DeskCuda
from small_models import branches

from iosched.jobs.selftest import SelfTest, selftest
from iosched.models.errors import DeviceError
from iosched.profiler.devices.cuda import gpu_checks as checks_module
from iosched.runtime.cuda.gpu.cupy import CupyDriver
from iosched.runtime.cuda.kernel import CudaCall, Gpu
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES
from iosched.runtime.plan import View

V100 = Gpu(capability=70, processors=80)

_MISSING = desk_cupy.missing()
if _MISSING is None:
    desk_cupy.install()  # before anybody imports CuPy; cuDNN needs its driver for a description of a GPU
    _MISSING = desk_cudnn.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[DeskCuda]:
    """One GPU, which is tried with few kernels and a small model."""
    monkeypatch.setattr(checks_module, "SAMPLES", {name: SAMPLES[name] for name in ("AddN", "Slice")})
    monkeypatch.setattr(checks_module, "CUDNN_SAMPLES", {"Dense": CUDNN_SAMPLES["Dense"]})
    monkeypatch.setattr(checks_module, "light_model", lambda name: branches())
    monkeypatch.setattr(checks_module, "_RUNS", 2)
    with desk_cupy.one_gpu() as found:
        desk_cudnn.install(monkeypatch, found)
        yield found


def failed(found: SelfTest) -> list[str]:
    return [each.title for each in found.failed]


def test_a_working_gpu_passes_the_self_test(desk: DeskCuda) -> None:
    found = selftest("cuda")
    assert failed(found) == []
    assert found.name == "NVIDIA Desk"
    assert {"capability", "cuda_driver", "cuda", "nvrtc", "cupy", "cudnn", "nvidia-cudnn-frontend"} <= set(found.about)
    assert found.about["cudnn"].startswith("9.")
    assert desk.launched.count("cudnn") >= 4


def test_a_kernel_that_the_compiler_refuses_is_named(desk: DeskCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    right = AddN.call

    def call(self: AddN, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        found = right(self, reads, writes)
        return replace(found, source=found.source.replace("x0 + x1", "x0 + undefined"))

    monkeypatch.setattr(AddN, "call", call)
    found = selftest("cuda")
    assert {name.split(" fp")[0] for name in failed(found)} == {"kernels: AddN", "graph: 3 streams"}
    assert all('identifier "undefined" is undefined' in each.detail for each in found.failed)


def test_a_failed_capture_does_not_break_later_ones(desk: DeskCuda) -> None:
    desk.fail("streamEndCapture", CAPTURE_INVALIDATED)
    found = selftest("cuda")
    assert failed(found) == ["graph: 3 streams"]
    assert "cudaErrorStreamCaptureInvalidated" in found.failed[0].detail


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("streamSynchronize", "kernels: AddN fp32 nhwc"),
        ("graphLaunch", "graph: 3 streams"),
        ("cudnnBackendExecute", "cuDNN: Dense fp32"),
    ],
)
def test_a_kernel_that_breaks_memory_loses_the_gpu(desk: DeskCuda, call: str, name: str) -> None:
    """Every call after the first that reports an illegal address reports it too."""
    desk.fail(call, ILLEGAL_ADDRESS)
    found = selftest("cuda")
    assert failed(found) == [name]
    assert "the GPU stopped working" in found.failed[0].detail
    behind = found.results[found.results.index(found.failed[0]) + 1 :]
    assert {each.outcome for each in behind} == {"not tried"}


@pytest.mark.slow
def test_every_kernel_and_plan_builds_for_a_v100(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel is compiled for 7.0, and every plan of cuDNN is built for a described V100."""
    with desk_cupy.one_gpu() as desk:
        desk.gpu = V100
        if int(CupyDriver().facts().versions["cuda"]) >= 13000:
            pytest.skip("this CuPy is for CUDA 13, which has no code for a V100")
        desk_cudnn.install(monkeypatch, desk, "v100")
        compiler = importlib.import_module("cupy.cuda.compiler")
        monkeypatch.setattr(compiler, "_get_arch", lambda: "70")  # CuPy remembers what GPU 0 was before
        found = selftest("cuda")
        assert found.passed, (found.summary, [each.detail for each in found.failed])
        assert found.about["capability"] == "7.0"
        assert not any("tf32" in each.name for each in found.results)


def test_without_cudnn_nothing_is_tried(desk: DeskCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(DeviceError, match="frontend is not installed"):
        selftest("cuda")
