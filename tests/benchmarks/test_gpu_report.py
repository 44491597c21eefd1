"""Tables of complete and of partial GPU results."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.fixture
def report(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("gpu_report")


def entry(state: str = "done", *reasons: str, found: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"state": state, "attempts": max(len(reasons), 1), "reasons": list(reasons), "found": found}


def found(network: str, **medians: float) -> dict[str, Any]:
    ours = dict.fromkeys(("sequential", "found"), 1e-06)
    return {
        "gpu": "NVIDIA H100", "network": network, "batch": 1, "precision": "fp32", "median_us": medians,
        "correct": True, "complete": True, "relative_error": {**ours, "torch": 0.5},
        "kernels": {"sequential": 9, "found": 8}, "nodes": {"sequential": {"kernel": 10}, "found": None},
        "samples_us": {name: [median * x for x in (1.0, 0.9, 1.1, 1.0, 2.0, 1.0)] for name, median in medians.items()},
        "missing": {"onnxruntime-tensorrt": "DeviceError: TensorRT is not installed"},
    }  # fmt: skip


def cells(report: ModuleType, title: str, **cases: dict[str, Any]) -> list[list[str]]:
    """The rows of a section of the page."""
    page = report.page({key.replace("__", "/"): each for key, each in cases.items()})
    (section,) = [part for part in page.split("\n## ") if part.startswith(title)]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_fastest_schedule_is_listed_with_its_speedups(report: ModuleType) -> None:
    done = entry(found=found("squeezenet", sequential=100.0, found=50.0, **{"torch-cudagraph": 200.0}))
    half = found("nasnet_a", sequential=100.0) | {"kernels": {"sequential": 9}}
    reasons = ("its process was ended by SIGABRT", "ended after 20 s", "ended after 20 s")
    cases = {"first__a": done, "first__half": entry("partial", *reasons, found=half), "first__gone": entry("begun")}
    assert cells(report, "Fastest schedule", **cases) == [
        ["squeezenet", "fp32", "100", "50", "found", "2.00 (2.00 to 2.00)", "4.00 (4.00 to 4.00)"],
        ["nasnet_a", "fp32", "100", "100", "sequential", "1", ""],
    ]
    assert cells(report, "Not done", **cases) == [
        ["first/half", "partial", "3", "its process was ended by SIGABRT; ended after 20 s"],
        ["first/gone", "begun", "1", "never came back"],
    ]
    assert cells(report, "Alternatives", first__a=done) == [
        ["first/a", "sequential", "100", "", "1e-06", "9", "10 kernel"],
        ["first/a", "found", "50", "2.00 (2.00 to 2.00)", "1e-06", "8", ""],
        ["first/a", "torch-cudagraph", "200", "0.50 (0.50 to 0.50)", "", "", ""],
        ["first/a", "onnxruntime-tensorrt", "DeviceError: TensorRT is not installed", "", "", "", ""],
    ]


def test_outputs_are_listed_by_precision_and_layout(report: ModuleType) -> None:
    rows = {
        "fp32 nhwc": {"errors": {"sequential": 1e-7, "greedy": 3e-7}},
        "fp16 nhwc": {"skipped": "an output is 1e9"},
        "tf32 nhwc": {"failed": "ValueError: wrong outputs"},
    }
    outputs = entry("partial", found={"outputs": rows, "complete": False})
    (row,) = cells(report, "Outputs", outputs__vgg16=outputs)
    assert row == ["vgg16", "3e-07", "an output is 1e9", "ValueError: wrong outputs"]


def test_stages_are_compared_by_kind(report: ModuleType) -> None:
    stages = [
        {"strategy": "concurrent", "groups": [["a"]], "predicted_us": 10.0, "measured_us": 5.0},
        {"strategy": "concurrent", "groups": [["b"]], "predicted_us": 5.0, "measured_us": 10.0},
        {"strategy": "concurrent", "groups": [["c"]], "predicted_us": 2.0, "measured_us": 0.0},
        {"strategy": "merge", "groups": [["a"], ["b"]], "predicted_us": 9.0, "measured_us": 10.0},
    ]
    case = entry(found={"network": "squeezenet", "precision": "fp16", "stages": stages})
    assert cells(report, "Stages", stages__a=case) == [
        ["squeezenet", "fp16", "single operators", "2", "1.00", "75%"],
        ["squeezenet", "fp16", "merged", "1", "0.90", "10%"],
    ]


def test_a_fit_is_listed_with_its_constants(report: ModuleType) -> None:
    errors = {"all": {"kernels": 60, "before": 0.4, "after": 0.2}}
    constants = {"before": {"clock": 1.0, "dram": 0.85}, "after": {"clock": 0.9, "dram": 0.92}}
    case = entry(found={"card": "h100", "fit": 140, "mean_error": errors, "constants": constants})
    assert cells(report, "Analytic model", refit__fit=case) == [
        ["all", "60", "40%", "20%"],
        ["clock of h100, fitted to 140", "", "1.0", "0.9"],
        ["dram of h100, fitted to 140", "", "0.85", "0.92"],
    ]


def test_results_of_the_first_hour_can_still_be_read(report: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    report.main([str(RESULTS / "gpu-h100.json")])
    page = capsys.readouterr().out
    assert page.startswith("# Measured on NVIDIA H100 80GB HBM3\n")
    assert {"## Fastest schedule", "## Alternatives", "## Not done"} == set(re.findall("^## .*$", page, re.MULTILINE))


def test_a_report_without_any_results_is_no_error(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main([str(tmp_path / "none")])
    assert capsys.readouterr().out == "# Measured on no GPU\n"


def test_the_analytic_model_is_compared_with_measurements(report: ModuleType) -> None:
    cases = {"first/squeezenet": entry(found=found("squeezenet", sequential=640.0, greedy=500.0, paper=400.0))}
    headers, (row, mean) = report.predicted_table(cases, "h100")
    of = dict(zip(headers, row, strict=True))
    assert of["measured"] == "1.60"
    assert float(of["sequential"]) == pytest.approx(325 / 640, abs=0.02)
    assert mean[2:5] == row[2:5]
