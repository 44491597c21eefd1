"""Measurements of one search on several workers, interleaved as in the script."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Script = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/fleet-search.json").read_text())["runs"]
    return found


def test_all_cases_were_interleaved(runs: list[dict[str, Any]]) -> None:
    turns = [list(turn) for _, turn in groupby(runs, lambda run: (run["round"], run["model"]))]
    assert len(turns) > 1
    assert all([run["workers"] for run in turn] == sorted({run["workers"] for run in runs}) for turn in turns)


def test_several_workers_measure_at_most_a_fifth_more_stages(runs: list[dict[str, Any]]) -> None:
    """Those are stages that another answer of the same round rules out (benchmarks/reports/search.md)."""
    alone = {run["model"]: run["measured"] for run in runs if run["workers"] == 1}
    assert all(alone[run["model"]] <= run["measured"] <= 1.2 * alone[run["model"]] for run in runs)


def test_speedups_are_over_the_same_round_of_one_worker(script: Script) -> None:
    about = {"model": "a", "known_s": 1.0, "measured": 9}
    runs = [
        {**about, "workers": workers, "round": number, "wall_s": wall_s}
        for number, pair in enumerate([(8.0, 4.0), (9.0, 3.0)])
        for workers, wall_s in zip((1, 4), pair, strict=True)
    ]
    assert ["a", "4", "3.5 (3.0 to 4.0)", "2.50 (2.00 to 3.00)", "9", "1.0"] in script("fleet_search").table(runs)[1]
