"""Tables that a script writes into a page between two marks are what it makes of the raw samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def written(page: str) -> str:
    return (ROOT / "docs" / page).read_text().partition("<!-- measured -->")[2].partition("<!-- /measured -->")[0]


def results(name: str) -> dict[str, object]:
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def test_transformers_are_as_fast_as_the_raw_samples_say(script: Callable[[str], ModuleType]) -> None:
    cases = results("attention.json")["cases"]
    table = script("attention").table(cases)
    assert table.strip() == written("transformers.md").strip(), "stale: run  python benchmarks/attention.py --write"


def test_several_batch_sizes_take_what_the_raw_samples_say(script: Callable[[str], ModuleType]) -> None:
    tables = script("batch_sizes").tables(results("batch-sizes.json"))
    assert tables.strip() == written("batch-sizes.md").strip(), "stale: run  python benchmarks/batch_sizes.py --write"
