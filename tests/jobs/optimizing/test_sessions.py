"""One session of all operators is a second sequential schedule; no search looks for sessions."""

from __future__ import annotations

from pathlib import Path

import pytest
from scripted import fire, script_models, script_operators

from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.scheduler.schedule import Stage, Strategy

SESSION = Strategy.SESSION
WHOLE = {"greedy": 90.0, "reference": 80.0}


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Stage]:
    """The stages measured; a session takes 1 us."""
    return script_operators(monkeypatch, session_us=1.0)


@pytest.mark.parametrize(
    ("session_us", "shipped", "candidate", "sequential_us"),
    [(30.0, "iosched", "session", 30.0), (75.0, "sequential", "sequential", 70.0)],
)
@pytest.mark.usefixtures("measured")
def test_one_session_ships_if_it_is_the_fastest_sequential_schedule(
    session_us: float,
    shipped: str,
    candidate: str,
    sequential_us: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script_models(monkeypatch, {**WHOLE, "iosched": 85.0, "sequential": 70.0, "session": session_us})
    found = optimize(fire(), OptimizeSettings(threads=2, profile_db=tmp_path / "p.db"))
    assert (found.shipped, found.candidate, found.sequential_us) == (shipped, candidate, sequential_us)
    kinds = {stage.strategy for stage in found.document.schedule.stages}
    assert (SESSION in kinds) == (session_us < 70.0)


@pytest.mark.parametrize("strategy", ["both", "concurrent", "merge", "dos", "greedy"])
def test_searches_measure_no_sessions(
    strategy: str, measured: list[Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_models(monkeypatch, {**WHOLE, "iosched": 10.0, "sequential": 70.0})
    optimize(fire(), OptimizeSettings(threads=2, profile_db=tmp_path / "p.db", strategy=strategy))
    assert SESSION not in {stage.strategy for stage in measured}
