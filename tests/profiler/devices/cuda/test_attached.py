"""An attached GPU uses the cuDNN plans named by a schedule that was made on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, attach_host
from scripted import fire

from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.cudnn_plans import KnownCudnnPlans
from iosched.profiler.devices.cuda.device import CudaDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime.cuda.kernel import Gpu

pytestmark = needs_compiler


def test_attached_gpus_refuse_unsupported_tf32_and_stream_launches() -> None:
    def gpu(capability: int) -> AttachedGpu:
        return AttachedGpu(0, "Host 1000", {}, HostDriver(gpu=Gpu(capability, processors=80)))

    for precision in ("fp32", "fp16"):
        CudaDevice(gpu(70)).check(OpenSettings(precision=precision))
    CudaDevice(gpu(80)).check(OpenSettings(precision="tf32"))
    with pytest.raises(UsageError, match=r"Host 1000 does not support tf32, .* 8\.0: use --precision fp32 or fp16"):
        CudaDevice(gpu(75)).check(OpenSettings(precision="tf32"))
    with pytest.raises(UsageError, match="launch='streams' only applies to simulated GPUs"):
        CudaDevice(gpu(80)).check(OpenSettings(launch="streams"))
    CudaDevice(gpu(80)).check(OpenSettings(objective="throughput"))
    with pytest.raises(UsageError, match="does not support tf32"):  # a schedule that was made on another GPU
        gpu(70).backend(fire(), "tf32")


@pytest.fixture
def attached(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The stores of cuDNN plans that backends were given."""
    return attach_host(monkeypatch)


@pytest.mark.slow
def test_a_schedule_pins_plans_for_its_own_gpu_with_any_cudnn(tmp_path: Path, attached: list[object]) -> None:
    gpu = HostGpu(0, "Host 1000", {"cudnn": "91"}, HostDriver())
    document = optimize(
        fire(), OptimizeSettings(device="cuda", strategy="greedy", profile_db=tmp_path / "p.db")
    ).document
    assert gpu.cudnn_plans_of(document) == KnownCudnnPlans({"Conv": "eng7_k1=1"})
    assert gpu.cudnn_plans_of(None) == KnownCudnnPlans({})
    assert gpu.cudnn_plans_of(replace(document, device={"kind": "cuda", "name": "Host 2000"})) == KnownCudnnPlans({})
    assert gpu.cudnn_plans_of(replace(document, runtime={"cudnn_plans": ["eng7"]})) == KnownCudnnPlans({})
    assert gpu.cudnn_plans_of(replace(document, runtime={})) == KnownCudnnPlans({})
