"""`iosched show`: pictures of a schedule and its JSON."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from scripted import LATENCIES_US, fire_proto, latencies_by_stage, script_models
from small_models import branches

from iosched.models.load import load_model
from iosched.profiler.devices.resolve import runner_name
from iosched.scheduler.document import Alternative, ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


@pytest.fixture
def schedule_file(model: Path, workdir: Path) -> Path:
    """A schedule of `branches.onnx`."""
    loaded = load_model(model)
    names = [operator.name for operator in loaded.graph.operators]
    stages = tuple(Stage(Strategy.CONCURRENT, ((name,),), 5.0) for name in names)
    document = ScheduleDocument(
        model="branches",
        sha256=loaded.digest,
        inputs=dict(loaded.bindings),
        dtype="float32",
        device={"kind": "cpu", "name": "Test CPU"},
        schedule=Schedule((Block(0, stages),)),
    )
    path = workdir / "branches.schedule.json"
    path.write_text(document.to_json())
    return path


def test_show_draws_a_schedule_file(invoke, schedule_file: Path) -> None:
    result = invoke("show", schedule_file)
    assert result.exit_code == 0
    assert result.stdout.startswith("branches on Test CPU\n1 block, ")
    assert result.stderr == ""
    assert invoke("show", "-", stdin=schedule_file.read_bytes()).stdout == result.stdout


def test_the_svg_has_the_latency_of_every_block_of_a_large_network(invoke, schedule_file: Path) -> None:
    stages = [Stage(Strategy.CONCURRENT, ((f"operator{index}",),), 321.0) for index in range(30)]
    document = replace(
        ScheduleDocument.from_json(schedule_file.read_text()),
        schedule=Schedule(tuple(Block(index, (stage,), optimal=True) for index, stage in enumerate(stages))),
    )
    schedule_file.write_text(document.to_json())
    svg = invoke("show", schedule_file, "--format", "svg").stdout
    assert re.findall(r">block (\d+) · 321.0 µs<", svg) == list(map(str, range(30)))


def test_with_the_model_it_shows_types_of_operators(invoke, schedule_file: Path, model: Path) -> None:
    assert "Conv 3×3 b" in invoke("show", schedule_file, "--model", model).stdout  # noqa: RUF001


def test_with_the_model_it_shows_the_throughput_of_stages(invoke, model: Path) -> None:
    invoke("optimize", model, "--device", "v100", "-q")
    lines = invoke("show", "branches.iosched.onnx").stdout.splitlines()
    assert re.search(r"FLOP, .*FLOP/s, \d+% of peak, \d+% of the SMs$", lines[1])
    assert re.search(r"µs +[\d.]+ .FLOP +[\d.]+ .FLOP/s +\d+% peak +\d+% SMs +(\d+%|-) idle +(merge +)?[─┬]", lines[4])


def idle_cells(text: str) -> list[str]:
    return re.findall(r"(\S+) idle ", text)


def test_the_idle_share_of_each_stage_is_shown(invoke, workdir: Path) -> None:
    onnx.save(fire_proto(), workdir / "branches.onnx")
    invoke("optimize", "branches.onnx", "--device", "v100", "--strategy", "merge", "-q")
    blocks = json.loads(invoke("show", "branches.iosched.onnx", "--json").stdout)["blocks"]
    stages = [stage for block in blocks for stage in block["stages"]]
    assert {stage["strategy"] for stage in stages} == {"merge", "concurrent"}
    for stage in stages:
        share = stage["idle_share"]
        assert (share is None) == (stage["strategy"] == "merge")
        assert share is None or 0 <= share <= 1
    texts = ["-" if stage["idle_share"] is None else f"{stage['idle_share']:.0%}" for stage in stages]
    assert idle_cells(invoke("show", "branches.iosched.onnx").stdout) == texts
    greedy = json.loads(invoke("show", "branches.iosched.onnx", "--alternative", "greedy", "--json").stdout)
    assert any(0 < stage["idle_share"] < 1 for block in greedy["blocks"] for stage in block["stages"])


def test_the_idle_share_is_known_where_the_profile_database_has_the_latencies(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latencies_by_stage(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    invoke("optimize", model, "--device", "cpu", "--threads", 2, "-q")
    cells = idle_cells(invoke("show", "branches.iosched.onnx").stdout)
    assert cells
    assert all(re.fullmatch(r"\d+%", cell) for cell in cells)
    unknown = ("show", "branches.iosched.onnx", "--profile-db", "empty.db")
    assert "idle" not in invoke(*unknown).stdout
    blocks = json.loads(invoke(*unknown, "--json").stdout)["blocks"]
    assert {stage["idle_share"] for block in blocks for stage in block["stages"]} == {None}
    assert not Path("empty.db").exists()


def test_a_measured_schedule_has_no_share_of_peak(invoke, schedule_file: Path, model: Path) -> None:
    text = invoke("show", schedule_file, "--model", model).stdout
    assert "FLOP/s" in text
    assert "peak" not in text
    assert "SMs" not in text
    assert "FLOP" not in invoke("show", schedule_file).stdout


@pytest.mark.usefixtures("in_streams")
def test_json_has_the_keys_that_scripts_rely_on(invoke, model: Path) -> None:
    invoke("optimize", model, "--device", "v100", "-q")
    found = json.loads(invoke("show", "branches.iosched.onnx", "--json").stdout)
    sums = {"latency_us", "flops", "tflops", "share_of_peak", "sm_share"}
    assert set(found) == {
        "model", "device", "cost", "launch", "measured_share", "optimal", "proven", "shipped", "peak_tflops", "blocks",
        "alternatives", *sums,
    }  # fmt: skip
    assert [each["name"] for each in found["alternatives"]] == ["iosched", "greedy"]
    assert all(each["latency_us"] >= found["latency_us"] for each in found["alternatives"])
    assert (found["optimal"], found["proven"]) == (True, "whole")
    stages = [stage for block in found["blocks"] for stage in block["stages"]]
    for block in found["blocks"]:
        assert set(block) == {"index", "optimal", "stages", *sums}
    for stage in stages:
        assert set(stage) == {"strategy", "groups", "idle_share", *sums}
        assert stage["tflops"] == pytest.approx(stage["flops"] / stage["latency_us"] / 1e6)
        assert stage["share_of_peak"] == pytest.approx(stage["tflops"] / found["peak_tflops"])
        assert 0 < stage["sm_share"] <= 1
    for key in ("flops", "latency_us"):
        assert found[key] == pytest.approx(sum(stage[key] for stage in stages))


def test_json_without_the_model_has_no_flops(invoke, schedule_file: Path) -> None:
    found = json.loads(invoke("show", schedule_file, "--json", "--block", 0).stdout)
    assert found["latency_us"] == sum(stage["latency_us"] for stage in found["blocks"][0]["stages"])
    assert found["proven"] is None, "one block is not the whole graph"
    assert (found["flops"], found["tflops"], found["peak_tflops"]) == (None, None, None)
    assert {stage["idle_share"] for stage in found["blocks"][0]["stages"]} == {None}


def test_a_picture_and_json_at_once(invoke, complains, schedule_file: Path, workdir: Path) -> None:
    result = invoke("show", schedule_file, "--json", "-o", "picture.txt")
    assert json.loads(result.stdout)["model"] == "branches"
    assert "block 0" in (workdir / "picture.txt").read_text()
    complains(invoke("show", schedule_file, "--json", "-o", "-"), 2, "both write to stdout")


def test_another_model_is_noticed(invoke, schedule_file: Path) -> None:
    result = invoke("show", schedule_file, "--model", "zoo:squeezenet")
    assert result.exit_code == 0
    assert "The throughput of stages is not shown: " in result.stderr
    assert "FLOP" not in result.stdout


def test_a_model_at_another_batch_size_is_noticed(invoke, schedule_file: Path, workdir: Path) -> None:
    onnx.save(branches(batch=4), workdir / "larger.onnx")
    result = invoke("show", schedule_file, "--model", "larger.onnx")
    assert result.exit_code == 0
    assert "The throughput of stages is not shown: " in result.stderr
    assert "FLOP" not in result.stdout


def test_show_writes_an_svg_file(invoke, schedule_file: Path, workdir: Path) -> None:
    result = invoke("show", schedule_file, "--format", "svg", "-o", "picture.svg")
    assert (result.exit_code, result.stdout) == (0, "")
    titles = [title.text for title in ET.parse(workdir / "picture.svg").iter("{http://www.w3.org/2000/svg}title")]
    schedule = ScheduleDocument.from_json(schedule_file.read_text()).schedule
    assert titles == [name for stage in schedule.stages for name in stage.operators]


def test_show_says_when_the_schedule_is_not_what_was_shipped(invoke, schedule_file: Path) -> None:
    document = ScheduleDocument.from_json(schedule_file.read_text())
    schedule_file.write_text(replace(document, shipped="openvino").to_json())
    result = invoke("show", schedule_file)
    assert "'iosched run' does not use this schedule where OpenVINO is installed" in result.stderr
    schedule_file.write_text(replace(document, shipped="openvino", runtime={"precision": "bf16"}).to_json())
    assert "in bf16, OpenVINO runs the model, and this schedule is for fp32" in invoke("show", schedule_file).stderr
    schedule_file.write_text(replace(document, shipped="reference").to_json())
    result = invoke("show", schedule_file)
    assert "uses plain onnxruntime" in result.stderr
    assert "block 0" in result.stdout


def test_latencies_of_whole_models_are_shown_separately(invoke, workdir: Path, schedule_file: Path) -> None:
    document = ScheduleDocument.from_json(schedule_file.read_text())
    known = {"predicted": 50.0, "measured": 90.0, "sequential": 150.0, "greedy": None, "reference": 180.0}
    whole = replace(document, alternatives=(Alternative("sequential", document.schedule, 150.0),), latency_us=known)
    (workdir / "whole.json").write_text(whole.to_json())
    shown = invoke("show", "whole.json").stdout
    assert shown.endswith(
        "\nalternatives: sequential 150.0 µs\n"
        "measured as a whole: schedule found 90.0 µs, onnxruntime 180.0 µs, sequential 150.0 µs\n"
    )
    assert "as a whole" not in invoke("show", "whole.json", "--block", 0).stdout


def test_show_draws_one_block(invoke, complains, schedule_file: Path) -> None:
    assert "block 0" in invoke("show", schedule_file, "--block", 0).stdout
    complains(invoke("show", schedule_file, "--block", 7), 2, "no block 7")


@pytest.mark.usefixtures("in_streams")
def test_show_draws_another_schedule_that_was_considered(invoke, complains, schedule_file: Path, model: Path) -> None:
    complains(invoke("show", schedule_file, "--alternative", "greedy"), 2, "it has none")
    invoke("optimize", model, "--device", "v100", "-q")
    whole = invoke("show", "branches.iosched.onnx").stdout
    assert "\nalternatives: iosched " in whole
    text = invoke("show", "branches.iosched.onnx", "--alternative", "greedy").stdout
    assert "┬─ Conv" in text
    assert "┬─ Conv" not in whole
    assert "considered" not in text
    assert "optimal" not in text.splitlines()[1]
    assert "block 0" in invoke("show", "branches.iosched.onnx", "--alternative", "greedy", "--block", 0).stdout
    refused = invoke("show", "branches.iosched.onnx", "--alternative", "sequential")
    complains(refused, 2, "no alternative 'sequential': it has iosched, greedy")


def test_show_does_not_overwrite_the_schedule(invoke, complains, schedule_file: Path) -> None:
    complains(invoke("show", schedule_file, "-o", schedule_file), 2, "overwrite")


def test_stdin_is_read_once(invoke, complains) -> None:
    complains(invoke("show", "-", "--model", "-", stdin=b"{}"), 2, "both")


def page_of(text: str) -> dict[str, Any]:
    """The data in the page of a schedule."""
    found = re.search(r'id="data">(.*?)</script>', text)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_show_writes_a_page(invoke, model: Path, workdir: Path) -> None:
    invoke("optimize", model, "--device", "v100", "-q")
    result = invoke("show", "branches.iosched.onnx", "--format", "html", "-o", "page.html")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Wrote page.html.\n")
    text = (workdir / "page.html").read_text(encoding="utf-8")
    data = page_of(text)
    assert "<title>branches on Tesla V100-SXM2-16GB</title>" in text
    assert any("not measured" in note for note in data["notes"])
    assert {row[0]: row[1] for row in data["wholes"]}["one operator after another"] > 0
    for stage in data["blocks"][0]["stages"]:
        assert 0 < stage["busy"] <= 1
        assert 0 <= stage["share_of_peak"] < 1
    assert [us is not None for _, us in data["blocks"][0]["before"]] == [True] * 3


def test_a_page_without_the_model_knows_operators_from_the_structure(invoke, model: Path, workdir: Path) -> None:
    invoke("optimize", model, "--device", "v100", "-q")
    data = page_of(invoke("show", "branches.schedule.json", "--format", "html").stdout)
    assert sorted(row[1] for row in data["operators"]) == ["Concat", "Conv 1×1", "Conv 3×3"]  # noqa: RUF001
    assert {row[5] for row in data["operators"]} == {"1x8x6x6", "1x16x6x6"}
    assert "--model" in data["unknown"]["busy"]


def test_a_page_says_what_runs_the_model_instead(invoke, schedule_file: Path) -> None:
    document = ScheduleDocument.from_json(schedule_file.read_text())
    schedule_file.write_text(replace(document, shipped="reference").to_json())
    (note,) = page_of(invoke("show", schedule_file, "--format", "html").stdout)["notes"]
    assert "uses plain onnxruntime" in note


def test_a_page_says_why_measurements_are_unknown(invoke, schedule_file: Path, model: Path) -> None:
    data = page_of(invoke("show", schedule_file, "--model", model, "--format", "html").stdout)
    assert "made on another machine" in data["unknown"]["measured"]
    Path("damaged.sqlite").write_text("no database")
    document = ScheduleDocument.from_json(schedule_file.read_text())
    here = replace(document, device={"kind": "cpu", "name": runner_name("cpu", None)})
    schedule_file.write_text(here.to_json())
    words = ("show", schedule_file, "--model", model, "--format", "html", "--profile-db", "damaged.sqlite")
    assert "damaged.sqlite" in page_of(invoke(*words).stdout)["unknown"]["measured"]


def test_a_trace_has_only_predictions_and_names_stages_without_one(invoke, schedule_file: Path) -> None:
    trace = json.loads(invoke("show", schedule_file, "--format", "trace").stdout)
    assert {event["pid"] for event in trace["traceEvents"]} == {2}
    assert trace["otherData"]["model"] == "branches"
    assert "Test CPU" in trace["otherData"]["predicted"]
    stages = [event for event in trace["traceEvents"] if event.get("cat") == "stage"]
    assert [event["ts"] for event in stages] == [5.0 * number for number in range(len(stages))]
    document = ScheduleDocument.from_json(schedule_file.read_text())
    unknown = Schedule(
        tuple(Block(b.index, tuple(replace(s, predicted_us=None) for s in b.stages)) for b in document.schedule.blocks)
    )
    schedule_file.write_text(replace(document, schedule=unknown).to_json())
    result = invoke("show", schedule_file, "--format", "trace")
    assert result.exit_code == 0
    assert "3 stages without a predicted latency" in json.loads(result.stdout)["otherData"]["unknown"]


def test_the_page_has_edges_from_the_model_or_the_schedule_file(invoke, schedule_file: Path, model: Path) -> None:
    """A schedule file has the structure of its model, unless it was written without it."""

    def reads(*words: object) -> list[list[int]]:
        data = page_of(invoke("show", schedule_file, *words, "--format", "html").stdout)
        return [sorted(sources) for sources in data["reads"] or []]

    assert reads() == []
    assert reads("--model", model) == [[], [], [0, 1]]
    document = ScheduleDocument.from_json(schedule_file.read_text())
    schedule_file.write_text(replace(document, structure=load_model(model).structure).to_json())
    assert reads() == [[], [], [0, 1]]


def test_netrons_attachment_names_the_nodes_of_the_optimized_file(invoke, model: Path) -> None:
    invoke("optimize", model, "--device", "v100", "--strategy", "merge", "-q")
    attachment = json.loads(invoke("show", "branches.iosched.onnx", "--format", "netron").stdout)
    targets = {item["target"] for item in attachment["metadata"] if item["kind"] == "node"}
    assert targets == {node.name for node in onnx.load("branches.iosched.onnx").graph.node}
    stage = {item["name"]: item["value"] for item in attachment["metadata"] if item["target"] == "y"}
    assert {"block", "stage", "group", "strategy"} <= set(stage)
    assert any(item["name"] == "stage, predicted (us)" for item in attachment["metrics"])


def test_netrons_attachment_needs_the_model_and_its_own_schedule(
    invoke, schedule_file: Path, model: Path, complains
) -> None:
    complains(invoke("show", schedule_file, "--format", "netron"), 2, "--model")
    assert invoke("show", schedule_file, "--model", model, "--format", "netron").exit_code == 0
    invoke("optimize", model, "--device", "v100", "-q")
    refused = invoke("show", "branches.iosched.onnx", "--format", "netron", "--alternative", "greedy")
    complains(refused, 2, "--alternative")
