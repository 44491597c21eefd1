"""`optimize` finds stretches that are faster as sessions over all cores, and lets whole runs decide on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import fire, script_models

from iosched.jobs.estimate import estimate
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.profiler.devices.cpu.cost import CpuStageCost
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.schedule import Schedule, Stage, Strategy

SESSION = Strategy.SESSION


@pytest.fixture
def settings(tmp_path: Path) -> OptimizeSettings:
    return OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")


def script(monkeypatch: pytest.MonkeyPatch, session_us: float) -> list[Stage]:
    """An operator of a stage takes 10 us, and a session `session_us`; returns the stages that were measured."""
    measured: list[Stage] = []

    def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        del cost, lanes, worse_than_us
        measured.append(stage)
        return summarize([session_us if stage.strategy is SESSION else 10.0 * len(stage.operators)] * 7)

    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    return measured


def kinds(schedule: Schedule) -> set[Strategy]:
    return {stage.strategy for stage in schedule.stages}


WHOLE = {"greedy": 90.0, "reference": 80.0}


def test_sessions_that_are_faster_ship(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    script(monkeypatch, 1.0)
    calls = script_models(monkeypatch, {**WHOLE, "iosched": 10.0, "iosched, other 1": 20.0, "sequential": 70.0})
    found = optimize(fire(), settings)
    assert {"iosched", "iosched, other 1", "sequential"} <= set(calls[-1])
    assert (found.shipped, found.proven) == ("iosched", None)
    assert kinds(found.document.schedule) == {SESSION}
    assert found.measured_us == 10.0


def test_whole_runs_may_show_that_the_schedule_without_sessions_is_faster(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, 1.0)
    script_models(
        monkeypatch, {**WHOLE, "iosched": 50.0, "iosched, other 1": 10.0, "sequential": 70.0, "session": 60.0}
    )
    found = optimize(fire(), settings)
    assert found.shipped == "iosched"
    assert SESSION not in kinds(found.document.schedule)
    assert found.measured_us == 10.0


def test_sessions_that_are_nearly_as_fast_are_tried_in_whole_runs(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, 84.0)  # all eight operators take 80
    calls = script_models(monkeypatch, {**WHOLE, "iosched": 50.0, "iosched, other 1": 10.0, "sequential": 70.0})
    found = optimize(fire(), settings)
    assert "iosched, other 1" in calls[-1]
    assert (found.shipped, found.measured_us) == ("iosched", 10.0)
    assert SESSION in kinds(found.document.schedule)


def test_slow_sessions_change_nothing(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script(monkeypatch, 1000.0)
    calls = script_models(monkeypatch, {**WHOLE, "iosched": 10.0, "sequential": 70.0, "session": 75.0})
    found = optimize(fire(), settings)
    assert "iosched, other 1" not in calls[-1]
    assert SESSION not in kinds(found.document.schedule)
    assert found.proven == "blocks"
    assert {stage.strategy for stage in measured} >= {SESSION}


@pytest.mark.parametrize(("session_us", "shipped_us"), [(30.0, 30.0), (75.0, 70.0)])
def test_sequential_is_the_faster_of_its_two_ways(
    session_us: float, shipped_us: float, settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(monkeypatch, 1000.0)
    script_models(monkeypatch, {**WHOLE, "iosched": 85.0, "sequential": 70.0, "session": session_us})
    found = optimize(fire(), settings)
    assert (found.shipped, found.sequential_us) == ("sequential", shipped_us)
    assert (SESSION in kinds(found.document.schedule)) == (session_us < 70.0)


def test_other_searches_know_no_sessions(settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script(monkeypatch, 1.0)
    script_models(monkeypatch, {**WHOLE, "iosched": 10.0, "sequential": 70.0})
    for strategy in ("concurrent", "merge", "dos", "greedy"):
        optimize(fire(), OptimizeSettings(**{**_fields(settings), "strategy": strategy}))
    assert SESSION not in {stage.strategy for stage in measured}


def _fields(settings: OptimizeSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


def test_an_estimate_counts_sessions_until_they_are_known(
    settings: OptimizeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = script(monkeypatch, 1000.0)
    script_models(monkeypatch, {**WHOLE, "iosched": 10.0, "sequential": 70.0})
    before = estimate(fire(), settings).measurements
    optimize(fire(), settings)
    assert len(measured) <= 2 * before
    assert estimate(fire(), settings).measurements == 0
