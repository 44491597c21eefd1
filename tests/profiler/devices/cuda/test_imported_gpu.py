"""Optimizing for a simulated GPU with stages measured on an attached one, which is emulated in host memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, time_by_size
from scripted import fire
from small_models import separable_operators, separables

from iosched.jobs.optimize import OptimizeResult, optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.scaled import MeasuredFactor, scaling
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans
from iosched.profiler.devices.cuda.imported_gpu import imported_profile
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase, export_lines, import_lines
from iosched.profiler.store.tables import ChoiceRow, Row, StageRow
from iosched.runtime.cuda.kernel import Gpu, Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.timed_choices import fusion_key, layout_key
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.unit_graph import Unit

pytestmark = needs_compiler

NAME = "Tesla V100-SXM2-32GB"
V100 = Gpu(capability=70, processors=80)


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The output of `profile export` on a machine that optimized a small network on an attached V100."""
    return measured_there(tmp_path / "there.db", monkeypatch)


def measured_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, precision: str = "fp32", units: tuple[Unit, ...] = ()
) -> list[str]:
    with monkeypatch.context() as there:
        time_by_size(there)
        gpu = HostGpu(0, NAME, {"cuda": "12090", "cudnn": "91002"}, HostDriver(gpu=V100))
        there.setattr(cuda_device, "attach", lambda index: gpu)
        settings = OptimizeSettings(device="cuda", profile_db=path, precision=precision, exhaustive=True, units=units)
        optimize(fire(), settings)
    with ProfileDatabase(path) as database:
        return list(export_lines(database))


def imported(path: Path, lines: list[str], *, without: str = "none") -> OptimizeSettings:
    """Settings for a simulated V100 after the import of this profile, without the rows of one table."""
    with ProfileDatabase(path) as database:
        import_lines(database, [line for line in lines if f'"table":"{without}"' not in line])
    return OptimizeSettings(device="v100", profile_db=path)


def note_of(result: OptimizeResult) -> str:
    (found,) = (note for note in result.notes if "Stages measured on" in note)
    return found


def test_a_schedule_of_imported_stages_takes_their_measured_latency(tmp_path: Path, profile: list[str]) -> None:
    result = optimize(fire(), imported(tmp_path / "here.db", profile))
    assert result.cost == "analytic"
    assert result.measured_share == pytest.approx(1)
    assert result.document.runtime == {
        "precision": "fp32", "launch": "graph", "measured_share": result.measured_share,
    }  # fmt: skip
    with ProfileDatabase(tmp_path / "here.db") as database:
        found = imported_profile(database, fire(), "v100", "fp32").measured
        assert found is not None
        assert result.predicted_us == sum(found.known_us(stage) or 0.0 for stage in result.schedule.stages)
    assert NAME in note_of(result)
    assert "cudnn 91002" in note_of(result)


def test_units_take_their_imported_latencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = (("fs", "f3"), ("gs", "g1"))
    lines = measured_there(tmp_path / "there.db", monkeypatch, units=units)
    result = optimize(fire(), replace(imported(tmp_path / "here.db", lines), units=units))
    assert result.measured_share == pytest.approx(1)
    with ProfileDatabase(tmp_path / "here.db") as database:
        found = imported_profile(database, fire(), "v100", "fp32").measured
        assert found is not None
        assert result.predicted_us == sum(found.known_us(stage) or 0.0 for stage in result.schedule.stages)


def test_unmeasured_stages_are_scaled_by_the_measured_operators(tmp_path: Path, profile: list[str]) -> None:
    """Only `f1`, and stages with its key, remain in the profile: the model's latencies of all others are scaled."""
    alone = Stage(Strategy.CONCURRENT, (("f1",),))
    settings = imported(tmp_path / "all.db", profile)
    with ProfileDatabase(settings.profile_db) as database, ProfileDatabase(tmp_path / "one.db") as one:
        found = imported_profile(database, fire(), "v100", "fp32").measured
        assert found is not None
        one.merge([row for row in database.rows() if _stage_of(row) in (None, found.signature(alone))])
    gpu = gpu_named("v100")
    assert gpu is not None
    model = AnalyticCost(fire().graph, gpu)
    own = (found.known_us(alone) or 0.0) / model.stage_latency_us(alone)
    expected = scaling([MeasuredFactor("convolution", own)])
    plain = optimize(fire(), replace(settings, profile_db=None, strategy="sequential", resume=False))
    result = optimize(fire(), replace(settings, profile_db=tmp_path / "one.db", strategy="sequential"))
    assert plain.measured_share is None
    factors = [
        own if found.signature(stage) == found.signature(alone) else expected.of(model.operator_kind(*stage.operators))
        for stage in result.schedule.stages
    ]
    us = list(map(model.stage_latency_us, result.schedule.stages))
    assert result.predicted_us == pytest.approx(sum(factor * each for factor, each in zip(factors, us, strict=True)))
    known_us = sum(own * each for factor, each in zip(factors, us, strict=True) if factor == own)
    assert result.measured_share == pytest.approx(known_us / result.predicted_us, abs=1e-4)
    assert 0 < known_us < result.predicted_us
    assert f"multiplied by {expected.factor:.2f}" in note_of(result)


def test_the_best_schedule_of_only_measured_stages_is_reported(tmp_path: Path, profile: list[str]) -> None:
    """All operators were measured alone, so there is one; concurrent stages are computed, and faster."""
    settings = imported(tmp_path / "all.db", profile)
    with ProfileDatabase(settings.profile_db) as database, ProfileDatabase(tmp_path / "alone.db") as alone:
        found = imported_profile(database, fire(), "v100", "fp32").measured
        assert found is not None
        kept = {None, *(found.signature(stage) for stage in sequential(fire().graph).stages)}
        alone.merge([row for row in database.rows() if _stage_of(row) in kept])
    result = optimize(fire(), replace(settings, profile_db=tmp_path / "alone.db"))
    assert result.sequential_measured_share == 1
    assert 0 < (result.measured_share or 0) < 1
    assert result.predicted_us < result.sequential_us
    assert f"uses only measured stages takes {result.sequential_us:,.1f} us" in result.notes[-1]


def _stage_of(row: Row) -> str | None:
    return row.signature if isinstance(row, StageRow) else None


@pytest.mark.parametrize(
    ("wanted", "change", "words"),
    [
        ({"device": "t4"}, {}, None),
        ({"device": "v100pcie"}, {}, "measured on Tesla V100-SXM2-32GB: use --device v100 for them"),
        ({"precision": "fp16"}, {}, "in fp32: use --precision fp32 for them"),
        ({}, {r"\"lowering\":\"": r"\"lowering\":\"1"}, "by an incompatible iosched: measure them again with"),
        ({}, {r"\"threads\":": r"\"threads\":1"}, "by an incompatible iosched"),
        ({}, {NAME: "Tesla V100-SXM2-32GB MIG 1g.4gb"}, "is another card than Tesla V100-SXM2-16GB"),
        ({}, {'"signature":"': '"signature":"0'}, "none of this model's operators"),
        ({}, {r"\"precision\":\"fp32": r"\"precision\":\"fp64"}, None),
        ({}, {r"{\"kind": r"[{\"kind"}, None),
        ({"resume": False}, {}, None),
    ],
)
def test_the_reason_why_stages_are_ignored_is_reported(
    tmp_path: Path, profile: list[str], wanted: dict[str, str], change: dict[str, str], words: str | None
) -> None:
    lines = "\n".join(profile)
    for old, new in change.items():
        assert old in lines
        lines = lines.replace(old, new)
    result = optimize(fire(), replace(imported(tmp_path / "here.db", lines.split("\n")), **wanted))
    assert result.measured_share is None
    assert len(result.notes) == (words is not None)
    assert words is None or words in result.notes[0]


def test_a_malformed_device_key_is_no_gpu(tmp_path: Path) -> None:
    with ProfileDatabase(tmp_path / "p.db") as database:
        for key in ("", "{}", "[" * 100_000, '{"kind": "cuda"}', '{"kind": "cuda", "name": 7}'):
            database.keep_stage("a", key, summarize([1.0]))
        found = imported_profile(database, fire(), "v100", "fp32")
        assert (found.measured, found.notes) == (None, ())


def test_a_profile_of_failed_stages_does_not_prevent_a_schedule(tmp_path: Path, profile: list[str]) -> None:
    lines = [line for line in profile if '"table":"choice"' in line]
    stages = [line for line in profile if '"table":"stage"' in line]
    lines += [re.sub(r'"samples_us":\[.*?\]', '"samples_us":null', line) for line in stages]
    assert optimize(fire(), imported(tmp_path / "none.db", lines)).measured_share is None
    with ProfileDatabase(imported(tmp_path / "whole.db", profile).profile_db) as database:
        found = imported_profile(database, fire(), "v100", "fp32").measured
        assert found is not None
    signature = found.signature(Stage(Strategy.CONCURRENT, (("f1",),)))
    settings = imported(tmp_path / "one.db", [*lines, *(line for line in stages if signature in line)])
    with ProfileDatabase(settings.profile_db) as database:
        row = next(row for row in database.rows() if _stage_of(row) == signature)
        assert isinstance(row, StageRow)
        database.keep_stage(signature, row.device, summarize([5.0]), "again")
    result = optimize(fire(), settings)
    assert result.measured_share is not None
    assert math.isfinite(result.predicted_us)


def test_nothing_is_written_where_a_profile_is_read(tmp_path: Path, profile: list[str]) -> None:
    settings = imported(tmp_path / "here.db", profile, without="choice")
    with ProfileDatabase(settings.profile_db) as database:
        before = list(database.rows())
        optimize(fire(), settings)
        assert list(database.rows()) == before


def test_of_several_versions_the_one_with_most_operators_is_taken(tmp_path: Path, profile: list[str]) -> None:
    settings = imported(tmp_path / "here.db", profile)
    whole = optimize(fire(), settings)
    with ProfileDatabase(settings.profile_db) as database:
        rows = [row for row in database.rows() if isinstance(row, StageRow)]
        database.merge([measured_later(rows[0])])
    result = optimize(fire(), settings)
    assert "cudnn 91002" in note_of(result)
    assert result.predicted_us == whole.predicted_us


def test_of_versions_with_equally_many_operators_the_latest_is_used(tmp_path: Path, profile: list[str]) -> None:
    settings = imported(tmp_path / "here.db", profile)
    with ProfileDatabase(settings.profile_db) as database:
        database.merge([measured_later(row) for row in database.rows() if isinstance(row, StageRow | ChoiceRow)])
    result, before = optimize(fire(), settings), optimize(fire(), imported(tmp_path / "before.db", profile))
    assert result.predicted_us == pytest.approx(2 * before.predicted_us)
    assert "cudnn 99999" in note_of(result)
    assert "2199-01-01" in note_of(result)


def measured_later(row: StageRow | ChoiceRow) -> Row:
    """The same stage, measured later with another cuDNN and taking twice as long; a choice as it is."""
    device = row.device.replace("91002", "99999")
    if isinstance(row, ChoiceRow):
        return ChoiceRow(device, row.key, row.value)
    samples_us = None if row.samples_us is None else tuple(2 * us for us in row.samples_us)
    return StageRow(device, row.signature, row.turn, datetime(2199, 1, 1, tzinfo=UTC), samples_us)


def test_choices_between_kernels_come_with_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A V100 has a choice of layouts: stages in the chosen one are found by lowering the model in that layout."""
    lines = measured_there(tmp_path / "there.db", monkeypatch, precision="fp16")
    settings = replace(imported(tmp_path / "here.db", lines), precision="fp16")
    assert optimize(fire(), settings).measured_share == pytest.approx(1)
    assert any('"table":"choice"' in line and "layout " in line for line in lines)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("make", [separables, lambda: load_model(light_model("light_squeezenet").SerializeToString())])
def test_a_model_is_lowered_as_on_the_attached_gpu(make: Callable[[], Model], precision: PrecisionName) -> None:
    """With the choices made there: the layout, and operators of one kernel or two."""
    model, gpu = make(), HostGpu(0, NAME, {"cudnn": "91002"}, HostDriver(gpu=V100))
    network = LoweredModel(model, Precision(precision), preferred_layout(precision, V100), gpu=V100)
    other = network.in_layout(next(each for each in Layout if each is not network.layout))
    stages = [*sequential(model.graph).stages, *greedy(model.graph).stages]
    key, keys = gpu.key(precision), []
    with ProfileDatabase(None) as database:
        plans = StoredCudnnPlans(database, key, times=False)
        database.keep_stage("any", key, summarize([1.0]))
        choices = {layout_key(network): f"{other.layout.value} 1.00us, {network.layout.value} 2.00us"}
        choices |= {fusion_key(other, name): "one kernel, variant 1" for name in separable_operators(model)[1:]}
        for chosen in ({}, choices):
            for choice, value in chosen.items():
                database.choose(choice, key, value)
            there = gpu.backend(model, precision, plans)
            first = there.signature(stages[0])
            database.keep_stage(first, key, summarize([1.0]))
            found = imported_profile(database, model, "v100", precision).measured
            assert found is not None
            assert list(map(found.signature, stages)) == list(map(there.signature, stages))
            keys.append(first)
    assert len(set(keys)) == 2, "in another layout stages have other signatures"


def test_the_second_measurement_of_a_stage_is_used_where_there_is_one(tmp_path: Path, profile: list[str]) -> None:
    settings = imported(tmp_path / "here.db", profile)
    with ProfileDatabase(settings.profile_db) as database:
        rows = [row for row in database.rows() if isinstance(row, StageRow)]
        signature = next(row.signature for row in rows if row.turn == "again")
        medians = database.stage_medians(rows[0].device)
        again = next(row for row in rows if (row.signature, row.turn) == (signature, "again"))
        assert medians[signature] == median(again.samples_us or ())
