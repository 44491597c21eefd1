"""`iosched rank`: a table or JSON with a row for each model on each device, and exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import onnx
import pytest
import scripted
from scripted import LATENCIES_US, script_models, script_stages
from small_models import branches

from iosched.jobs import time_budget
from iosched.profiler.devices.cpu import measured_cost as cpu_cost

ROW_KEYS = {
    "model", "device", "cost", "latency_us", "low_us", "high_us", "sequential_us", "flops", "params", "hit_rate",
    "error", "level", "shipped", "sum_us", "share_of_peak", "measured_share", "search_seconds",
    "comparison_seconds", "notes",
}  # fmt: skip


@pytest.fixture
def models(workdir: Path) -> Path:
    onnx.save(branches(channels=64), workdir / "large.onnx")
    onnx.save(branches(channels=8), workdir / "small.onnx")
    (workdir / "broken.onnx").write_bytes(b"nothing")
    return workdir


def test_json_has_the_keys_that_scripts_rely_on(invoke, models: Path) -> None:
    result = invoke("rank", "large.onnx", "broken.onnx", "small.onnx", "--device", "v100,t4", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert set(found) == {"rows", "measure", "hit_rate", "interrupted", "seconds", "notes", "provenance"}
    assert (found["measure"], found["interrupted"]) == ("models", False)
    assert all(set(row) == ROW_KEYS for row in found["rows"])
    assert [(row["model"], row["device"]) for row in found["rows"]] == [
        (model, device) for device in ("v100", "t4") for model in ("small", "large", "broken")
    ]
    for row in found["rows"]:
        if row["model"] == "broken":
            assert row["latency_us"] is row["cost"] is row["params"] is None
            assert "broken.onnx" in row["error"]
        else:
            assert (row["cost"], row["error"], row["hit_rate"]) == ("analytic", None, None)
            assert row["low_us"] < row["latency_us"] < row["high_us"]
            assert 0 < row["share_of_peak"] < 1
            assert row["params"] == (10 * 64 * 64 if row["model"] == "large" else 10 * 8 * 8)


def test_the_table_names_the_source_of_latencies_and_stderr_the_errors(
    invoke, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "greedy": 10.0})  # it is the schedule found
    result = invoke("rank", "large.onnx", "broken.onnx", "--device", "cpu,v100", "--threads", 2, "--profile-db", "p.db")
    assert result.exit_code == 0
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert rows[0] == "2 models, 0% of stages from the database"
    assert rows[1].startswith("model device latency interval sequential parameters FLOPs share of peak source in")
    assert rows[2].startswith("large cpu 10.0 µs 10.0 µs to 10.0 µs (95%) 20.0 µs 40.96 k 2.95 M measured, iosched 0%")
    assert rows[3] == "broken cpu error"
    assert "(90%)" in rows[4]
    assert "analytic" in rows[4]
    assert "broken on v100: broken.onnx" in result.stderr


def test_interference_with_whole_models_is_noted(invoke, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    monkeypatch.setattr(scripted, "scripted_round", partial(scripted.scripted_round, others=0.5))
    monkeypatch.setattr(time_budget, "MOST_DECIDING_S", 0.0)
    result = invoke("rank", "small.onnx", "--device", "cpu,v100", "--threads", 2, "--profile-db", "p.db")
    assert "\nsmall on cpu: Other processes interfered with " in f"\n{result.stderr}"
    assert "small on v100" not in result.stderr


def test_an_estimate_of_unknown_uncertainty_is_marked(invoke, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    result = invoke("rank", "small.onnx", "--device", "cpu", "--threads", 2, "--measure", "stages")
    assert "estimated" in result.stdout
    assert "unknown" in result.stdout
    assert "0 of the 9 whole models" in result.stderr


def test_the_table_of_an_interrupted_call_marks_each_unfinished_row(
    invoke, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(cpu_cost, "measure", interrupted)
    result = invoke("rank", "broken.onnx", "large.onnx", "small.onnx", "--device", "v100,cpu", "--threads", 2)
    assert result.exit_code == 130
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert [row.split()[:2] for row in rows[2:]] == [
        ["large", "v100"], ["broken", "v100"], ["small", "v100"], ["broken", "cpu"], ["large", "cpu"], ["small", "cpu"],
    ]  # fmt: skip
    assert [row.endswith("interrupted") for row in rows[2:]] == [False, False, True, False, True, True]
    assert "broken on cpu: " in result.stderr
    assert "small" not in result.stderr
    assert result.stderr.splitlines()[-1] == "Interrupted; measurements are kept."


def test_models_with_the_same_file_name_are_named_by_their_paths(invoke, models: Path) -> None:
    for folder in ("a", "b"):
        (models / folder).mkdir()
        onnx.save(branches(), models / folder / "model.onnx")
    given = ("a/model.onnx", "b/model.onnx", "small.onnx")
    rows = json.loads(invoke("rank", *given, "--device", "v100", "--json").stdout)["rows"]
    assert sorted(row["model"] for row in rows) == ["a/model.onnx", "b/model.onnx", "small"]
    twice = invoke("rank", "small.onnx", "small.onnx", "--device", "v100")
    assert twice.exit_code == 2
    assert "small.onnx is given twice" in twice.stderr


def test_a_model_may_come_from_standard_input_with_its_shape(invoke, workdir: Path) -> None:
    data = branches(batch="n").SerializeToString()
    given = ("rank", "-", "--device", "v100", "--batch-size", 4, "--json")
    four = json.loads(invoke(*given, stdin=data).stdout)["rows"][0]
    shaped = ("rank", "-", "--device", "v100", "--input-shape", "x=1x8x6x6", "--json")
    one = json.loads(invoke(*shaped, stdin=data).stdout)["rows"][0]
    assert four["flops"] == 4 * one["flops"]
    assert four["model"] == "-"


def test_without_measuring_only_the_database_is_used(invoke, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    on_cpu = ("--device", "cpu", "--threads", 2, "--profile-db", "p.db", "--json")
    invoke("rank", "small.onnx", *on_cpu)
    count = len(stages)
    result = invoke("rank", "small.onnx", "large.onnx", *on_cpu, "--measure", "none")
    rows = json.loads(result.stdout)["rows"]
    assert (result.exit_code, len(stages)) == (0, count)
    assert [(row["model"], row["cost"]) for row in rows] == [("small", "measured"), ("large", None)]
    assert "--measure stages" in rows[1]["error"]


@pytest.mark.parametrize(("words", "code", "text"), [
    (("broken.onnx", "--device", "v100"), 2, "broken.onnx"),
    (("none.onnx", "--device", "v100"), 2, "does not exist"),
    (("small.onnx", "--device", "v1000"), 2, "did you mean"),
    (("small.onnx", "--device", ","), 2, "names no device"),
    (("small.onnx", "--device", "cuda"), 3, ""),
    (("small.onnx", "--device", "v100", "--measure", "all"), 2, "--measure"),
    (("small.onnx", "--device", "v100", "--budget", "0"), 2, "--budget"),
    ((), 2, "MODEL"),
])  # fmt: skip
def test_wrong_usage_has_an_exit_code(invoke, models: Path, words: tuple[str, ...], code: int, text: str) -> None:
    result = invoke("rank", *words)
    assert result.exit_code == code
    assert text in result.stderr
