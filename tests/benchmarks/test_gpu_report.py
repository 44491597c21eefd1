"""Tables and charts of GPU results say what was measured, also where only a part of it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


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


def sections(text: str) -> dict[str, list[str]]:
    """The rows of each table, without its headers, by the title."""
    parts = text.strip().split("\n\n")
    return {title: table.splitlines()[2:] for title, table in zip(parts[::2], parts[1::2], strict=True)}


def test_alternatives_stand_beside_the_sequential_graph_and_beside_pytorch(
    report: ModuleType, written: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = entry(found=found("squeezenet", sequential=100.0, both=50.0, **{"torch-cudagraph": 200.0}))
    report.main(
        [written("a.json", first__a=first), written("b.json", tf32__b=entry(found=found("x", sequential=9, both=9)))]
    )
    tables = sections(capsys.readouterr().out)
    assert tables["Measured on"] == ["| H100 | cudnn 91900 | 1980 to 1980 |"]
    both, torch = "50, 2.00 (2.00 to 2.00)", "200, 0.50 (0.50 to 0.50)"
    assert tables["Latency in a row in us, and how many times as fast as 'sequential'"] == [
        f"| first/a | 100 | {both} | {torch} | 30 | 1e-06 |",
        "| tf32/b | 9 | 9, 1.00 (1.00 to 1.00) |  | 30 | 1e-06 |",
    ]
    assert tables["How many times as fast as 'torch-cudagraph'"] == [
        "| first/a | 2.00 (2.00 to 2.00) | 4.00 (4.00 to 4.00) |"
    ]
    assert tables["Latency on an idle GPU in us, in which the launch counts, and what it adds"][0] == (
        "| first/a | 105, +5.0 | 55, +5.0 | 205, +5.0 |"
    )
    assert tables["Searches"][0] == "| first/a | quick | 3.2 | 70 | 2 | 80 | 1.0% | 1.25 | 9 | 8 |"
    (took, _) = tables["Seconds of each case on the GPU, as estimated and as they were"]
    assert took == "| first/a |  | 6.8 | search both 3.2, compare 2.5, open 1.0 |"


def test_what_is_not_done_is_told_with_the_reason_and_what_there_is_of_it_is_shown(
    report: ModuleType, written: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    half = found("nasnet_a", sequential=100.0, greedy=80.0)
    half |= {"search": {"paper": {}}, "kernels": {"sequential": 9}, "complete": False}
    tests = entry(found={"complete": True, "printed": ["...", "== 9 passed in 3 s =="], "seconds": {"all": 3.0}})
    path = written(
        "a.json",
        first__half=entry("partial", "its process was ended by SIGABRT", "ended after 20 s", found=half),
        first__gone=entry("begun"),
        first__bad=entry("failed", "DeviceError: no memory left"),
        tests__all=tests,
    )
    report.main([path])
    tables = sections(capsys.readouterr().out)
    assert tables["Not measured to its end"] == [
        "| first/half | partial | 2 | its process was ended by SIGABRT; ended after 20 s |",
        "| first/gone | begun | 1 | never came back |",
        "| first/bad | failed | 1 | DeviceError: no memory left |",
    ]
    assert tables["Scripts"] == ["| tests/all | done | 9 passed in 3 s |"]
    assert tables["Searches"] == ["| first/half | none |  |  |  |  |  |  | 9 |  |"]
    assert len(tables["Latency in a row in us, and how many times as fast as 'sequential'"]) == 1


def test_nothing_measured_yet_is_no_error(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report.main([str(tmp_path / "none.json")])
    assert capsys.readouterr().out == ""


def test_two_gpus_are_not_mixed(report: ModuleType, written: Callable[..., str]) -> None:
    paths = [written(f"{gpu}.json", first__x=entry(found=found("x", gpu, sequential=1.0))) for gpu in ("A", "B")]
    with pytest.raises(SystemExit):
        report.main(paths)


@pytest.mark.slow
def test_the_chart_has_a_bar_for_each_alternative(report: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "c.svg", [found("x", sequential=100.0, both=50.0), found("y", sequential=9.0)], "title")
    assert (tmp_path / "c.svg").read_text().count('<g id="patch_') >= 3


def test_the_table_of_the_documentation_is_that_of_the_results(report: ModuleType, capsys: Any) -> None:
    report.main([str(ROOT / "benchmarks" / "results" / "gpu-h100.json")])
    printed = capsys.readouterr().out
    for title, page in {"In short": "benchmarks/reports/cuda-h100.md", "By network": "docs/cuda.md"}.items():
        assert printed.split(f"{title}\n\n")[1].split("\n\n")[0] in (ROOT / page).read_text(), page


def test_the_analytic_model_is_compared_with_what_was_measured(report: ModuleType) -> None:
    cases = {"first/squeezenet": found("squeezenet", sequential=640.0, greedy=500.0, paper=400.0)}
    headers, (row, mean) = report.predicted_table(cases, "h100")
    of = dict(zip(headers, row, strict=True))
    assert of["measured"] == "1.60"
    assert float(of["sequential"]) == pytest.approx(309 / 640, abs=0.02)
    assert mean[2:5] == row[2:5]
