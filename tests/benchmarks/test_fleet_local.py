"""Speedups of commands by a second worker, measured in the order of the script."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Script = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/fleet-local.json").read_text())["runs"]
    return found


def test_runs_without_a_cluster_and_on_one_and_two_workers_were_interleaved(
    script: Script, runs: list[dict[str, Any]]
) -> None:
    local = script("fleet_local")
    order = [(command, workers) for command in local.COMMANDS for workers in local.WORKERS]
    rounds = len(runs) // len(order)
    assert rounds >= 2
    assert [(run["command"], run["workers"]) for run in runs] == order * rounds


def test_speedups_are_over_the_same_round_of_one_worker(script: Script) -> None:
    local = script("fleet_local")
    seconds = {"no cluster": (8.0, 8.0), "1 worker": (12.0, 10.0), "2 workers": (6.0, 4.0)}
    runs = [
        {"command": command, "workers": workers, "round": number, "wall_s": seconds[workers][number]}
        for number in range(2)
        for command in local.COMMANDS
        for workers in local.WORKERS
    ]
    assert ["`explore`", "8", "11 (10 to 12)", "5 (4 to 6)", "2.25 (2.00 to 2.50)"] in local.table(runs)[1]
