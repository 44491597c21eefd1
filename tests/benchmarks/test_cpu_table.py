"""The README's table of measured networks is what its script makes of the raw samples."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("cpu_table")


def test_the_readme_has_the_table(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    script.main([])
    assert capsys.readouterr().out in (ROOT / "README.md").read_text(), "stale: run  python benchmarks/cpu_table.py"


def test_what_ships_is_faster_beyond_the_interval(script: ModuleType) -> None:
    samples = {"onnxruntime": [100.0] * 9, "both": [90.0, 105.0] * 4 + [90.0], "sequential": [95.0, 110.0] * 4 + [95.0]}
    slow = {**samples, "both": [120.0] * 9, "sequential": [130.0] * 9}
    fast = {**samples, "both": [80.0] * 9}
    networks = {
        name: {"samples_us": each, "search": {"seconds": 1}}
        for name, each in (("x", samples), ("slow", slow), ("fast", fast))
    }
    headers, rows = script.table(networks)
    ships = headers.index("ships")
    assert [row[ships] for row in rows] == ["onnxruntime: no difference found", "onnxruntime", "the schedule found"]
    assert rows[2][headers.index("schedule found")] == "0.1, 1.25 (1.25 to 1.25)"
