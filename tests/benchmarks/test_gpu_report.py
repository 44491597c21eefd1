"""Tables of GPU results say what was measured, also where only a part of it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def report(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_report")


def entry(state: str = "done", *reasons: str, found: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"state": state, "attempts": max(len(reasons), 1), "reasons": list(reasons), "found": found}


def found(network: str, gpu: str = "H100", **medians: float) -> dict[str, Any]:
    ours = dict.fromkeys(("sequential", "both"), 1e-06)
    searched = {
        "seconds": 3.25, "measurements": 70, "from_database": 2, "signatures": 80, "gap": 0.01, "predicted_us": 40.0,
    }  # fmt: skip
    return {
        "gpu": gpu, "versions": {"cudnn": "91900"}, "clock": {"before": None, "after": {"sm_mhz": 1980}},
        "network": network, "batch": 1, "precision": "fp32", "median_us": medians, "correct": True, "complete": True,
        "relative_error": {**ours, "torch": 0.5}, "kernels": {"sequential": 9, "both": 8},
        "samples_us": {name: [median * x for x in (1.0, 0.9, 1.1, 1.0, 2.0, 1.0)] for name, median in medians.items()},
        "idle_us": {name: [median + 5.0] * 6 for name, median in medians.items()},
        "roofline_us": {"arithmetic": 12.0, "memory": 30.0},
        "seconds": {"build": 9.0, "open": 1.0, "compare": 2.5},
        "search": {"kind": "quick", "ended_by_time": False, "strategies": {"both": searched}},
    }  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, **cases: dict[str, Any]) -> str:
        path = tmp_path / name
        keys = {key.replace("__", "/"): each for key, each in cases.items()}
        path.write_text(json.dumps({"format": "iosched.gpu-benchmark", "version": 1, "cases": keys}))
        return str(path)

    return write


def test_the_fastest_schedule_stands_with_its_speedups(
    report: ModuleType, written: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    done = entry(found=found("squeezenet", sequential=100.0, both=50.0, **{"torch-cudagraph": 200.0}))
    half = found("nasnet_a", sequential=100.0) | {"kernels": {"sequential": 9}}
    path = written(
        "a.json",
        first__a=done,
        first__half=entry("partial", "its process was ended by SIGABRT", "ended after 20 s", found=half),
        first__gone=entry("begun"),
    )
    report.main([path])
    summary, missing = capsys.readouterr().out.strip().split("\n\n")
    assert summary.splitlines()[2:] == [
        "| squeezenet | fp32 | 100 | 50 | both | 2.00 (2.00 to 2.00) | 4.00 (4.00 to 4.00) |",
        "| nasnet_a | fp32 | 100 | 100 | sequential | 1 |  |",
    ]
    assert missing.splitlines()[2:] == [
        "| first/half | partial | 2 | its process was ended by SIGABRT; ended after 20 s |",
        "| first/gone | begun | 1 | never came back |",
    ]


def test_nothing_measured_yet_is_no_error(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main([str(tmp_path / "none.json")])
    assert capsys.readouterr().out == ""


def test_the_analytic_model_is_compared_with_what_was_measured(report: ModuleType) -> None:
    cases = {"first/squeezenet": entry(found=found("squeezenet", sequential=640.0, greedy=500.0, paper=400.0))}
    headers, (row, mean) = report.predicted_table(cases, "h100")
    of = dict(zip(headers, row, strict=True))
    assert of["measured"] == "1.60"
    assert float(of["sequential"]) == pytest.approx(325 / 640, abs=0.02)
    assert mean[2:5] == row[2:5]
