"""`iosched bench`: rows in turn, JSON, and the chart."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import onnx
import pytest
from small_models import branches

from iosched.cli.bench import NAMES
from iosched.jobs import bench as bench_job
from iosched.jobs.bench import BenchResult, BenchRow

ROW_KEYS = {
    "name", "median_us", "p10_us", "p90_us", "min_us", "samples", "speedup", "speedup_low", "speedup_high", "rested_us",
    "runs", "p99_us", "p99_low_us", "p99_high_us", "in_flight", "images_per_s",
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Replaces measuring by a made-up result; collects the names it was asked for."""
    found: list[tuple[str, ...]] = []

    def fake(model: object, document: object, *, names: tuple[str, ...], **_: object) -> BenchResult:
        found.append(tuple(names))
        rows = (
            BenchRow("sequential", 10.0, 9.0, 12.0, 8.0, 3, 1.0, 1.0, 1.0, 14.0, 400, 19.0, 18.0, 30.0),
            BenchRow("both", 5.0, 4.0, 6.0, 4.0, 3, 2.0, 1.9, 2.1, 13.0),
            BenchRow("greedy", 5.0, 4.0, 6.0, 4.0, 3, None, None, None, 12.0),
        )
        samples = {"sequential": (8.0, 10.0, 12.0), "both": (4.0, 5.0, 6.0)}
        return BenchResult("Test CPU", rows, samples, (("openvino", "not installed"),))

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
        "provenance",
    }
    assert (found["model"], found["device"], found["batch_size"]) == ("branches", "Test CPU", 1)
    assert all(set(row) == ROW_KEYS for row in found["rows"])
    assert found["samples_us"]["both"] == [4.0, 5.0, 6.0]
    assert "openvino is left out: not installed" in result.stderr


def test_the_table_has_a_line_for_each_row(invoke, model: Path, asked) -> None:
    lines = invoke("bench", model).stdout.splitlines()
    assert lines[0] == "branches, batch 1, Test CPU"
    assert lines[1].split()[:5] == ["p50", "p90", "p99", "p10", "min"]
    assert lines[2].split()[:11] == ["sequential", "10.0", "µs", "12.0", "µs", "19.0", "µs", "9.0", "µs", "8.0", "µs"]
    assert lines[3].split()[:9] == ["both", "5.0", "µs", "6.0", "µs", "not", "known", "4.0", "µs"]
    assert "after a rest" in lines[1]
    assert lines[3].endswith("  2.000x (1.900 to 2.100)")
    assert lines[4].endswith("  too few rounds")


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
    complains(invoke("bench", "none.onnx", "--device", "cpu"), 2, "no fixed size", "computes nothing", "'iosched run'")


def test_every_name_is_one_that_can_be_measured() -> None:
    assert NAMES == bench_job.NAMES


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


def test_real_measurements(invoke, model: Path) -> None:
    words = ("--with", "greedy", "--with", "onnxruntime", "--rounds", 3, "--threads", 1, "--json")
    found = json.loads(invoke("bench", model, *words).stdout)
    assert [row["name"] for row in found["rows"]] == ["sequential", "greedy", "onnxruntime"]
    assert all(row["median_us"] > 0 for row in found["rows"])
