"""Variants depend only on their number, are searched with and without shared measurements, and calls resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from iosched.jobs.optimize import OptimizeSettings
from iosched.jobs.ranking.model_cost import ModelCost, model_cost
from iosched.models.model import Model
from iosched.models.spaces.space import find_space
from iosched.profiler.measuring.statistics import summarize
from iosched.profiler.store.database import ProfileDatabase

ROOT = Path(__file__).parents[2]


@pytest.fixture
def exploring(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("exploring")


def variant(number: int) -> dict[str, Any]:
    """A variant; later ones have more known stages, and every fifth was searched again."""
    found = {
        "operators": 9, "shipped": "iosched", "samples_us": {"measured": [10.0] * 7},
        "made_s": 0.1, "comparison_s": 4.0, "shared": {"measured": 40 - number, "known": 10 + number, "seconds": 2.0},
    }  # fmt: skip
    if number % 5:
        return found
    again = {"measured": 0, "known": 50, "seconds": 0.5}
    return {**found, "alone": {"measured": 45, "known": 5, "seconds": 6.0}, "again": again}


def test_a_variant_depends_only_on_its_number(exploring: ModuleType) -> None:
    space = find_space("builtin:inception:32")
    base = space.base_model()
    first, second = (exploring.drawn(space, base, number) for number in (0, 1))
    assert exploring.drawn(space, base, 0).choices == first.choices != second.choices


def test_every_fifth_variant_is_also_searched_with_an_empty_database_and_again_with_the_shared_one(
    exploring: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, bool]] = []
    trials = exploring.Trials(find_space("builtin:inception:32"), tmp_path)
    quick = OptimizeSettings(device="cpu", strategy="sequential", budget_s=0.01, profile_db=tmp_path / "quick.sqlite")
    took = {"measurements": 3, "cache_hits": 4, "search_seconds": 1.5, "comparison_seconds": 2.5}
    cost = replace(model_cost(trials.base, "models", quick), **took)  # type: ignore[arg-type]

    def costed(model: Model, measure: str, settings: OptimizeSettings) -> ModelCost:
        asked.append((measure, settings.profile_db == trials.settings.profile_db))
        return cost

    monkeypatch.setattr(exploring, "model_cost", costed)
    found = trials.observed(1)
    assert asked == [("models", True)]
    assert "alone" not in found
    found |= trials.observed(5)
    assert asked[1:] == [("models", True), ("stages", False), ("stages", True)]
    assert set(found["samples_us"]) >= {"sequential", "reference"}
    assert found["alone"] == found["again"] == found["shared"] == {"measured": 3, "known": 4, "seconds": 1.5}
    assert (found["comparison_s"], found["made_s"] > 0) == (2.5, True)


def test_equal_stages_of_models_of_several_sizes_are_counted_once(exploring: ModuleType, tmp_path: Path) -> None:
    trials = exploring.Trials(find_space("builtin:inception:32"), tmp_path)
    with ProfileDatabase(trials.settings.profile_db) as database:
        for signature in ("1:512K:a", "1:1024K:a", "2:512K:a", "1:512K:b", "1:1024K:b:divided"):
            database.keep_stage(signature, "device", summarize([1.0]))
    found = trials.stages()
    assert found == {"measured": 5, "of any size": 4}
    assert exploring.sizes_table({"inception:32": found})[1] == [("inception:32", "5", "4")]


def test_rows_are_medians_over_consecutive_variants(exploring: ModuleType) -> None:
    _, rows = exploring.table({"inception:64": [variant(number) for number in range(25)]})
    first, last = rows
    assert first == ("inception:64", "1 to 20", "39% (30% to 48%)", "30", "0.10 s", "2.0 s", "4.0 s")
    assert last[1:4] == ("21 to 25", "64% (62% to 66%)", "18")


def test_savings_by_sharing_are_those_of_variants_searched_both_ways(exploring: ModuleType) -> None:
    _, rows = exploring.sharing_table({"inception:64": [variant(number) for number in range(25)], "mnasnet:64": []})
    measured = sum(40 - number for number in (0, 5, 10, 15, 20))
    ratio = f"{5 * 45 / measured:.1f}"
    assert rows == [("inception:64", "5 of 25", "225", str(measured), "6.0 s", "2.0 s", "0.5 s", ratio, "3.0")]


def test_a_call_resumes_where_the_previous_one_ended_and_alternates_spaces(
    exploring: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[str, int]] = []
    now_s = [0.0]

    def observed(trials: Any, number: int) -> dict[str, Any]:
        seen.append((trials.space.name, number))
        now_s[0] += 100.0
        return variant(number)

    monkeypatch.setattr(exploring.Trials, "observed", observed)
    monkeypatch.setattr(exploring.time, "monotonic", lambda: now_s[0])
    words = ["--variants", "2", "--work", str(tmp_path), "-o", str(tmp_path / "r.json")]
    exploring.main([*words, "--minutes", "3.8"])  # after two, the time left is too short for another
    assert seen == [("mnasnet", 0), ("inception", 0)]
    assert "call again" in capsys.readouterr().err
    exploring.main([*words, "--list"])
    assert capsys.readouterr().out.split("\n")[:2] == ["mnasnet:64 1", "inception:64 1"]
    exploring.main([*words, "--minutes", "10"])
    assert seen[2:] == [("mnasnet", 1), ("inception", 1)]
    assert "nothing is missing" in capsys.readouterr().err
    exploring.main([*words, "--spaces", "inception:64", "--variants", "3", "--minutes", "10"])
    assert {name: len(found) for name, found in json.loads((tmp_path / "r.json").read_text())["spaces"].items()} == {
        "mnasnet:64": 2,
        "inception:64": 3,
    }
