"""Messages about an attached GPU whose packages are missing: they name the extra that it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fake_cupy
import pytest
import standin_driver
from host_cuda import needs_compiler

from iosched.profiler.devices.cuda import facts as cuda_facts
from iosched.profiler.devices.cuda.facts import usable_names
from iosched.runtime.cuda.gpu import extras
from iosched.runtime.cuda.gpu.extras import EXTRAS

pytestmark = needs_compiler

V100 = "Tesla V100-SXM2-16GB"
CUDA12 = "in a separate environment, run in a clone of iosched: pip install '.[cuda12]'"
ATTACHED = f"{V100} is attached, but cannot be used; {CUDA12}"


@pytest.fixture(autouse=True)
def _without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.remove(monkeypatch)
    installed(monkeypatch)


def installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(cuda_facts, "package_version", lambda package: "1" if package in packages else None)


def shown(invoke) -> tuple[dict[str, Any], str]:
    facts = next(each for each in json.loads(invoke("devices", "--json").stdout)["devices"] if each["kind"] == "cuda")
    return facts, " ".join(invoke("devices").stdout.split())


def test_a_v100_without_packages_is_simulated_with_a_note_on_the_extra_it_needs(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    done = invoke("optimize", model, "--device", "v100")
    assert done.exit_code == 0, done.stderr
    assert ATTACHED in done.stderr.splitlines()
    found = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    assert found["cost"] == "analytic"
    assert found["notes"] == [ATTACHED]
    assert invoke("optimize", model, "--device", "v100", "--dry-run").stderr.splitlines() == [ATTACHED]
    assert ATTACHED in invoke("matrix", model, "--device", "v100,k80").stderr.splitlines()


def test_gpus_that_were_not_requested_are_not_mentioned(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    for device in ("h100", "cpu"):
        done = invoke("optimize", model, "--device", device, "--dry-run")
        assert (done.exit_code, done.stderr) == (0, ""), device


def test_auto_chooses_the_cpu_and_names_the_gpu_that_cannot_be_used(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    done = invoke("optimize", model, "--device", "auto", "--dry-run")
    assert (done.exit_code, done.stderr.splitlines()) == (0, [ATTACHED])


@pytest.mark.parametrize("command", ["run", "bench"])
def test_nothing_runs_on_it(invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    assert ATTACHED in complains(invoke(command, model, "--device", "v100", "-q"), 3)


@pytest.mark.parametrize("command", ["optimize", "run", "bench"])
def test_device_cuda_without_packages_is_an_error_that_names_the_extra(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    complains(invoke(command, model, "--device", "cuda", "-q"), 3, f"CuPy is not installed; {CUDA12}")
    standin_driver.install(monkeypatch, f"{V100}:70", "NVIDIA H100 80GB HBM3:90")
    complains(invoke(command, model, "--device", "cuda:1", "-q"), 3, "run in a clone of iosched: pip install '.[cuda]'")


def test_a_v100_with_cuda_13_packages_needs_those_of_cuda_12(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    fake_cupy.install(monkeypatch, capabilities=((7, 0),))
    installed(monkeypatch, *EXTRAS[0].packages)
    complains(invoke("optimize", model, "--device", "cuda"), 3, "capability 7.0, but CUDA 13 needs 7.5", CUDA12)
    assert json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)["notes"] == [ATTACHED]
    facts, text = shown(invoke)
    assert (facts["extra"], facts["usable"]) == ("cuda12", False)
    assert "[cuda12], since Tesla V100-SXM2-16GB has compute capability 7.0, and [cuda] needs 7.5 or newer" in text
    assert CUDA12 in text


def test_with_packages_of_cuda_12_a_v100_can_be_used(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    fake_cupy.install(monkeypatch, capabilities=((7, 0),), version=12090)
    installed(monkeypatch, *EXTRAS[1].packages)
    facts, text = shown(invoke)
    assert (facts["extra"], facts["missing_packages"], facts["problems"]) == ("cuda12", [], [])
    assert facts["usable"]
    assert "pip install '.[cuda" not in text


@pytest.mark.parametrize(
    ("capability", "cudnn", "cudnn_cuda", "words"),
    [
        ((7, 0), 92600, 13040, "cuDNN 9.26.0 is for CUDA 13, but CuPy is for CUDA 12"),
        ((9, 0), 92600, 13040, "run pip uninstall nvidia-cudnn-cu13, then pip install"),
        ((7, 0), 91100, 12090, "cuDNN 9.11.0 has no code for GPU 0 (compute capability 7.0)"),
    ],
)
def test_a_cudnn_that_does_not_suit_cupy_or_the_gpu_is_refused(
    invoke,
    complains,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    cudnn: int,
    cudnn_cuda: int,
    words: str,
) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    fake_cupy.install(monkeypatch, capabilities=(capability,), version=12090, cudnn=cudnn, cudnn_cuda=cudnn_cuda)
    installed(monkeypatch, *EXTRAS[1].packages)
    package = "'nvidia-cudnn-cu12>=9.10,<9.11'"
    complains(invoke("optimize", model, "--device", "cuda"), 3, words, package)
    facts, text = shown(invoke)
    assert not facts["usable"]
    assert words in text
    findings = json.loads(invoke("doctor", "--json").stdout)["findings"]
    assert any(words in each["what"] and package in each["what"] for each in findings)


def test_a_new_cudnn_runs_on_newer_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cupy.install(monkeypatch, capabilities=((7, 5), (9, 0)), version=12090, cudnn=92600)
    assert usable_names() == ("GPU 0", "GPU 1")


def test_a_gpu_that_fails_despite_all_packages_is_explained_by_devices(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70")
    fake_cupy.install(monkeypatch, capabilities=((7, 0),), version=12090)
    fake_cupy.without_library_of_cudnn(monkeypatch)
    installed(monkeypatch, *EXTRAS[1].packages)
    (note,) = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)["notes"]
    assert note == f"{V100} is attached, but cannot be used; see `iosched devices`"
    assert "libcudnn.so.9" in " ".join(shown(invoke)[0]["problems"])


@pytest.mark.parametrize(
    ("gpus", "cuda", "extra", "words"),
    [
        (["NVIDIA H100 80GB HBM3:90"], 13000, "cuda", "driver for CUDA 13.0 extra [cuda] missing cupy-cuda13x"),
        (["NVIDIA H100 80GB HBM3:90"], 12040, "cuda12", "since [cuda] needs a driver for CUDA 13: 580 or newer"),
        ([f"{V100}:70", "NVIDIA L4:89"], 13000, "cuda12", "missing cupy-cuda12x"),
        ([f"{V100}:70"], 11040, "cuda12", f"{V100}: update the NVIDIA driver to 525 or newer, up to 580"),
        (["Tesla K80:37"], 11040, None, "Tesla K80: compute capability 3.7 is not supported"),
    ],
)
def test_devices_names_the_extra_that_gpu_and_driver_need(
    invoke, monkeypatch: pytest.MonkeyPatch, gpus: list[str], cuda: int, extra: str | None, words: str
) -> None:
    standin_driver.install(monkeypatch, *gpus, cuda=cuda)
    facts, text = shown(invoke)
    assert facts["names"] == [gpu.partition(":")[0] for gpu in gpus]
    assert facts["extra"] == extra
    assert facts["driver_cuda"] == f"{cuda // 1000}.{cuda % 1000 // 10}"
    assert not facts["usable"]
    assert words in text
    assert ("pip install" in text.partition("cuda")[2]) == (extra is not None)


def test_an_installed_extra_that_suits_the_gpu_is_kept(invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    standin_driver.install(monkeypatch, "NVIDIA L4:89")
    installed(monkeypatch, *EXTRAS[1].packages)
    facts, text = shown(invoke)
    assert (facts["extra"], facts["missing_packages"]) == ("cuda12", [])
    assert "[cuda12], which is installed" in text


@pytest.mark.parametrize(
    ("status", "words"), [(803, "cannot start the driver: system has unsupported"), (100, "finds no GPU")]
)
def test_devices_reports_errors_of_the_driver(invoke, monkeypatch: pytest.MonkeyPatch, status: int, words: str) -> None:
    standin_driver.install(monkeypatch, f"{V100}:70", status=status)
    facts, text = shown(invoke)
    assert (facts["names"], facts["extra"]) == ([], None)
    assert words in text
    monkeypatch.setattr(cuda_facts, "gpu_names", lambda: [V100])  # its files list the GPU
    facts, text = shown(invoke)
    assert (facts["names"], facts["extra"]) == ([V100], "cuda12")
    assert words in text


def test_a_driver_that_does_not_load_is_reported(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "libcuda.so.1"
    broken.write_text("this is no library")
    monkeypatch.setattr(extras, "LIBRARY", str(broken))
    assert "driver cannot load the driver" in shown(invoke)[1]
    complains(invoke("optimize", model, "--device", "cuda"), 3, "CuPy is not installed", "cannot load the driver")


def test_a_machine_without_a_driver_has_no_problems(invoke) -> None:
    facts, text = shown(invoke)
    assert (facts["driver_cuda"], facts["extra"], facts["problems"]) == (None, None, [])
    assert "with a GPU, run in a clone of iosched: pip install '.[cuda]'" in text
