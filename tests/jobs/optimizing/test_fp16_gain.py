"""`optimize` in fp32 reports the gain of fp16 if the analytic model is certain that there is one."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, attach_host, time_by_size
from networks import zoo_model
from quantized import quantized
from scripted import fire
from small_models import branches, loaded

from iosched.cli.optimize_report import fp16_notes
from iosched.jobs import optimize as optimize_job
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.models.model import Model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.uncertainty import NORMAL, AnalyticUncertainty
from iosched.profiler.devices.cuda.device import CudaDevice
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import Fp16Gain
from iosched.profiler.devices.resolve import fp16_gain, resolve
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.baselines import sequential
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Schedule

H100_NAME = "NVIDIA H100 80GB HBM3"


def gain(device: str, model: Model, precision: str = "fp32") -> Fp16Gain | None:
    settings = OpenSettings(precision=precision)
    return fp16_gain(resolve(device), model, settings, sequential(model.graph))


def attached(name: str) -> CudaDevice:
    return CudaDevice(HostGpu(0, name, {"cudnn": "90"}, HostDriver()))


def uncertainty_of(gpu: str, precision: str, model: Model) -> AnalyticUncertainty:
    found = resolve(gpu).open(model, OpenSettings(precision=precision), None).details.uncertainty
    assert isinstance(found, AnalyticUncertainty)
    return found


def computed_us(gpu: str, precision: PrecisionName, model: Model, schedule: Schedule) -> float:
    spec = gpu_named(gpu)
    assert spec is not None
    return AnalyticCost(model.graph, spec, precision).schedule_latency_us(schedule)


@pytest.mark.parametrize("gpu", ["v100", "a100"])
def test_the_gain_is_that_of_the_analytic_model_for_the_shipped_schedule(gpu: str, tmp_path: Path) -> None:
    model = zoo_model("squeezenet")
    result = optimize(model, OptimizeSettings(device=gpu, profile_db=tmp_path / "p.db"))
    fp16_us, fp32_us = (computed_us(gpu, name, model, result.schedule) for name in ("fp16", "fp32"))
    assert result.fp16 is not None
    assert result.fp16.latency_us.value == pytest.approx(fp16_us)
    assert result.fp16.speedup.value == pytest.approx(fp32_us / fp16_us)
    assert 1 < result.fp16.speedup.low < result.fp16.speedup.value


def test_the_interval_equals_that_of_sampled_errors() -> None:
    """Launches and kernels without products have the same error in both precisions, products separate errors."""
    model, draw = zoo_model("squeezenet"), np.random.default_rng(0)
    stages = tuple(sequential(model.graph).stages)
    shared: dict[object, np.ndarray] = {}
    errors = np.zeros(20_000)
    both = [uncertainty_of("a100", name, model) for name in ("fp32", "fp16")]
    for each, sign in zip(both, (1, -1), strict=True):
        for share in each.shares(each.sum_of(stages)):
            kind = (share.kind, sign) if share.kind in ("convolution", "product") else share.kind
            common = shared.setdefault(kind, draw.normal(size=errors.size))
            own = draw.normal(size=errors.size)
            errors += sign * share.weight * (share.spread.shared * common + share.spread.own * own)
    found = both[1].speedup(both[0], stages)
    assert log(found.high / found.value) == pytest.approx(NORMAL * errors.std(), rel=0.03)
    assert found.low * found.high == pytest.approx(found.value**2)


@pytest.mark.parametrize(
    ("device", "precision"), [("k80", "fp32"), ("cpu", "fp32"), ("h100", "fp16"), ("h100", "tf32")]
)
def test_no_gain_is_reported_without_tensor_cores_or_in_other_precisions(device: str, precision: str) -> None:
    assert gain(device, zoo_model("squeezenet"), precision) is None


def test_no_gain_is_reported_within_the_uncertainty_or_for_integers(tmp_path: Path) -> None:
    result = optimize(fire(), OptimizeSettings(device="h100", profile_db=tmp_path / "p.db"))
    assert result.fp16 is None
    model = loaded(quantized(branches()))
    assert fp16_gain(attached(H100_NAME), model, OpenSettings(), sequential(model.graph)) is None


@pytest.mark.parametrize(("name", "is_known"), [(H100_NAME, True), ("NVIDIA H100 NVL", False)])
def test_an_attached_gpu_is_known_by_its_name(name: str, is_known: bool) -> None:
    model = zoo_model("inception_v3")
    found = fp16_gain(attached(name), model, OpenSettings(barriers="none", layout="nhwc"), sequential(model.graph))
    assert (found is not None) == is_known
    assert found == (gain("h100", model) if is_known else None)


@needs_compiler
def test_optimize_reports_the_gain_on_an_attached_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    asked: list[object] = []

    def known(device: CudaDevice, model: Model, settings: OpenSettings, schedule: Schedule) -> Fp16Gain:
        asked.append((device.info.name, settings.precision, schedule))
        return Fp16Gain(Interval(300.0, 250.0, 350.0), Interval(4.8, 4.0, 5.6))

    monkeypatch.setattr(optimize_job, "fp16_gain", known)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", strategy="greedy")
    result = optimize(fire(), settings)
    assert asked == [("Host 1000", "fp32", result.schedule)]
    assert result.fp16 is not None
    assert fp16_notes(result) == [
        "--precision fp16: 300.0 µs by the analytic model instead of 1.440 ms, 4.80x (4.00 to 5.60)"
    ]
