"""Tables and charts of GPU results say what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("gpu_report")


def case(network: str, **medians: float) -> dict[str, Any]:
    ours = dict.fromkeys(("sequential", "both"), 1e-06)
    return {
        "network": network, "batch": 1, "precision": "fp32", "median_us": medians, "correct": True,
        "relative_error": {**ours, "torch": 0.5}, "kernels": {"sequential": 9, "both": 8},
        "samples_us": {name: [median * x for x in (1.0, 0.9, 1.1, 1.0, 2.0, 1.0)] for name, median in medians.items()},
        "roofline_us": {"arithmetic": 12.0, "memory": 30.0},
        "search": {
            "opening_seconds": 1.0,
            "both": {"seconds": 3.25, "measurements": 70, "signatures": 80, "gap": 0.01, "predicted_us": 40.0},
        },
    }  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, gpu: str, *cases: dict[str, Any]) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps({"gpu": gpu, "cases": list(cases)}))
        return path

    return write


def test_alternatives_stand_beside_the_sequential_graph(
    report: ModuleType, written: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first = case("squeezenet", sequential=100.0, both=50.0, torch=200.0)
    failed = {"network": "vgg16", "batch": 1, "precision": "fp32", "error": "no memory"}
    report.main(
        [str(written("a.json", "H100", first, failed)), str(written("b.json", "H100", case("x", sequential=9, both=9)))]
    )
    latencies, searches = capsys.readouterr().out.split("\n\n")
    lines = latencies.splitlines()
    assert lines[0] == "| network | batch | precision | sequential | both | torch | roofline | error |"
    both, torch = "50, 2.00 (2.00 to 2.00)", "200, 0.50 (0.50 to 0.50)"
    assert lines[2] == f"| squeezenet | 1 | fp32 | 100 | {both} | {torch} | 30 | 1e-06 |"
    assert lines[3] == "| x | 1 | fp32 | 9 | 9, 1.00 (1.00 to 1.00) |  | 30 | 1e-06 |"
    assert len(lines) == 4
    assert searches.splitlines()[2] == "| squeezenet | 1 | fp32 | 4.2 | 70 | 80 | 1.0% | 1.25 | 9 | 8 |"


def test_two_gpus_are_not_mixed(report: ModuleType, written: Callable[..., Path]) -> None:
    paths = [written("a.json", "H100"), written("b.json", "H200")]
    with pytest.raises(SystemExit):
        report.main(list(map(str, paths)))


def test_the_chart_has_a_bar_for_each_alternative(report: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "c.svg", [case("x", sequential=100.0, both=50.0), case("y", sequential=9.0)], "title")
    assert (tmp_path / "c.svg").read_text().count('<g id="patch_') >= 3
