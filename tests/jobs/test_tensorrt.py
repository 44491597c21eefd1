"""TensorRT ships on a GPU if it is fastest and computes the same; without it such a file runs by its schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from gpu_plans import expected_outputs, relative_error
from host_cuda import needs_compiler
from host_gpu import attach_host, on_host, time_by_size
from scripted import Asked, fire
from tensorrt_stand_in import LISTED, stand_in

from iosched.cli.common.source import not_shipped_text
from iosched.cli.optimize_report import as_object, table_rows
from iosched.jobs.annotate import annotated
from iosched.jobs.bench import bench
from iosched.jobs.optimize import OptimizeResult, optimize
from iosched.jobs.run import open_executor, run
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceError, OtherDeviceWarning
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.document import ScheduleDocument

pytestmark = [needs_compiler, pytest.mark.filterwarnings("ignore:Specified provider")]

MODEL = fire()
INPUTS = random_inputs(MODEL.graph.inputs)
Install = Callable[..., Callable[[], list[Any]]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a TensorRT whose runs take `us`; sequential runs take 60 us, those by a schedule less."""
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda fault="", us=1.0: stand_in(monkeypatch, tmp_path / "log", fault, us)


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", layout="nchw")


def ships(result: OptimizeResult) -> tuple[str, str]:
    assert result.ratio is not None
    return result.shipped, result.ratio.of


@pytest.mark.parametrize(
    ("us", "expected"),
    [
        (1.0, ("tensorrt", "tensorrt/iosched")),
        (45.0, ("iosched", "tensorrt/iosched")),
        pytest.param(90.0, ("iosched", "sequential/iosched"), marks=pytest.mark.slow),
    ],
)
def test_tensorrt_ships_if_it_is_fastest(
    us: float, expected: tuple[str, str], install: Install, settings: OptimizeSettings
) -> None:
    log = install(us=us)
    result = optimize(MODEL, settings)
    written = ScheduleDocument.from_json(result.document.to_json())
    assert ships(result) == expected
    assert written.shipped == result.shipped
    assert written.latency_us["tensorrt"] == us
    assert written.runtime.keys() == {"precision", "layout", "barriers", "cudnn_plans"}
    assert [note for note in result.notes if "TensorRT" in note] == []
    assert (result.shipped == "tensorrt") == (result.kernels_after is None) == (result.check is None)
    assert as_object(result)["latency_us"]["tensorrt"] == us  # type: ignore[index]
    rows = dict(table_rows(result))
    assert rows["before"].endswith({"tensorrt/iosched": "TensorRT"}.get(expected[1], "sequential")) or us == 1.0
    assert (rows["kernels"].endswith("unknown for TensorRT after")) == (us == 1.0)
    assert optimize(MODEL, settings).document == result.document
    assert [entry["built"] for entry in log()] == [True, False]  # the second engine is from the cache


@pytest.mark.slow
def test_tensorrt_is_compared_in_the_requested_precision(install: Install, settings: OptimizeSettings) -> None:
    log = install()
    for precision in ("tf32", "fp16"):
        assert optimize(MODEL, replace(settings, precision=precision)).shipped == "tensorrt"
    assert [(entry["tf32"], entry["trt_fp16_enable"]) for entry in log()] == [(None, "False"), (None, "True")]


def test_without_tensorrt_a_note_gives_the_reason(install: Install, settings: OptimizeSettings) -> None:
    install("not installed")
    result = optimize(MODEL, settings)
    assert result.shipped == "iosched"
    (note,) = result.notes
    assert (
        note
        == "TensorRT was not compared: TensorRT's libnvinfer.so.10 does not load; pip install 'tensorrt-cu13==10.*'."
    )
    assert "tensorrt" not in replace(result.document, provenance={}).latency_us


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param(
            "falls back silently",
            "TensorRT was not compared: TensorRT does not run the whole model, but CPUExecution",
            marks=pytest.mark.slow,
        ),
        ("computes otherwise", "TensorRT was not compared because its outputs differ from those of onnxruntime: "),
        ("dies", "TensorRT was not compared: its process ended with status 7."),
    ],
)
def test_a_failure_of_tensorrt_affects_only_its_comparison(
    fault: str, words: str, install: Install, settings: OptimizeSettings
) -> None:
    install(fault)
    result = optimize(MODEL, settings)
    assert result.shipped == "iosched"
    (note,) = result.notes
    assert note.startswith(words)
    assert "tensorrt" not in result.document.latency_us


def test_building_an_engine_counts_against_the_budget(install: Install, settings: OptimizeSettings) -> None:
    install("builds slowly")
    result = optimize(MODEL, replace(settings, budget_s=8.0))
    (note,) = (each for each in result.notes if "TensorRT" in each)
    assert note == "TensorRT was not compared: its process did not open the model within 4 s."
    assert result.shipped == "iosched"
    assert result.seconds < 30  # a build takes 60


def test_an_accepted_interruption_is_not_delayed_by_a_build(install: Install, settings: OptimizeSettings) -> None:
    log, interrupt = install(), Asked(answer=True)
    interrupt.came = True
    result = optimize(MODEL, settings, interrupt=interrupt)
    assert interrupt.times_asked == 1
    assert log() == []
    assert [note for note in result.notes if "TensorRT" in note] == []


@pytest.fixture(params=["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def shipped(request: pytest.FixtureRequest, install: Install, settings: OptimizeSettings) -> ScheduleDocument:
    install()
    return optimize(MODEL, replace(settings, precision=request.param)).document


def limit(document: ScheduleDocument) -> float:
    return 1e-4 if document.precision == "fp32" else 2e-2


def test_a_file_runs_in_tensorrt_where_that_is_installed(shipped: ScheduleDocument) -> None:
    found = run(MODEL, shipped, INPUTS, repeats=2, reference=MODEL, device="cuda")
    assert found.description.startswith("TensorRT 10.13.2 in onnxruntime 1.")
    assert found.description.endswith(f", Host 1000, {shipped.precision}")
    assert (found.notes, found.timing.median_us) == ((), 1.0)
    assert found.check is not None
    assert found.check.passed


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_file_runs_by_its_schedule_without_tensorrt(
    device: str, shipped: ScheduleDocument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: LISTED[1:])
    other = pytest.warns(OtherDeviceWarning, match="made for Host 1000") if device == "cpu" else nullcontext()
    with other:
        executor = open_executor(MODEL, shipped, device=device)
    assert executor.by == "schedule"
    assert executor.description.startswith("iosched, ")
    notes = [note for note in executor.notes if "TensorRT" in note]
    assert [note.startswith("Runs without TensorRT: ") for note in notes] == [True] * (device == "cuda")
    assert relative_error(executor.run(INPUTS), expected_outputs(MODEL, INPUTS)) < limit(shipped)
    executor.close()


def test_arrays_on_the_gpu_run_by_the_schedule(shipped: ScheduleDocument) -> None:
    executor = open_executor(MODEL, shipped, device="cuda")
    found = {name: on_host(array) for name, array in executor.run_on_device(INPUTS).items()}
    assert relative_error(found, expected_outputs(MODEL, INPUTS)) < limit(shipped)
    executor.close()


def test_a_file_names_its_runtime_and_has_no_merged_operators(shipped: ScheduleDocument) -> None:
    assert not shipped.is_shipped
    assert not_shipped_text(shipped) == (
        "'iosched run' does not use this schedule where TensorRT is installed, because TensorRT ships."
    )
    assert len(annotated(MODEL, shipped).graph.node) == len(MODEL.proto.graph.node)
    by_schedule = run(MODEL, shipped, INPUTS, device="cuda", by_schedule=True)
    assert by_schedule.description.startswith("iosched, ")


def test_bench_measures_tensorrt_only_on_request(install: Install, settings: OptimizeSettings) -> None:
    log = install(us=5.0)
    found = bench(MODEL, None, device="cuda", rounds=6, profile_db=settings.profile_db)
    assert "onnxruntime-tensorrt" not in [row.name for row in found.rows] + [name for name, _ in found.missing]
    found = bench(MODEL, None, names=["onnxruntime-tensorrt"], device="cuda", rounds=6, profile_db=settings.profile_db)
    assert [(row.name, row.latency_us) for row in found.rows] == [("sequential", 60.0), ("onnxruntime-tensorrt", 5.0)]
    assert len(log()) == 1


@pytest.mark.parametrize("name", ["onnxruntime-tensorrt", pytest.param("iosched", marks=pytest.mark.slow)])
def test_a_process_that_dies_in_bench_costs_only_its_own_row(
    name: str, install: Install, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    document = None if name == "onnxruntime-tensorrt" else optimize(MODEL, settings).document
    install("dies")
    names = ["greedy", name]
    found = bench(MODEL, document, names=names, device="cuda", rounds=6, profile_db=settings.profile_db)
    assert [row.name for row in found.rows] == ["sequential", "greedy"]
    assert found.missing == ((name, "its process ended with status 7"),)
    with pytest.raises(DeviceError, match="its process ended with status 7"):
        bench(MODEL, document, names=names, baseline=name, device="cuda", rounds=6, profile_db=settings.profile_db)
