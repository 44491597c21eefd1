"""Alternatives are measured in turn; those that cannot be opened are reported with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from onnx import TensorProto, helper
from scripted import fire, model_with, script_stages
from shipped import document

from iosched.jobs.bench import bench
from iosched.models.errors import UsageError
from iosched.profiler.devices.cpu import device as cpu_device
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.strategy_names import COMPARED


def test_rows_have_every_number_and_missing_peers_are_reported(tmp_path: Path) -> None:
    names = ["iosched", *COMPARED, "onnxruntime", "onnxruntime-parallel", "torch", "onnxruntime-cuda"]
    found = bench(fire(), document(fire()), names=names, threads=2, rounds=6, profile_db=tmp_path / "p.db")
    measured = [row.name for row in found.rows]
    assert measured == ["sequential", "iosched", *COMPARED[1:], "onnxruntime", "onnxruntime-parallel"]
    assert [name for name, _ in found.missing] == ["torch", "onnxruntime-cuda"]
    assert all(reason for _, reason in found.missing)
    assert set(found.samples_us) == set(measured)
    assert found.device
    for row in found.rows:
        assert row.samples == len(found.samples_us[row.name]) == 6
        assert 0 < row.min_us <= row.p10_us <= row.median_us <= row.p90_us
        assert row.speedup_low is not None
        assert row.speedup is not None
        assert row.speedup_high is not None
        assert 0 < row.speedup_low <= row.speedup <= row.speedup_high
    assert found.rows[0].speedup == 1.0
    assert found.notes == ()


def test_too_few_rounds_give_no_speedup(tmp_path: Path) -> None:
    found = bench(fire(), None, names=["greedy"], threads=2, rounds=5, profile_db=tmp_path / "p.db")
    assert {(row.speedup, row.speedup_low, row.speedup_high) for row in found.rows} == {(None, None, None)}
    assert "fewer than 6 rounds" in found.notes[0]


def test_without_names_all_is_measured_but_what_has_to_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        return {name: summarize([10.0] * 7) for name in runnables}

    monkeypatch.setattr(cpu_device, "measure_in_turn", measured_in_turn)
    script_stages(monkeypatch)
    found = bench(fire(), None, threads=2, profile_db=tmp_path / "p.db")
    names = {*(row.name for row in found.rows), *(name for name, _ in found.missing)}
    assert {"iosched", "sequential", "both", "onnxruntime"} <= names
    assert not names & {"dos", "torch-compile"}


def test_speedup_is_against_sequential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured_in_turn(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        slow = (1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0)
        return {name: summarize([(10.0 if name == "greedy" else 30.0) * x for x in slow]) for name in runnables}

    monkeypatch.setattr(cpu_device, "measure_in_turn", measured_in_turn)
    found = bench(fire(), None, names=["greedy"], threads=2, profile_db=tmp_path / "p.db")
    assert {row.name: row.speedup for row in found.rows} == {"sequential": 1.0, "greedy": 3.0}
    assert {(row.speedup_low, row.speedup_high) for row in found.rows} == {(1.0, 1.0), (3.0, 3.0)}


def test_searches_use_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    counts = []
    for _ in range(2):
        bench(fire(), None, names=["both"], threads=2, rounds=1, profile_db=tmp_path / "p.db")
        counts.append(len(measured))
    assert counts[0] == counts[1] > 0


def test_without_a_schedule_iosched_is_missing(tmp_path: Path) -> None:
    found = bench(fire(), None, names=["iosched"], threads=2, rounds=1, profile_db=tmp_path / "p.db")
    assert [name for name, _ in found.missing] == ["iosched"]
    assert [row.name for row in found.rows] == ["sequential"]


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensorrt"):
        bench(fire(), None, names=["tensorrt"], profile_db=tmp_path / "p.db")
    text = model_with([helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)], TensorProto.STRING)
    with pytest.raises(UsageError, match="no schedule"):
        bench(text, None, names=["greedy"], profile_db=tmp_path / "p.db")
