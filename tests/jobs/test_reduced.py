"""`--precision bf16` on a CPU: OpenVINO runs the model, the file records its error, and no schedule is compared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from scripted import NEEDS_OPENVINO, fire, script_models, script_openvino
from shipped import document

from iosched.jobs.bench import bench
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.optimizing.estimate import estimate
from iosched.jobs.run import open_executor, run
from iosched.models.errors import MismatchError, UsageError
from iosched.profiler.devices.cpu import device as cpu_device
from iosched.runtime.cpu import shipped as on_cpu
from iosched.runtime.cpu.precision import precisions
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.document import ScheduleDocument

NEEDS_BF16 = pytest.mark.skipif("bf16" not in precisions(), reason="this CPU has no instructions for bf16")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OptimizeSettings:
    monkeypatch.setattr(cpu_device, "check_precision", lambda precision: None)
    return OptimizeSettings(device="cpu", threads=2, profile_db=tmp_path / "p.db", precision="bf16")


@NEEDS_OPENVINO
@NEEDS_BF16
def test_openvino_ships_with_its_error_and_runs_in_that_precision(settings: OptimizeSettings) -> None:
    result = optimize(fire(), settings)
    written = ScheduleDocument.from_json(result.document.to_json())
    error = written.runtime["error"]
    assert (result.shipped, written.precision, result.ratio) == ("openvino", "bf16", None)
    assert (written.shipped_without_openvino, result.measurements, result.measured_us) == ("reference", 0, None)
    assert 1e-4 < error["max_rel"] < 2e-2
    assert result.kernels_after is None
    assert f"{error['max_rel']:.2g} of their scale" in result.reason
    inputs = random_inputs(fire().graph.inputs)
    found = run(fire(), written, inputs, reference=fire(), threads=2)
    assert found.description.endswith("2 threads, bf16")
    assert found.check is not None
    assert found.check.passed
    assert found.check.max_rel == pytest.approx(error["max_rel"])


def test_each_precision_is_measured_separately(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = script_models(monkeypatch, {"reference": 20.0, "openvino": 10.0})
    first = optimize(fire(), settings)
    assert {*calls[-1]} == {"reference", "openvino"}
    assert (first.openvino_us, first.reference_us, first.notes) == (10.0, 20.0, ())
    n_calls = len(calls)
    assert optimize(fire(), settings).document == first.document
    assert len(calls) == n_calls
    optimize(fire(), replace(settings, precision="fp16"))
    assert len(calls) > n_calls


def test_no_gain_over_fp32_is_noted(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_models(monkeypatch, {"reference": 20.0, "openvino": 20.0})
    (note,) = optimize(fire(), settings).notes
    assert note.startswith("No gain of bf16 over plain onnxruntime in fp32 was measured")


def test_outputs_beyond_the_tolerance_are_refused(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_openvino(monkeypatch, MismatchError("output 'gc' differs by 3, 0.3 of its maximum (tolerance 0.02)"))
    with pytest.raises(MismatchError, match=r"in bf16 output 'gc' differs by 3.*\nRemove --precision"):
        optimize(fire(), settings)


def test_a_schedule_is_refused_and_nothing_is_searched(settings: OptimizeSettings) -> None:
    with pytest.raises(UsageError, match="no schedule runs in bf16"):
        optimize(fire(), replace(settings, schedule_from=document(fire())))
    found = estimate(fire(), settings)
    assert (found.blocks, found.measurements) == ((), 0)
    assert found.seconds > 0


def test_bench_refuses_a_precision_without_a_baseline(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only OpenVINO runs this model in bf16"):
        bench(
            fire(), document(fire(), shipped="openvino", precision="bf16"), device="cpu", profile_db=tmp_path / "p.db"
        )


@NEEDS_OPENVINO
@pytest.mark.parametrize("written", ["bf16", "made up"])
def test_a_cpu_without_the_instructions_runs_the_file_in_fp32(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "precisions", lambda: ("fp32",))
    executor = open_executor(fire(), document(fire(), shipped="openvino", precision=written), threads=2)
    assert executor.description.endswith("2 threads")
    assert executor.notes == (f"This CPU has no {written} instructions: the model runs in fp32.",)
    executor.close()
