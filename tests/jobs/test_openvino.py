"""OpenVINO ships if it is fastest and computes the same; without OpenVINO such a file still runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from onnx import helper
from scripted import LATENCIES_US, NEEDS_OPENVINO, fire, model_with, script_models, script_openvino, script_stages
from shipped import document

from iosched.jobs.annotate import annotated
from iosched.jobs.bench import bench
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.run import open_executor, run
from iosched.models.errors import DeviceError, MismatchError
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.openvino import openvino_model as openvino_model
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument

FAST = {"iosched": 20.0, "sequential": 30.0, "greedy": 40.0, "reference": 25.0, "openvino": 10.0}


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


@pytest.mark.parametrize(
    ("latencies_us", "ships", "without", "ratio"),
    [
        (FAST, "openvino", "iosched", "openvino/iosched"),
        ({**FAST, "sequential": 15.0}, "openvino", "sequential", "openvino/sequential"),
        ({**FAST, "reference": 15.0}, "openvino", "reference", "openvino/iosched"),
        ({**FAST, "openvino": 22.0}, "iosched", None, "openvino/iosched"),
        ({**FAST, "openvino": 50.0}, "iosched", None, "reference/iosched"),
        ({**FAST, "openvino": 15.0, "reference": 15.0}, "reference", None, "reference/iosched"),
        ({**FAST, "openvino": 20.0}, "openvino", "iosched", "openvino/iosched"),
    ],
)
def test_openvino_ships_if_it_is_fastest(
    latencies_us: dict[str, float],
    ships: str,
    without: str | None,
    ratio: str,
    settings: OptimizeSettings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script_stages(monkeypatch)
    calls = script_models(monkeypatch, latencies_us)
    result = optimize(fire(), settings)
    written = ScheduleDocument.from_json(result.document.to_json())
    assert result.shipped == written.shipped == ships
    assert result.shipped_us == latencies_us[ships]
    assert written.latency_us["openvino"] == result.openvino_us == latencies_us["openvino"]
    assert written.runtime.get("without_openvino") == without
    assert result.ratio is not None
    assert result.ratio.of == ratio
    assert (result.ratio.low > 1) == (ships == "iosched")
    assert ("OpenVINO" in result.reason) == ("openvino" in ratio)
    assert (result.kernels_after is None) == (ships == "openvino")
    assert result.kernels_before is not None
    n_calls = len(calls)
    assert optimize(fire(), settings).document == result.document
    assert len(calls) == n_calls  # the comparison is known


def test_without_openvino_nothing_mentions_it(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    result = optimize(fire(), settings)
    assert (result.openvino_us, result.notes) == (None, ())
    assert "openvino" not in replace(result.document, provenance={}).to_json()  # which lists what is installed


@pytest.mark.parametrize(
    ("error", "notes"),
    [
        (DeviceError("OpenVINO cannot run this model: no such operator"), []),
        (MismatchError("output 'gc' is off by 3"), ["outputs differ from those of onnxruntime"]),
    ],
)
def test_if_openvino_refuses_a_model_or_computes_it_wrongly_the_rest_is_compared(
    error: Exception, notes: list[str], settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    calls = script_models(monkeypatch, FAST)
    script_openvino(monkeypatch, error)
    result = optimize(fire(), settings)
    assert (result.shipped, result.openvino_us) == ("iosched", None)
    assert all(words in note for words, note in zip(notes, result.notes, strict=True))
    n_calls = len(calls)
    assert optimize(fire(), settings).document == result.document
    assert len(calls) == n_calls


def test_another_version_is_measured_again(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    calls = script_models(monkeypatch, FAST)
    monkeypatch.setattr("iosched.profiler.baselines.openvino.installed_version", lambda: "2026.4.1")
    optimize(fire(), settings)
    n_calls = len(calls)
    monkeypatch.setattr("iosched.profiler.baselines.openvino.installed_version", lambda: "2027.0.0")
    optimize(fire(), settings)
    assert len(calls) > n_calls


def test_nothing_is_merged_in_a_file_for_openvino() -> None:
    model = fire()
    assert len(annotated(model, document(model, shipped="openvino")).graph.node) == len(model.proto.graph.node)


@NEEDS_OPENVINO
def test_a_file_runs_on_openvino_where_that_is_installed() -> None:
    model = fire()
    inputs = random_inputs(model.graph.inputs)
    found = run(model, document(model, shipped="openvino"), inputs, repeats=2, reference=model, threads=2)
    assert found.description.startswith("OpenVINO 20")
    assert found.description.endswith(", 2 threads")
    assert found.notes == ()
    assert found.check is not None
    assert found.check.passed


@pytest.mark.parametrize(
    ("without", "runs"),
    [("iosched", "iosched, 2"), ("sequential", "iosched, 2"), ("reference", "onnxruntime"), (3, "onn")],
)
def test_without_openvino_a_file_runs_its_second_choice_with_a_note(
    without: object, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise DeviceError("OpenVINO is not installed; run in a clone of iosched: pip install '.[openvino]'")

    monkeypatch.setattr(openvino_model, "OpenvinoModel", missing)
    model = fire()
    executor = open_executor(model, document(model, shipped="openvino", without_openvino=without), threads=2)
    assert executor.description.startswith(runs)
    assert executor.by == ("schedule" if runs.startswith("iosched") else "reference")
    (note,) = executor.notes
    assert note.startswith("Runs without OpenVINO: OpenVINO is not installed; ")
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        assert compare(executor.run(inputs), reference.run(inputs)).passed
    executor.close()


def test_bench_notes_that_the_file_runs_without_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> None:
        raise DeviceError("OpenVINO is not installed")

    script_stages(monkeypatch)
    monkeypatch.setattr(openvino_model, "OpenvinoModel", missing)
    shipped = document(fire(), shipped="openvino")
    found = bench(fire(), shipped, names=["iosched"], threads=2, rounds=6, profile_db=tmp_path / "p.db")
    assert any("Runs without OpenVINO" in note for note in found.notes)


@NEEDS_OPENVINO
def test_optimize_compares_openvino_which_computes_the_same(settings: OptimizeSettings) -> None:
    result = optimize(fire(), replace(settings, strategy="greedy"))
    assert result.openvino_us is not None
    assert result.document.versions["openvino"] >= "2026"
    openvino = replace(result.document, shipped="openvino")
    found = run(fire(), openvino, random_inputs(fire().graph.inputs), reference=fire(), threads=2)
    assert found.check is not None
    assert found.check.passed


@NEEDS_OPENVINO
def test_a_model_that_openvino_refuses_is_optimized_without_it(settings: OptimizeSettings) -> None:
    model = model_with([helper.make_node("Bernoulli", ["x"], ["b"]), helper.make_node("Relu", ["b"], ["y"])])
    assert optimize(model, replace(settings, strategy="greedy")).openvino_us is None
