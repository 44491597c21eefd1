"""`iosched matrix`: the table, JSON, the heat map, and the marks of modelled latencies."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import onnx
import pytest
from small_models import branches

from iosched.cli.matrix import as_object, labels
from iosched.jobs.matrix import MatrixIntervals, MatrixResult, MatrixSettings, MatrixTarget, matrix
from iosched.models.load import load_model
from iosched.profiler.devices.profiled_device import LEVEL
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.schedule import Schedule

TARGET_KEYS = {"device", "name", "batch_size", "cost", "optimal", "proven", "taken_from", "sequential_us", "speedup"}
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text")]


def test_json_has_the_keys_that_scripts_rely_on(invoke, workdir: Path) -> None:
    onnx.save(branches(batch="n"), workdir / "dynamic.onnx")
    result = invoke("matrix", "dynamic.onnx", "--device", "v100,k80", "--batch-sizes", "1,16", "-r", 2, "--json")
    found = json.loads(result.stdout)
    assert set(found) == {
        "model", "cost", "precision", "launch", "strategy", "pruning", "targets", "latency_us", "slowdown",
        "measured_share", "notes", "intervals", "provenance",
    }  # fmt: skip
    assert (found["model"], found["cost"], found["precision"]) == ("dynamic", "analytic", "fp32")
    assert (found["strategy"], found["pruning"]) == ("both", {"r": 2, "s": 8})
    assert all(set(target) == TARGET_KEYS for target in found["targets"])
    assert [(t["device"], t["batch_size"]) for t in found["targets"]] == [
        ("v100", 1), ("v100", 16), ("k80", 1), ("k80", 16),
    ]  # fmt: skip
    assert [row[index] for index, row in enumerate(found["slowdown"])] == [1.0] * 4
    assert (found["measured_share"], found["notes"]) == ([[None] * 4] * 4, [])
    assert found["slowdown"][2][0] == found["latency_us"][2][0] / found["latency_us"][2][2]
    check_intervals(found)


def check_intervals(found: dict[str, Any]) -> None:
    assert (set(found["intervals"]), found["intervals"]["level"]) == ({"level", "latency_us", "slowdown"}, LEVEL)
    for row, latencies_us in enumerate(found["latency_us"]):
        for column, latency_us in enumerate(latencies_us):
            ends, ratio = (found["intervals"][name][row][column] for name in ("latency_us", "slowdown"))
            assert ends["low"] < latency_us < ends["high"]
            assert ratio["value"] == pytest.approx(found["slowdown"][row][column])
            assert ratio["low"] <= ratio["value"] <= ratio["high"]
            assert ratio["equal"] == (ratio["low"] <= 1 + 1e-9 and ratio["high"] >= 1 - 1e-9)
            assert row != column or (ratio["low"], ratio["high"], ratio["equal"]) == (1.0, 1.0, True)
        speedup = found["targets"][row]["speedup"]
        assert speedup["value"] == pytest.approx(found["targets"][row]["sequential_us"] / latencies_us[row])


@pytest.mark.parametrize(("low", "is_equal"), [(0.9, True), (1.01, False)])
def test_schedules_that_the_model_cannot_tell_apart_are_marked(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch, low: float, is_equal: bool
) -> None:
    target = MatrixTarget("v100", "V100", 1, "analytic", Schedule(()), None, 9.0, speedup=Interval(2.25, 2.0, 2.5))
    own = MatrixIntervals(Interval(4.0, 3.5, 4.5), Interval(1.0, 1.0, 1.0))
    other = MatrixIntervals(Interval(4.4, 4.0, 5.0), Interval(1.1, low, 1.2))
    told = MatrixResult((target, target), ((4.0, 4.4), (4.4, 4.0)), ((None,) * 2,) * 2, ((own, other), (other, own)))
    monkeypatch.setattr("iosched.jobs.matrix.matrix", lambda *_: told)
    words = ("matrix", model, "--device", "v100,k80")
    table = invoke(*words).stdout
    assert ("4.4 µs +10.0% =" in table) == is_equal
    assert ("= is equal to the row's own schedule (*) within the model's uncertainty" in table) == is_equal
    assert "3.5 to 4.5 µs" in table
    drawn = texts(invoke(*words, "--plot", "-").stdout)
    assert ("+10.0% =" in drawn) == is_equal
    assert any(text.startswith("= is equal to the row's own schedule") for text in drawn) == is_equal


def test_the_table_has_a_row_and_a_column_for_each_target(invoke, model: Path) -> None:
    result = invoke("matrix", model, "--device", "v100", "--device", "k80")
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "branches on 2 devices, batch 1: latency, computed by the analytic model for one CUDA graph, not measured"
    )
    assert lines[1].split() == ["executed", "on", "for", "v100", "for", "k80", "sequential", "*", "interval", "(90%)"]
    assert [line.split()[0] for line in lines[2:4]] == ["v100", "k80"]
    assert [line.count("*") for line in lines[2:4]] == [1, 1]
    assert all("%" in line and " to " in line for line in lines[2:4])


def test_targets_are_labelled_by_what_differs(invoke, workdir: Path) -> None:
    onnx.save(branches(batch="n"), workdir / "dynamic.onnx")
    lines = invoke("matrix", "dynamic.onnx", "--device", "v100", "--batch-sizes", "1", "--batch-sizes", "4,1").stdout
    headers = [word.strip() for word in lines.splitlines()[1].split("for ")]
    assert [header.split("  ")[0] for header in headers] == ["executed on", "batch 1", "batch 4"]
    assert "Tesla V100" in lines.splitlines()[0]
    both = invoke("matrix", "dynamic.onnx", "--device", "v100,k80", "--batch-sizes", "1,4").stdout
    assert "k80 x4" in both


def test_a_model_from_a_pipe_is_read_once_for_all_batch_sizes(invoke) -> None:
    data = branches(batch="n").SerializeToString()
    result = invoke("matrix", "-", "--device", "v100", "--batch-sizes", "1,2,8", "--json", stdin=data)
    assert [target["batch_size"] for target in json.loads(result.stdout)["targets"]] == [1, 2, 8]


def test_the_picture_says_that_nothing_was_measured(invoke, model: Path, workdir: Path) -> None:
    result = invoke("matrix", model, "--device", "v100,h100", "--plot", "m.svg")
    assert result.exit_code == 0
    found = texts((workdir / "m.svg").read_text())
    assert "latency, computed by the analytic model for one CUDA graph, not measured" in found
    assert found.count("v100") == found.count("h100") == 2
    on_stdout = invoke("matrix", model, "--device", "v100,h100", "--plot", "-").stdout
    assert on_stdout == (workdir / "m.svg").read_text()


def test_dos_is_recorded_with_its_limits(invoke, model: Path) -> None:
    found = json.loads(invoke("matrix", model, "--device", "v100", "--strategy", "dos", "--json").stdout)
    assert (found["strategy"], found["pruning"]) == ("dos", {"r": 1, "s": None})


def test_schedules_that_are_not_proven_are_reported(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    targets = (
        MatrixTarget("cpu", "Test CPU", 1, "measured", Schedule(()), None, 9.0, taken_from=1),
        MatrixTarget("v100", "V100", 1, "analytic", Schedule(()), None, 9.0),
        MatrixTarget("k80", "K80", 1, "analytic", Schedule(()), "blocks", 9.0),
        MatrixTarget("h100", "H100", 1, "analytic", Schedule(()), "whole", 9.0),
    )
    told = MatrixResult(targets, ((5.0,) * 4, (4.0,) * 4, (4.0,) * 4, (4.0,) * 4), ((None,) * 4,) * 4)
    monkeypatch.setattr("iosched.jobs.matrix.matrix", lambda *_: told)
    result = invoke("matrix", model, "--device", "cpu,v100")
    assert "for cpu ended unproven" in result.stderr
    assert "schedule for v100 is the best found, not proven optimal." in result.stderr
    assert "schedule for k80 is the best found, each block optimal, the whole graph not proven." in result.stderr
    assert "schedule for h100" not in result.stderr
    how = "on GPUs computed by the analytic model for one CUDA graph, not measured; on the CPU measured"
    assert how in result.stdout
    assert labels(told) == ["cpu", "v100", "k80", "h100"]


def test_measured_latencies_have_no_ratio_without_an_interval(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = (
        MatrixTarget("cpu", "Test CPU", 1, "measured", Schedule(()), None, 9.0),
        MatrixTarget("v100", "V100", 1, "analytic", Schedule(()), None, 9.0),
    )
    told = MatrixResult(targets, ((5.0, 6.0), (6.0, 4.0)), ((None, None), (None, None)))
    monkeypatch.setattr("iosched.jobs.matrix.matrix", lambda *_: told)
    words = ("matrix", model, "--device", "cpu,v100")
    headers, cpu, v100 = invoke(*words).stdout.splitlines()[1:]
    assert "interval" not in headers
    assert "%" not in cpu
    assert "+50.0%" in v100
    assert [text for text in texts(invoke(*words, "--plot", "-").stdout) if text.endswith("%")] == ["+50.0%"]
    assert json.loads(invoke(*words, "--json").stdout)["slowdown"] == [[None, None], [1.5, 1.0]]


def test_streams_take_longer_than_a_graph_and_json_names_the_launch(model: Path) -> None:
    batches = [(1, load_model(model))]
    wanted = [MatrixSettings(("v100",), launch="graph"), MatrixSettings(("v100",), launch="streams")]
    graphs, streams = (as_object("m", matrix(batches, settings), settings) for settings in wanted)
    assert (graphs["launch"], streams["launch"]) == ("graph", "streams")
    assert graphs["latency_us"] < streams["latency_us"]


def test_measuring_several_batch_sizes_is_announced(invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(branches(batch="n"), workdir / "dynamic.onnx")
    monkeypatch.setattr("iosched.jobs.matrix.matrix", lambda *_: MatrixResult((), (), ()))
    words = ("matrix", "dynamic.onnx", "--device", "v100,auto", "--batch-sizes")
    assert "takes minutes" in invoke(*words, "1,2").stderr
    assert invoke("matrix", "dynamic.onnx", "--device", "v100", "--batch-sizes", "1,2").stderr == ""
    assert invoke(*words, "1").stderr == ""


def test_wrong_usage_is_refused(invoke, complains, model: Path) -> None:
    complains(invoke("matrix", model), 2, "--device")
    complains(invoke("matrix", model, "--device", ","), 2, "names no device")
    complains(invoke("matrix", model, "--device", "v100", "--batch-sizes", "1,x"), 2, "'x'")
    complains(invoke("matrix", model, "--device", "v100", "--batch-sizes", "0"), 2, "'0'")
    complains(invoke("matrix", model, "--device", "v1000"), 2, "v100")
    complains(invoke("matrix", model, "--device", "cuda"), 3, "pip install '.[cuda]'")
    complains(
        invoke("matrix", model, "--device", "h100,v100", "--precision", "tf32"), 2, "V100", "does not support tf32"
    )
    complains(invoke("matrix", model, "--device", "v100", "--plot", "-", "--json"), 2, "stdout")
    complains(invoke("matrix", model, "--device", "v100", "--no-pruning", "-r", 2), 2, "--no-pruning")
