"""The simulation of served requests agrees with what can be computed by hand, and loses none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest


@pytest.fixture
def simulation(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("serving_simulated")


def test_every_request_ends_and_none_is_faster_than_alone(
    simulation: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "REQUESTS", 500)
    for policy in simulation.POLICIES.values():
        found = simulation.simulated({"short": 0.01, "long": 0.1}, 0.9, policy, seed=1)
        assert sum(map(len, found.values())) == 500
        fastest = 1.0 if policy is None else simulation.SPEEDUP
        assert min(found["short"]) >= 10 / fastest - 1e-6
        assert min(found["long"]) >= 100 / fastest - 1e-6


def test_sessions_share_cores_equally(simulation: ModuleType) -> None:
    found: dict[str, list[float]] = {"a": []}
    sessions = simulation.Sessions([simulation.Run(number, "a", 0.0, 1.0) for number in range(4)])
    assert simulation.advance(sessions, 0.0, 1.0, found) == 1.0
    assert [run.left_s for run in sessions.running] == [0.5] * 4
    simulation.advance(sessions, 1.0, 9.0, found)
    assert found["a"] == pytest.approx([2000.0] * 4)


def test_a_short_run_shares_the_core_of_the_longest(simulation: ModuleType) -> None:
    run = simulation.Run
    served = simulation.Served(replace(simulation.DEFAULT, overlap_ratio=None))
    served.running = [run(0, "long", 0.0, 1.0), run(1, "short", 0.0, 0.5), run(2, "shared", 0.0, 0.1, cores=0)]
    assert served.speeds() == [0.5, 1.0, 0.5]
    served.running[0].cores = 2
    del served.running[1]
    assert served.speeds() == [simulation.SPEEDUP / 2, 0.5]
    del served.running[0]
    assert served.speeds() == [1.0]
