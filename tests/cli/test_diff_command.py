"""`diff`: two schedules or two results of `bench`, with exit codes that a job can rely on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from iosched.cli.diff import _WORDS
from iosched.scheduler.difference import Change

NOISE = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02, 1.0, 0.99, 1.01)


@pytest.fixture
def planned(invoke, model: Path) -> Callable[[str, str], Path]:
    """Writes an optimized model with a schedule of this strategy, and its schedule file."""

    def plan(strategy: str, device: str = "v100") -> Path:
        path = Path(f"{strategy}-{device}.onnx")
        result = invoke(
            "optimize",
            model,
            "--device",
            device,
            "--strategy",
            strategy,
            "-o",
            path,
            "--schedule",
            path.with_suffix(".json"),
            "-q",
        )
        assert result.exit_code == 0, result.stderr
        return path

    return plan


@pytest.fixture
def measured(workdir: Path) -> Callable[..., Path]:
    """Writes a result of `bench` whose rows have these medians."""

    def write(name: str, model: str = "net", rounds: int = 9, **medians: float) -> Path:
        samples = {row: [median * each for each in NOISE[:rounds]] for row, median in medians.items()}
        rows = [{"name": row, "in_flight": 1} for row in medians]
        found = {"model": model, "device": "CPU", "batch_size": 1, "rows": rows, "samples_us": samples}
        Path(name).write_text(json.dumps(found) + "\n")
        return Path(name)

    return write


def test_a_schedule_equals_itself_in_a_file_and_in_a_model(invoke, planned) -> None:
    path = planned("greedy")
    result = invoke("diff", path, path.with_suffix(".json"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[-1].startswith("All ")
    assert result.stdout.splitlines()[-1].endswith("operators run alike.")


def test_schedules_that_differ_have_a_line_for_each_operator_and_exit_code_4(invoke, planned) -> None:
    one, other = planned("sequential"), planned("greedy")
    result = invoke("diff", one, other)
    assert result.exit_code == 4
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["stages", "that", "differ", "A", "|", "B", "A", "B"]
    (count,) = re.findall(r"(\d+) of \d+ operators run differently", result.stderr)
    assert sum("in another stage: stage " in line and " -> stage " in line for line in lines) == int(count)
    (total,) = [line for line in lines if line.startswith("all ")]
    assert total.count("s") >= 2


def test_json_of_schedules(invoke, planned) -> None:
    one, other = planned("sequential"), planned("greedy", "k80")
    result = invoke("diff", one, other, "--json", "-q")
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert set(found) == {"kind", "equal", "count", "a", "b", "operators", "stages", "remarks", "provenance"}
    assert (found["kind"], found["equal"]) == ("schedule", False)
    keys = {"model", "device", "cost", "shipped", "stages", "latency_us", "predicted_us"}
    assert set(found["a"]) == set(found["b"]) == keys
    assert found["a"]["stages"] == found["count"]
    assert found["a"]["predicted_us"] == pytest.approx(sum(each["a_us"] or 0 for each in found["stages"]))
    moved = found["operators"][0]
    assert set(moved) == {"operator", "changes", "a", "b"}
    assert set(moved["a"]) == {"block", "stage", "group", "strategy", "together", "lanes"}
    assert "Different devices" in found["remarks"][0]


def test_all_stages_are_shown_on_request(invoke, planned) -> None:
    path = planned("sequential")
    stages = json.loads(invoke("diff", path, path, "--json").stdout)["stages"]
    assert len(invoke("diff", path, path, "-v").stdout.splitlines()) == len(stages) + 3
    assert f"{len(stages)} equal stages" in invoke("diff", path, path).stdout


def test_results_are_compared_row_by_row(invoke, measured) -> None:
    one, other = measured("a.json", iosched=100, greedy=50), measured("b.json", iosched=150, sequential=50)
    result = invoke("diff", one, other)
    assert result.exit_code == 0
    assert result.stderr.splitlines() == ["greedy is in A only.", "sequential is in B only."]
    title, _, line = result.stdout.splitlines()
    assert title == "batch 1"
    assert line.split()[:6] == ["iosched", "100.0", "µs", "150.0", "µs", "1.500x"]
    assert line.endswith("slower")


@pytest.mark.parametrize(("allowed", "code"), [("3%", 4), ("60 %", 0), ("40.5%", 4)])
def test_the_gate(invoke, measured, allowed: str, code: int) -> None:
    one, other = measured("a.json", iosched=100, greedy=1), measured("b.json", iosched=150, greedy=9)
    result = invoke("diff", one, other, "--max-regression", allowed)
    assert result.exit_code == code
    assert "1.500x" in result.stdout
    assert ("Error: slower by more than" in result.stderr) is (code == 4)


def test_the_gate_looks_at_the_rows_that_are_named(invoke, measured) -> None:
    one, other = measured("a.json", iosched=100, greedy=1), measured("b.json", iosched=150, greedy=1)
    assert invoke("diff", one, other, "--max-regression", "3%", "--row", "greedy").exit_code == 0


def test_json_of_results(invoke, measured) -> None:
    one, other = measured("a.json", iosched=100, onnxruntime=100), measured("b.json", iosched=150, onnxruntime=100)
    words = ("--json", "--max-regression", "3%", "--seed", 7, "--relative-to", "onnxruntime")
    result = invoke("diff", one, other, *words)
    assert result.exit_code == 4
    found = json.loads(result.stdout)
    assert set(found) == {
        *("kind", "level", "seed", "relative_to", "rows", "only_in_a", "only_in_b", "gate", "remarks"),
        "provenance",
    }
    (row,) = found["rows"]
    assert set(row) == {"batch_size", "name", "a", "b", "ratio", "low", "high", "samples", "verdict"}
    assert (found["kind"], found["seed"], row["verdict"]) == ("bench", 7, "slower")
    assert found["gate"] == {
        "max_regression": 0.03,
        "passed": False,
        "rows": [{"batch_size": 1, "name": "iosched"}],
        "failed": [{"batch_size": 1, "name": "iosched"}],
    }


def test_output_of_bench_can_be_compared(invoke, model: Path) -> None:
    for name in ("a.json", "b.json"):
        done = invoke("bench", model, "--with", "greedy", "--rounds", 6, "--json", "--threads", 2)
        Path(name).write_text(done.stdout)
    result = invoke("diff", "a.json", "-", "--json", stdin=Path("b.json").read_bytes())
    assert result.exit_code == 0, result.stderr
    assert {row["name"] for row in json.loads(result.stdout)["rows"]} == {"sequential", "greedy"}


def test_results_of_different_models_are_refused_without_anyway(invoke, complains, measured) -> None:
    one, other = measured("a.json", iosched=1), measured("b.json", "other", iosched=1)
    complains(invoke("diff", one, other), 2, "different models (net and other)", "--anyway")
    result = invoke("diff", one, other, "--anyway")
    assert result.exit_code == 0
    assert "The two are of different models" in result.stderr


def test_a_schedule_and_a_result_cannot_be_compared(invoke, complains, planned, measured) -> None:
    schedule, result = planned("greedy"), measured("b.json", iosched=1)
    for pair in ((schedule, result), (result, schedule)):
        complains(invoke("diff", *pair), 2, f"{schedule} is a schedule and {result} a result", "the same kind")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"rows": 3, "samples_us": {}}', "not a result of 'iosched bench --json'"),
        (b"{}", "bad.json"),
        (b"\x08\x01", "neither a schedule nor a model with a schedule: it is not an ONNX model"),
        (b"", "a schedule: it is empty"),
    ],
)
def test_broken_files_are_refused(invoke, complains, measured, data: bytes, words: str) -> None:
    Path("bad.json").write_bytes(data)
    complains(invoke("diff", measured("a.json", iosched=1), "bad.json"), 2, words)
    complains(invoke("diff", "bad.json", "a.json"), 2, words)


def test_wrong_usage_is_refused(invoke, complains, planned, measured) -> None:
    schedule, result = planned("greedy"), measured("b.json", iosched=1)
    complains(invoke("diff", "-", "-"), 2)
    complains(invoke("diff", schedule, "missing.json"), 2, "missing.json: No such file")
    complains(invoke("diff", schedule, schedule, "--max-regression", "3%"), 2, "for results of 'iosched bench")
    complains(invoke("diff", result, result, "--row", "iosched"), 2, "--max-regression")
    complains(invoke("diff", result, result, "--max-regression", "3%", "--row", "none"), 2, "'none'")
    for text in ("3", "-3%", "nan%", "%"):
        result_of = invoke("diff", result, result, f"--max-regression={text}")
        assert result_of.exit_code == 2
        assert "percent" in result_of.stderr


def test_a_gate_with_too_few_samples_is_refused(invoke, complains, measured) -> None:
    one = measured("a.json", rounds=5, iosched=100)
    complains(invoke("diff", one, one, "--max-regression", "3%"), 2, "too few samples", "--rounds")
    assert "too few samples" in invoke("diff", one, one).stdout


def test_every_change_of_an_operator_that_both_have_is_named() -> None:
    assert set(_WORDS) == {change.value for change in Change} - {Change.MISSING}
