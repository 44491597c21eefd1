"""`iosched bench`: interleaved rows, JSON, and the chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from scripted import script_stages
from small_models import branches

from iosched.jobs import bench as bench_job
from iosched.jobs.bench import BenchResult
from iosched.jobs.row import Row
from iosched.profiler.devices.cpu import open as cpu_open
from iosched.profiler.measuring.statistics import Interval, summarize

ROW_KEYS = {
    "name", "median_us", "p10_us", "p90_us", "min_us", "samples", "speedup", "speedup_low", "speedup_high", "rested_us",
    "runs", "p99_us", "p99_low_us", "p99_high_us", "in_flight", "images_per_s", "speedup_over_baseline",
    "speedup_over_baseline_low", "speedup_over_baseline_high",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replaces measuring with a made-up result; collects the names of the requested rows."""
    found: list[tuple[str, ...]] = []

    def fake(
        model: object,
        document: object,
        *,
        names: tuple[str, ...],
        baseline: str | None,
        background_load: int,
        **_: object,
    ) -> BenchResult:
        found.append(tuple(names))
        runs_us = (8.0, *(9.0,) * 79, *(10.0,) * 240, *(12.0,) * 70, *(19.0,) * 10)
        slow = replace(summarize([8.0, 10.0, 12.0]), rested_us=(14.0,), runs_us=runs_us)
        fast = replace(summarize([4.0, 5.0, 6.0]), rested_us=(13.0,), runs_us=(4.0, 4.0, 5.0, 6.0, 6.0))
        over = None if baseline is None else Interval(0.8, 0.7, 0.9)
        rows = (
            Row("sequential", slow, over_sequential=Interval(1.0, 1.0, 1.0), over_baseline=over),
            Row("both", fast, over_sequential=Interval(2.0, 1.9, 2.1), over_baseline=over),
            Row("greedy", fast, over_baseline=over),
        )
        missing = (("openvino", "not installed"),)
        return BenchResult("Test CPU", rows, missing, baseline=baseline, background_load=background_load)

    monkeypatch.setattr(bench_job, "bench", fake)
    return found


def test_json_has_the_keys_that_scripts_rely_on(invoke, model: Path, asked) -> None:
    result = invoke("bench", model, "--json")
    found = json.loads(result.stdout)
    assert set(found) == {
        "model",
        "device",
        "batch_size",
        "rows",
        "samples_us",
        "runs_us",
        "missing",
        "notes",
        "baseline",
        "provenance",
    }
    assert (found["model"], found["device"], found["batch_size"]) == ("branches", "Test CPU", 1)
    assert all(set(row) == ROW_KEYS for row in found["rows"])
    assert found["samples_us"]["both"] == [4.0, 5.0, 6.0]
    assert "openvino is skipped: not installed" in result.stderr


def test_the_table_has_a_line_for_each_row(invoke, model: Path, asked) -> None:
    lines = invoke("bench", model).stdout.splitlines()
    assert lines[0] == "branches, batch 1, Test CPU"
    assert lines[1].split()[:5] == ["p50", "p90", "p99", "p10", "min"]
    assert lines[2].split()[:11] == ["sequential", "10.0", "µs", "12.0", "µs", "19.0", "µs", "9.0", "µs", "8.0", "µs"]
    assert lines[3].split()[:8] == ["both", "5.0", "µs", "6.0", "µs", "unknown", "4.0", "µs"]
    assert "after idle" in lines[1]
    assert lines[3].endswith("  2.000x (1.900 to 2.100)")
    assert lines[4].endswith("  too few rounds")


def test_the_table_explains_its_rows(invoke, model: Path, asked) -> None:
    lines = invoke("bench", model).stdout.splitlines()
    assert lines[5:] == [
        "rows",
        "  sequential  one operator after another",
        "  both        IOS: each stage concurrent or merged, whichever is faster",
        "  greedy      each stage runs all ready operators",
    ]


def test_a_baseline_is_a_column_with_intervals(invoke, model: Path, asked) -> None:
    lines = invoke("bench", model, "--baseline", "both").stdout.splitlines()
    assert lines[1].endswith("  speedup (95 % interval)  over both (95 % interval)")
    assert lines[3].endswith("  2.000x (1.900 to 2.100)    0.800x (0.700 to 0.900)")
    found = json.loads(invoke("bench", model, "--baseline", "both", "--json").stdout)
    assert found["baseline"] == "both"
    assert [row["speedup_over_baseline"] for row in found["rows"]] == [0.8, 0.8, 0.8]


def test_the_title_and_the_provenance_name_the_background_load(invoke, complains, model: Path, asked) -> None:
    words = ("--background-load", 2)
    assert invoke("bench", model, *words).stdout.startswith("branches, batch 1, Test CPU, background load 2\n")
    assert json.loads(invoke("bench", model, *words, "--json").stdout)["provenance"]["background_load"] == 2
    assert json.loads(invoke("bench", model, "--json").stdout)["provenance"]["background_load"] == 0
    asked.clear()
    complains(invoke("bench", model, "--background-load", -1), 2, "--background-load", "-1")
    assert asked == []


def test_the_rows_to_measure_are_announced(invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        cpu_open, "measure_interleaved", lambda rows, *_: {name: summarize([10.0] * 7) for name in rows}
    )
    script_stages(monkeypatch)
    onnx.save(branches(batch="n"), workdir / "dynamic.onnx")
    words = ("bench", "dynamic.onnx", "--threads", 1, "--batch-size", 1, "--batch-size", 4, "--json")
    lines = invoke(*words, "--with", "merge", "--with", "onnxruntime").stderr.splitlines()
    assert [line for line in lines if line.startswith("Measuring ")] == [
        f"Measuring sequential, merge, onnxruntime at batch size {size}: 50 rounds, fewer if runs take 10 minutes. The "
        "search for merge comes first and has no time limit."
        for size in (1, 4)
    ]
    assert "Measuring" not in invoke(*words, "-q").stderr


def test_names_choose_the_rows(invoke, complains, model: Path, asked) -> None:
    assert invoke("bench", model, "--with", "both", "--with", "onnxruntime").exit_code == 0
    assert asked == [("both", "onnxruntime")]
    complains(invoke("bench", model, "--with", "no-such"), 2, "no-such")
    complains(invoke("bench", model, "--with", "iosched"), 2, "iosched optimize")


@pytest.mark.parametrize(
    "text",
    [
        "same (string[3] word) => (string[3] y) { y = Identity(word) }",
        "one () => (float[1] y) <float[1] c={1}> { y = Relu(c) }",
    ],
    ids=["of-texts", "of-no-inputs"],
)
def test_a_model_without_a_schedule_is_refused_with_both_reasons(invoke, complains, workdir: Path, text: str) -> None:
    onnx.save(onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> {text}"""), workdir / "none.onnx")
    complains(
        invoke("bench", "none.onnx", "--device", "cpu"), 2, "without a fixed size", "no operators", "'iosched run'"
    )


def test_each_batch_size_is_a_line_of_json(invoke, workdir: Path, asked) -> None:
    onnx.save(branches(batch="n"), workdir / "dynamic.onnx")
    lines = invoke("bench", "dynamic.onnx", "--batch-size", 1, "--batch-size", 4, "--json").stdout.splitlines()
    assert [json.loads(line)["batch_size"] for line in lines] == [1, 4]


def test_the_chart_has_a_bar_for_each_row(invoke, model: Path, asked, workdir: Path) -> None:
    assert invoke("bench", model, "--plot", "bench.svg").exit_code == 0
    texts = [text.text for text in ET.parse(workdir / "bench.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"sequential", "both", "10.0 µs", "5.0 µs"} <= set(texts)


def test_wrong_usage_is_refused_before_the_work(invoke, complains, model: Path, asked) -> None:
    complains(invoke("bench", model, "--plot", "no/such.svg"), 2, "no folder")
    complains(invoke("bench", model, "--plot", "-", "--json"), 2, "both write to stdout")
    complains(invoke("bench", "-", "--batch-size", 1, "--batch-size", 2, stdin=b"x"), 2, "once")
    complains(invoke("bench", "-", "--schedule", "-", stdin=b"x"), 2, "both")
    complains(invoke("bench", model, "--plot", "a.svg", "--batch-size", 1, "--batch-size", 2), 2, "--plot")
    assert asked == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--with", "greedy", "--baseline", "onnxruntime"), 2, "--with onnxruntime"),
        (("--baseline", "onnxruntime-sessions"), 2, "--with onnxruntime-sessions"),
        (("--baseline", "no-such"), 2, "no-such"),
        (("--baseline", "iosched"), 2, "iosched optimize"),
        (("--with", "onnxruntime-cuda", "--baseline", "onnxruntime-cuda"), 3, "onnxruntime-cuda"),
    ],
)
def test_a_baseline_that_is_not_a_row_is_refused_before_measuring(
    invoke, complains, model: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, said: str
) -> None:
    monkeypatch.setattr(cpu_open, "measure_interleaved", lambda *_: pytest.fail("measured"))
    script_stages(monkeypatch)
    complains(invoke("bench", model, "--device", "cpu", "--threads", 1, *words), code, said)


def test_a_baseline_of_real_measurements(invoke, model: Path) -> None:
    words = ("--with", "greedy", "--with", "onnxruntime", "--baseline", "onnxruntime", "--rounds", 6, "--threads", 1)
    found = json.loads(invoke("bench", model, *words, "--json").stdout)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == ["sequential", "onnxruntime", "greedy"]
    assert (rows["sequential"]["speedup"], rows["onnxruntime"]["speedup_over_baseline"]) == (1.0, 1.0)
    quotient = rows["onnxruntime"]["median_us"] / rows["greedy"]["median_us"]
    assert rows["greedy"]["speedup_over_baseline"] == pytest.approx(quotient)


def test_the_gate_finds_its_row_among_other_measured_rows(invoke, model: Path, workdir: Path) -> None:
    assert invoke("optimize", model, "--strategy", "greedy", "--threads", 1).exit_code == 0
    for name in ("before", "now"):
        words = ("--with", "onnxruntime", "--rounds", 6, "--threads", 1, "--json")
        (workdir / f"{name}.json").write_text(invoke("bench", "branches.iosched.onnx", *words).stdout)
    words = ("--relative-to", "onnxruntime", "--max-regression", "900000%", "--json")
    found = json.loads(invoke("diff", "before.json", "now.json", *words).stdout)
    assert found["gate"]["rows"] == [{"batch_size": 1, "name": "iosched"}]


def test_real_measurements(invoke, model: Path) -> None:
    words = ("--with", "greedy", "--with", "onnxruntime", "--rounds", 3, "--threads", 1, "--json")
    found = json.loads(invoke("bench", model, *words).stdout)
    assert [row["name"] for row in found["rows"]] == ["sequential", "greedy", "onnxruntime"]
    assert all(row["median_us"] > 0 for row in found["rows"])
