"""`--device` means the CPU or a GPU of this machine, or the specification of another GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from host_driver import HostDriver
from host_gpu import HostGpu
from scripted import fire

from iosched.jobs.optimize import optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceError, UsageError
from iosched.profiler.devices.analytic.device import SimulatedGpu
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda.device import attached_index
from iosched.profiler.devices.gpus import gpu_called, gpu_keys, gpu_named
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import check_name, resolve, runner
from iosched.profiler.store.database import ProfileDatabase
from iosched.scheduler.cost import Suggesting
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import search


@pytest.mark.parametrize("device", ["auto", "cpu", " CPU "])
def test_auto_and_cpu_mean_the_cpu(device: str) -> None:
    assert resolve(device).info.key == runner(device, None).info.key == "cpu"


@pytest.mark.parametrize("key", gpu_keys())
def test_a_gpu_is_known_by_its_key_and_by_the_name_that_schedules_give_it(key: str) -> None:
    spec = gpu_named(key)
    assert spec is not None
    assert resolve(key.upper()) == resolve(spec.name) == SimulatedGpu(spec)
    assert gpu_called(spec.name) == spec


def test_a_simulated_gpu_cannot_run_a_model() -> None:
    with pytest.raises(DeviceError, match=r"V100.* is not attached.*optimize --device v100"):
        runner("v100", None).executor(fire(), None)


@pytest.mark.parametrize(
    ("device", "index"),
    [("cuda", 0), ("cuda:1", 1), ("CUDA:7", 7), ("cpu", None), ("auto", 0), ("h100", 1), ("H100", 1), ("v100", None)],
)
def test_an_attached_gpu_is_selected_by_its_number_or_its_name(device: str, index: int | None) -> None:
    def names() -> tuple[str, ...]:
        return ("NVIDIA A10G", "NVIDIA H100 80GB HBM3")

    assert attached_index(device, names) == index


@pytest.mark.parametrize(
    ("device", "gpu", "is_meant"),
    [
        ("v100", "Tesla V100-SXM2-16GB", True),
        ("v100", "Tesla V100-PCIE-32GB", True),
        ("tesla v100-sxm2-16gb", "Tesla V100-SXM2-16GB", True),
        ("rtx2080ti", "NVIDIA GeForce RTX 2080 Ti", True),
        ("a10", "NVIDIA A100-SXM4-80GB", False),
        ("a10", "NVIDIA A10", True),
        ("l4", "NVIDIA L40S", False),
    ],
)
def test_a_name_does_not_select_a_gpu_that_only_begins_with_it(device: str, gpu: str, is_meant: bool) -> None:
    assert (attached_index(device, lambda: (gpu,)) == 0) == is_meant


def test_without_a_gpu_auto_means_the_cpu() -> None:
    assert attached_index("auto", lambda: ()) is None
    assert attached_index("h100", lambda: ()) is None
    assert attached_index("cuda", lambda: ()) == 0


@pytest.mark.parametrize(
    ("device", "hint"),
    [
        ("v101", "did you mean v100"),
        ("cpuu", "did you mean cpu"),
        ("tpu", r"'tpu'.*\nDevices are auto, cpu, cuda\[:N\] and "),
    ],
)
def test_an_unknown_device_is_refused_with_the_list(device: str, hint: str) -> None:
    for check in (check_name, resolve, lambda name: runner(name, None)):
        with pytest.raises(UsageError, match=hint) as error:
            check(device)
        assert all(key in str(error.value) for key in gpu_keys())


def test_an_empty_device_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        check_name(" ")


@pytest.mark.parametrize("device", ["cpu", "v100"])
def test_barriers_and_layouts_are_for_attached_gpus(device: str) -> None:
    settings = OptimizeSettings(device=device, profile_db=Path(":memory:"))
    with pytest.raises(UsageError, match="--barriers only applies to attached GPUs"):
        optimize(fire(), replace(settings, barriers="none"))
    with pytest.raises(UsageError, match="--layout only applies to attached GPUs"):
        optimize(fire(), replace(settings, layout="nchw"))


@pytest.mark.parametrize(("name", "spec"), [("NVIDIA H100 80GB HBM3", "h100"), ("Host 1000", None)])
def test_an_attached_gpu_first_tries_the_schedule_of_the_analytic_model(
    monkeypatch: pytest.MonkeyPatch, name: str, spec: str | None
) -> None:
    gpu = HostGpu(0, name, {"cudnn": "90"}, HostDriver())
    monkeypatch.setattr(cuda_device, "attach", lambda _: gpu)
    with ProfileDatabase(":memory:") as database:
        cost = resolve("cuda:0").open(fire(), OpenSettings(), database).cost
    assert isinstance(cost, Suggesting)
    suggested = {stage.operators for stage in cost.suggested_stages()}
    assert suggested == (set() if spec is None else {stage.operators for stage in simulated(spec).stages})


def simulated(spec: str) -> Schedule:
    opened = resolve(spec).open(fire(), OpenSettings(), None)
    return search(opened.graph, opened.cost).schedule
