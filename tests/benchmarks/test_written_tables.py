"""Tables that a script writes into a page between two marks are what it makes of the raw samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


def written(page: str) -> str:
    return (ROOT / page).read_text().partition("<!-- measured -->")[2].partition("<!-- /measured -->")[0]


def results(name: str) -> dict[str, object]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def test_transformers_are_as_fast_as_the_raw_samples_say(script: Callable[[str], ModuleType]) -> None:
    cases = results("attention.json")["cases"]
    table = script("attention").table(cases)
    assert table.strip() == written("benchmarks/reports/transformers.md").strip(), (
        "stale: run  python benchmarks/attention.py --write"
    )


def test_several_batch_sizes_take_what_the_raw_samples_say(script: Callable[[str], ModuleType]) -> None:
    tables = script("batch_sizes").measured_text(results("batch-sizes.json"))
    assert tables.strip() == written("benchmarks/reports/batch-sizes.md").strip(), (
        "stale: run  python benchmarks/batch_sizes.py --write"
    )


def test_foreign_models_came_to_what_the_results_say(script: Callable[[str], ModuleType]) -> None:
    table = script("foreign_models").table(foreign())
    assert table.strip() == written("benchmarks/reports/foreign-models.md").strip(), (
        "stale: run  foreign_models.py --write"
    )


def test_no_foreign_model_is_run_wrongly() -> None:
    plans = [(row["file"], plan) for row in foreign() for plan in row.get("plans", {}).values()]
    assert len(plans) > 200
    differing = [(file, plan) for file, plan in plans if not plan.get("passed", True)]
    assert [file for file, plan in differing if plan.get("cause") != "rounding"] == []


def foreign() -> list[dict[str, Any]]:
    return json.loads((ROOT / "benchmarks" / "results" / "foreign-models.json").read_text())["models"]
