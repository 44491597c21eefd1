"""`optimize` under permanent background load: the search ends, and every command counts the same stages."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import onnx
import pytest
from scripted import LATENCIES_US, fire_proto, latencies_by_stage, script_models

from iosched.profiler.store import database

WORDS = ("--device", "cpu", "--threads", 2)


@pytest.fixture
def fire_file(workdir: Path) -> Path:
    path = workdir / "fire.onnx"
    onnx.save(fire_proto(), path)
    return path


def optimized(invoke, model: Path, *words: object) -> dict[str, Any]:
    result = invoke("optimize", model, *WORDS, *words, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_under_permanent_load_at_most_a_third_of_the_measurements_are_repeated(
    invoke, fire_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(monkeypatch, LATENCIES_US)
    measured = latencies_by_stage(monkeypatch)
    quiet = optimized(invoke, fire_file, "--profile-db", "quiet.db")["search"]
    assert quiet["measurements"] == len(measured)
    measured = latencies_by_stage(monkeypatch, disturb=lambda count: True)
    busy = optimized(invoke, fire_file, "--profile-db", "busy.db")
    search = busy["search"]
    assert search["measurements"] == len(measured) <= quiet["measurements"] * 4 / 3
    assert 0 < search["repeated"] <= (search["measurements"] - search["repeated"]) / 3
    assert (quiet["repeated"], quiet["disturbed"]) == (0, 0)
    assert search["disturbed"] == search["signatures"] == quiet["signatures"]
    assert any(f"of {search['disturbed']} of {search['signatures']} stages" in note for note in busy["notes"])


@pytest.mark.parametrize("lasting", [0, 5, 10**6])
def test_all_commands_count_the_same_stages(
    invoke, fire_file: Path, monkeypatch: pytest.MonkeyPatch, lasting: int
) -> None:
    """Also stages that other processes interfered with: they are known, and count with wide intervals."""
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch, disturb=lambda count: count < lasting)
    first = optimized(invoke, fire_file)["search"]
    said = optimized(invoke, fire_file, "--dry-run")
    stored = json.loads(invoke("profile", "stats", "--json").stdout)
    second = optimized(invoke, fire_file)["search"]
    assert said["known"] == stored["stages"] == second["signatures"] == first["signatures"]
    assert said["disturbed"] == stored["disturbed"] == first["disturbed"] >= second["disturbed"]
    assert second["cache_hits"] == first["measurements"] - first["repeated"]
    assert second["measurements"] == second["repeated"] <= said["measurements"]
    assert (second["measurements"] > 0) == (first["disturbed"] > 0) == (lasting > 0)
    table = " ".join(invoke("optimize", fire_file, *WORDS).stdout.split())
    assert f"{first['signatures']} stages" in table


def test_later_quiet_runs_repeat_disturbed_measurements_and_then_nothing(
    invoke, fire_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch, disturb=lambda count: True)
    disturbed = [optimized(invoke, fire_file)["search"]["disturbed"]]
    latencies_by_stage(monkeypatch)
    while len(disturbed) < 2 or disturbed[-1] < disturbed[-2]:
        disturbed.append(optimized(invoke, fire_file)["search"]["disturbed"])
    assert disturbed[-1] < disturbed[0]
    assert optimized(invoke, fire_file)["search"]["measurements"] == 0


def test_the_predicted_search_time_follows_earlier_measurements(
    invoke, fire_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    start = datetime(2026, 1, 1, tzinfo=UTC)

    class Slow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return start + next(ticks) * timedelta(seconds=0.8)

    script_models(monkeypatch, LATENCIES_US)
    latencies_by_stage(monkeypatch)
    before = optimized(invoke, fire_file, "--dry-run")
    assert before["seconds"] == pytest.approx(0.1 * before["measurements"] + 8.0)
    monkeypatch.setattr(database, "datetime", Slow)
    optimized(invoke, fire_file, "--strategy", "concurrent")
    after = optimized(invoke, fire_file, "--dry-run", "--no-resume")
    per_stage = (after["seconds"] - 8.0) / after["measurements"]
    assert per_stage > 0.7
    assert "s for each stage (measured on this machine)" in invoke("optimize", fire_file, *WORDS, "--dry-run").stdout
