"""Measurements of sleeping tasks agree with the simulation of the same tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from iosched.jobs.exploring.running import run_command
from iosched.jobs.exploring.score import Score, parsed_output, values_of

ROOT = Path(__file__).parents[2]
Script = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results/fleet-slept.json").read_text())
    return found


def test_work_is_the_same_for_every_number_of_workers(script: Script, results: dict[str, Any]) -> None:
    slept = script("fleet_slept")
    for run in results["runs"]:
        lengths_s = slept.lengths_s(run["what"], run["round"])
        assert run["alone_s"] == sum(lengths_s) + len(lengths_s) * run["each_s"]


def test_fleet_sizes_were_interleaved(results: dict[str, Any]) -> None:
    turns = [run["workers"] for run in results["runs"] if run["what"] == "jobs"]
    assert turns == [1, 2, 4] * 3
    assert len(results["commands_s"]) == 3


@pytest.mark.parametrize("what", ["jobs", "stages"])
def test_one_simulated_worker_takes_as_long_as_measured(script: Script, results: dict[str, Any], what: str) -> None:
    slept = script("fleet_slept")
    alone = [run for run in results["runs"] if (run["what"], run["workers"]) == (what, 1)]
    message_s = slept.message_cost_s(what, results["runs"])
    simulated_s = [3600 * slept.simulated(run, message_s).hours for run in alone]
    assert sum(simulated_s) == pytest.approx(sum(run["wall_s"] for run in alone))


def test_no_fleet_is_faster_than_its_simulation_without_messages(script: Script, results: dict[str, Any]) -> None:
    """Nor more than a seventh slower: little time is lost except at the ends of rounds.

    The tolerance is 1 %: `alone_s` contains the median start time of a command, which varies.
    """
    slept = script("fleet_slept")
    for run in results["runs"]:
        most = slept.simulated(run, 0.0).speed_up
        assert 6 / 7 * most < run["alone_s"] / run["wall_s"] < 1.01 * most


def test_a_sleeping_job_is_a_score_command_that_prints_its_number(script: Script) -> None:
    slept = script("fleet_slept")
    made = slept.job(7, 0.0).work
    assert isinstance(made, Score)
    ran = run_command(made.command.filled(Path("model.onnx"), made.choices), timeout_s=None, folder=Path(made.folder))
    assert values_of(parsed_output(ran, None), made.command.keys) == {"score": 7}
