"""Planning for a GPU that is not here with what was measured on one elsewhere, which here is made of host memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import pytest
from host_cuda import needs_compiler
from host_driver import HostDriver
from host_gpu import HostGpu, time_by_size
from scripted import fire

from iosched.jobs.optimize import OptimizeResult, optimize
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.analytic.cost import AnalyticCost
from iosched.profiler.devices.cuda import device as cuda_device
from iosched.profiler.devices.cuda.elsewhere import measured_elsewhere
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import ChoiceRow, Row, StageRow
from iosched.profiler.store.transfer import export_lines, import_lines
from iosched.runtime.cuda.target import Gpu
from iosched.scheduler.schedule import Stage, Strategy

pytestmark = needs_compiler

NAME = "Tesla V100-SXM2-32GB"
V100 = Gpu(capability=70, processors=80)


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What `profile export` writes where a V100 is attached on which a small network was optimized."""
    return measured_there(tmp_path / "there.db", monkeypatch)


def measured_there(path: Path, monkeypatch: pytest.MonkeyPatch, precision: str = "fp32") -> list[str]:
    with monkeypatch.context() as there:
        time_by_size(there)
        gpu = HostGpu(0, NAME, {"cuda": "12090", "cudnn": "91002"}, HostDriver(gpu=V100))
        there.setattr(cuda_device, "attach", lambda index: gpu)
        optimize(fire(), OptimizeSettings(device="cuda", profile_db=path, precision=precision, exhaustive=True))
    with ProfileDatabase(path) as database:
        return list(export_lines(database))


def imported(path: Path, lines: list[str], *, without: str = "none") -> OptimizeSettings:
    """Settings that plan for a V100 where this profile was imported, without the rows of such a table."""
    with ProfileDatabase(path) as database:
        import_lines(database, [line for line in lines if f'"table":"{without}"' not in line])
    return OptimizeSettings(device="v100", profile_db=path)


def note_of(result: OptimizeResult) -> str:
    (found,) = (note for note in result.notes if "measured elsewhere" in note)
    return found


def test_a_schedule_of_stages_measured_elsewhere_takes_what_they_took_there(tmp_path: Path, profile: list[str]) -> None:
    result = optimize(fire(), imported(tmp_path / "here.db", profile))
    assert result.cost == "analytic"
    assert result.measured_share == pytest.approx(1)
    assert result.document.runtime == {"precision": "fp32", "measured_share": result.measured_share}
    with ProfileDatabase(tmp_path / "here.db") as database:
        found = measured_elsewhere(database, fire(), "v100", "fp32")
        assert found is not None
        assert result.predicted_us == sum(found.known_us(stage) or 0.0 for stage in result.schedule.stages)
    assert NAME in note_of(result)
    assert "cudnn 91002" in note_of(result)
    assert "100%" in note_of(result)


def test_what_was_not_measured_is_scaled_by_the_operators_that_were(tmp_path: Path, profile: list[str]) -> None:
    """Only `f1`, and what is like it, is left of the profile: all else takes as many times what the model says."""
    alone = Stage(Strategy.CONCURRENT, (("f1",),))
    settings = imported(tmp_path / "all.db", profile)
    with ProfileDatabase(settings.profile_db) as database, ProfileDatabase(tmp_path / "one.db") as one:
        found = measured_elsewhere(database, fire(), "v100", "fp32")
        assert found is not None
        one.merge([row for row in database.rows() if _stage_of(row) in (None, found.signature(alone))])
    gpu = gpu_named("v100")
    assert gpu is not None
    model = AnalyticCost(fire().graph, gpu)
    factor = (found.known_us(alone) or 0.0) / model.stage_latency_us(alone)
    plain = optimize(fire(), replace(settings, profile_db=None, strategy="sequential", resume=False))
    result = optimize(fire(), replace(settings, profile_db=tmp_path / "one.db", strategy="sequential"))
    assert plain.measured_share is None
    assert result.predicted_us == pytest.approx(factor * plain.predicted_us)
    alike = sum(
        model.stage_latency_us(stage) for stage in result.schedule.stages
        if found.signature(stage) == found.signature(alone)
    )  # fmt: skip
    assert result.measured_share == pytest.approx(alike / plain.predicted_us, abs=1e-4)
    assert 0 < alike < plain.predicted_us


def _stage_of(row: Row) -> str | None:
    return row.signature if isinstance(row, StageRow) else None


def test_no_other_gpu_precision_or_lowering_is_taken_for_it(tmp_path: Path, profile: list[str]) -> None:
    settings = imported(tmp_path / "here.db", profile)
    for other in (
        replace(settings, device="t4"),
        replace(settings, device="v100pcie"),
        replace(settings, precision="fp16"),
        replace(settings, resume=False),
        imported(tmp_path / "old.db", [line.replace('\\"lowering\\":\\"', '\\"lowering\\":\\"1') for line in profile]),
        imported(tmp_path / "none.db", profile, without="stage"),
    ):
        result = optimize(fire(), other)
        assert result.measured_share is None
        assert "measured_share" not in result.document.runtime
        assert not any("elsewhere" in note for note in result.notes)


def test_of_several_versions_the_one_measured_last_is_taken(tmp_path: Path, profile: list[str]) -> None:
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
    """A V100 has a choice of layouts: stages in the one that was chosen there are found by lowering the model so."""
    lines = measured_there(tmp_path / "there.db", monkeypatch, precision="fp16")
    settings = replace(imported(tmp_path / "here.db", lines), precision="fp16")
    assert optimize(fire(), settings).measured_share == pytest.approx(1)
    assert any('"table":"choice"' in line and "layout " in line for line in lines)


def test_the_rest_is_found_for_the_second_measurement_where_there_is_one(tmp_path: Path, profile: list[str]) -> None:
    settings = imported(tmp_path / "here.db", profile)
    with ProfileDatabase(settings.profile_db) as database:
        rows = [row for row in database.rows() if isinstance(row, StageRow)]
        signature = next(row.signature for row in rows if row.turn == "again")
        medians = database.stage_medians(rows[0].device)
        again = next(row for row in rows if (row.signature, row.turn) == (signature, "again"))
        assert medians[signature] == median(again.samples_us or ())
