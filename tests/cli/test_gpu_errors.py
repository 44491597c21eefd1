"""Errors if a GPU cannot be used, is full, or is lost: one line, the fix, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fake_cupy
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver, HostMemory

from iosched.models.errors import DeviceError, DeviceLostError
from iosched.models.model import Model
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda import facts as cuda_facts
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.device import attached_index
from iosched.profiler.devices.cuda.facts import probe, usable_names
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.kernel import Precision

V100 = ((7, 0),)


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)


CASES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "no CuPy": (lambda patch: without(patch, "cupy"), "pip install '.[cuda]'"),
    "no driver": (lambda patch: fake_cupy.install(patch, status=35, driver=0), "no NVIDIA driver"),
    "an old driver": (lambda patch: fake_cupy.install(patch, status=35, driver=12040), "update the NVIDIA driver"),
    "no GPU": (lambda patch: fake_cupy.install(patch, status=100), "CUDA_VISIBLE_DEVICES"),
    "another failure": (lambda patch: fake_cupy.install(patch, status=802), "nvidia-smi"),
    "an old GPU": (lambda patch: fake_cupy.install(patch, capabilities=V100), "compute capability 7.0"),
}


@pytest.mark.parametrize("command", ["optimize", "run"])
@pytest.mark.parametrize("case", CASES)
def test_a_gpu_that_cannot_be_used(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch, case: str, command: str
) -> None:
    arrange, words = CASES[case]
    arrange(monkeypatch)
    complains(invoke(command, model, "--device", "cuda"), 3, words)


def test_a_missing_gpu_is_refused(invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    complains(invoke("optimize", model, "--device", "cuda:3"), 3, "no GPU 3", "has 1")


def test_cudnn_that_is_missing(invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    without(monkeypatch, "cudnn")
    complains(invoke("optimize", model, "--device", "cuda"), 3, "frontend is not installed", "pip install")
    fake_cupy.without_library_of_cudnn(monkeypatch)
    complains(invoke("optimize", model, "--device", "cuda"), 3, "libcudnn.so.9", "pip install")


def test_an_old_gpu_is_reported_before_missing_packages(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_cupy.install(monkeypatch, capabilities=V100)
    without(monkeypatch, "cudnn")
    complains(invoke("optimize", model, "--device", "cuda"), 3, "CUDA 13 needs 7.5")


def test_gpus_that_cannot_be_used_are_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, capabilities=((7, 0), (9, 0)))
    assert usable_names() == ("", "GPU 1")
    assert attached_index("auto", usable_names) == 1
    assert attached_index("gpu 0", usable_names) is None
    fake_cupy.without_library_of_cudnn(monkeypatch)
    assert attached_index("auto", usable_names) is None


class FullDriver(HostDriver):
    def allocate(self, nbytes: int) -> HostMemory:
        raise DeviceError("the GPU has not enough memory left: try a smaller batch")


class LostDriver(HostDriver):
    def launch_graph(self, graph: Any, stream: Any) -> None:
        if self.graph_launches > 2:
            raise DeviceLostError("the GPU stopped working: cudaErrorLaunchFailure\nsee `nvidia-smi`")
        super().launch_graph(graph, stream)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[HostDriver], None]:
    """Attaches a GPU with this driver."""

    class HostGpu(AttachedGpu):
        def backend(self, model: Model, precision: str, *_: object) -> CudaBackend:
            assert isinstance(self.driver, HostDriver)
            return CudaBackend(model, self.driver, HostChoice(self.driver), Precision(precision))

    def attach_to(driver: HostDriver) -> None:
        monkeypatch.setattr(cuda_device, "attach", lambda index: HostGpu(index, "Host", {"cudnn": "9"}, driver))

    return attach_to


@needs_compiler
def test_a_gpu_that_is_full(invoke, complains, model: Path, use) -> None:
    use(FullDriver())
    complains(invoke("optimize", model, "--device", "cuda", "-o", "o.onnx"), 3, "smaller batch")
    assert not Path("o.onnx").exists()


@needs_compiler
def test_a_gpu_that_is_lost_while_it_is_measured(invoke, complains, model: Path, use) -> None:
    use(LostDriver())
    complains(invoke("optimize", model, "--device", "cuda", "-o", "o.onnx"), 1, "LaunchFailure", "nvidia-smi")
    assert not Path("o.onnx").exists()


@needs_compiler
def test_a_gpu_that_is_lost_while_it_runs(invoke, complains, model: Path, use) -> None:
    driver = LostDriver()
    use(driver)
    driver.graph_launches = 3
    complains(invoke("run", model, "--device", "cuda"), 1, "LaunchFailure")


def shown(invoke) -> tuple[dict[str, Any], str]:
    facts = next(each for each in json.loads(invoke("devices", "--json").stdout)["devices"] if each["kind"] == "cuda")
    return facts, " ".join(invoke("devices").stdout.split())


def test_devices_show_a_gpu_without_any_packages(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "cupy")
    monkeypatch.setattr(cuda_facts, "package_version", lambda package: None)
    monkeypatch.setattr(cuda_facts, "_names_from_files", list)
    monkeypatch.setattr(cuda_facts, "_names_from_tool", lambda: ["NVIDIA H100"])
    facts, text = shown(invoke)
    assert facts["names"] == ["NVIDIA H100"]
    assert not facts["usable"]
    assert "cupy-cuda13x" in text
    assert "nvidia-cudnn-frontend" in text
    assert "pip install '.[cuda]'" in text


@pytest.mark.parametrize("case", ["an old driver", "an old GPU"])
def test_devices_show_why_a_gpu_cannot_be_used(invoke, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    arrange, words = CASES[case]
    arrange(monkeypatch)
    monkeypatch.setattr(cuda_facts, "package_version", lambda package: "1")
    monkeypatch.setattr(cuda_facts, "gpu_names", lambda: ["some GPU"])
    facts, text = shown(invoke)
    assert not facts["usable"]
    assert words in " ".join(facts["problems"])
    assert "--selftest" not in text
    assert words in text


def test_devices_show_a_gpu_that_can_be_used(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch)
    monkeypatch.setattr(cuda_facts, "package_version", lambda package: "1")
    monkeypatch.setattr(cuda_facts, "gpu_names", lambda: ["GPU 0"])
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    facts, text = shown(invoke)
    assert facts["usable"]
    assert facts["problems"] == []
    assert "no CUDA provider" in text
    assert "iosched devices --selftest" in text
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    assert probe().remarks == ()


def test_nvidia_smi_lists_the_gpus_if_the_files_of_the_driver_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho NVIDIA A100\necho NVIDIA L4\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(cuda_facts, "_names_from_files", list)
    assert cuda_facts.gpu_names() == ["NVIDIA A100", "NVIDIA L4"]
    tool.write_text("#!/bin/sh\necho NVIDIA-SMI has failed\nexit 9\n")
    assert cuda_facts.gpu_names() == []


@needs_compiler
def test_running_a_schedule_on_another_gpu_is_a_warning(
    invoke, model: Path, use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(HostDriver())
    for name, elsewhere in (("Host", False), ("Other", True), ("", False)):
        monkeypatch.setattr("iosched.profiler.devices.cuda.device.usable_names", lambda name=name: (name,))
        assert invoke("optimize", model, "--device", "cuda", "-o", "o.onnx", "--strategy", "greedy").exit_code == 0
        done = invoke("run", "o.onnx", "--device", "cuda", "--check")
        assert done.exit_code == 0, done.stderr
        assert ("made for Host, not for Other" in done.stderr) == elsewhere
        assert ("made for" in done.stderr) == elsewhere
