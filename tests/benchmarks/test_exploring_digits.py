"""The example's trials as JSON, and its front as the table of the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from iosched.jobs.exploring.explore_result import Feedback, Individual, Latency, StudyHistory
from iosched.jobs.exploring.objectives import Card, parse_objectives
from iosched.jobs.exploring.pareto_front import Point

ROOT = Path(__file__).parents[2]


@pytest.fixture
def digits(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("exploring_digits")


def individual(number: int, latency_us: float, accuracy: float) -> Individual:
    values = {
        "latency:cpu": latency_us, "accuracy": accuracy, "accuracy_low": accuracy - 0.01,
        "accuracy_high": accuracy + 0.01, "flops": 2.5e6, "params": 1000.0,
    }  # fmt: skip
    latencies = {"cpu": Latency("measured", latency_us - 1, latency_us + 1)}
    return Individual(
        number, "complete", {"paths": 3}, Feedback(values, latencies, seconds=1.5),
        Point((-accuracy, latency_us), violation=0.0),
    )  # fmt: skip


def test_the_front_is_listed_with_intervals_and_the_fastest_first(digits: ModuleType) -> None:
    tried = (individual(0, 300.0, 0.9), individual(1, 200.0, 0.8), individual(2, 400.0, 0.7))
    failed = Individual(3, "failed", {}, Feedback(reason="no"))
    card = Card("digest", "base", "features", parse_objectives(("max:accuracy,latency:cpu",)), (), 0)
    trials = digits.trials_of(StudyHistory(Path("study.db"), card, (*tried, failed)))
    assert [trial["rank"] for trial in trials] == [0, 0, 1, None]
    said = ("state", "choices", "seconds", "reason")
    assert [trials[0][key] for key in said] == ["complete", {"paths": 3}, 1.5, None]
    assert [trials[3][key] for key in said] == ["failed", {}, 0.0, "no"]
    assert json.loads(json.dumps(trials)) == trials
    _, rows = digits.front_table(trials)
    assert rows == [
        ("1", "200 us (199 to 201)", "0.800 (0.790 to 0.810)", "2.5 million", "1,000"),
        ("0", "300 us (299 to 301)", "0.900 (0.890 to 0.910)", "2.5 million", "1,000"),
    ]
