"""`iosched optimize`: files, JSON, the table, and interrupts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from scripted import fire_proto
from small_models import branches

from iosched.cli.optimize_report import table_rows
from iosched.jobs import optimize as optimize_job
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.network import Network, Value
from iosched.models.zoo.randwire import wirings
from iosched.profiler.devices.analytic import uncertainty
from iosched.profiler.devices.profiled_device import LEVEL
from iosched.profiler.measuring.statistics import Interval, summarize
from iosched.runtime.compare import Check
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Scope

JSON_KEYS = {
    "model": str, "output": str, "schedule": str, "cost": str, "launch": type(None), "optimal": bool, "shipped": str,
    "proven": str,
    "device": {"kind", "name"},
    "latency_us": {
        "predicted", "measured", "sequential", "greedy", "reference", "openvino", "tensorrt", "ratio",
        "after_rest", "measured_share", "sequential_measured_share",
    },
    "intervals": type(None), "layout": type(None), "barriers": type(None),
    "search": {
        "seconds", "states", "transitions", "stages", "signatures", "disturbed", "measurements", "repeated",
        "cache_hits", "gap", "predicted_gap", "gap_of",
    },
    "kernels": {"before", "after"}, "check": {"max_abs", "max_rel", "passed", "first_difference"}, "notes": list,
}  # fmt: skip

WHOLES = {
    name: summarize([us] * 6)
    for name, us in (
        ("iosched", 90.0), ("sequential", 150.0), ("greedy", 120.0), ("reference", 180.0), ("openvino", 85.0)
    )
}  # fmt: skip


def result_for(model: Model) -> OptimizeResult:
    """A made-up result of `optimize`."""
    schedule = sequential(model.graph)
    document = ScheduleDocument(
        model=model.name,
        sha256=model.digest,
        inputs=dict(model.bindings),
        dtype="float32",
        device={"kind": "cpu", "name": cpu_name()},
        schedule=schedule,
        proven="whole",
    )
    return OptimizeResult(
        document=document, schedule=schedule, device_kind="cpu", device_name="Test CPU", cost="measured",
        predicted_us=80.0, measured_us=90.0, sequential_us=150.0, greedy_us=120.0, reference_us=180.0,
        shipped="iosched", reason="it is the fastest", seconds=1.5, states=4, transitions=9, stages=7, signatures=7,
        measurements=5, cache_hits=2, kernels_before=4, kernels_after=3,
        ratio=Interval(1.98, 1.9, 2.1, "reference/iosched"), rested_us={"iosched": 95.0, "reference": 170.0},
        check=Check(1e-6, 2e-7, True), wholes=WHOLES,
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[OptimizeSettings]:
    """Replaces the search with a made-up result; collects the settings of each call."""
    settings: list[OptimizeSettings] = []

    def fake(model: Model, given: OptimizeSettings, *_: object) -> OptimizeResult:
        settings.append(given)
        return result_for(model)

    monkeypatch.setattr(optimize_job, "optimize", fake)
    return settings


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Makes the search raise."""

    def arrange(error: BaseException) -> None:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(optimize_job, "optimize", fail)

    return arrange


def test_default_outputs_are_named_after_the_model(invoke, model: Path, asked, workdir: Path) -> None:
    result = invoke("optimize", model)
    assert result.exit_code == 0
    assert {path.name for path in workdir.iterdir()} == {
        "branches.onnx",
        "branches.iosched.onnx",
        "branches.schedule.json",
    }
    onnx.checker.check_model(onnx.load("branches.iosched.onnx"), full_check=True)
    document = ScheduleDocument.from_json(Path("branches.schedule.json").read_text())
    assert load_model(Path("branches.iosched.onnx")).schedule_json == document.to_json()


@pytest.mark.parametrize(
    ("output", "schedule"),
    [
        ("nas.v100.onnx", "nas.v100.schedule.json"),
        ("nas.v100.iosched.onnx", "nas.v100.schedule.json"),
        ("out/nas.h100.onnx", "nas.h100.schedule.json"),
        ("my model", "my model.schedule.json"),
        (".onnx", "branches.schedule.json"),
        ("/dev/null", "branches.schedule.json"),
    ],
)
def test_the_default_schedule_is_named_after_the_output(
    invoke, model: Path, asked, workdir: Path, output: str, schedule: str
) -> None:
    (workdir / "out").mkdir()
    found = json.loads(invoke("optimize", model, "-o", output, "--json").stdout)
    assert (found["output"], found["schedule"]) == (output, schedule)
    assert {path.name for path in workdir.glob("*.json")} == {schedule}


def test_the_default_schedule_does_not_overwrite_an_input(invoke, complains, model: Path, asked) -> None:
    assert invoke("optimize", model).exit_code == 0
    words = ("--schedule-from", "branches.schedule.json", "-o", "branches.v100.onnx")
    assert invoke("optimize", model, *words).exit_code == 0
    words = ("--schedule-from", "branches.schedule.json", "-o", "branches.iosched.onnx")
    complains(invoke("optimize", model, *words), 2, "--schedule branches.schedule.json would overwrite the input")


def test_the_table_has_the_main_results(invoke, model: Path, asked) -> None:
    result = invoke("optimize", model)
    for text in (
        "Test CPU", "180.0 µs  onnxruntime", "90.0 µs  1.980x (1.900 to 2.100)", "iosched: it is the fastest",
        "sequential 150.0 µs", "greedy 120.0 µs", "4 before, 3 after", "7 stages: 5 measurements, 2 from", "1.5 s",
        "differ by 2e-07 of their scale",
        "iosched run branches.iosched.onnx --check",
    ):  # fmt: skip
        assert text in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("found", "rows"),
    [
        (
            {
                **{"shipped": "openvino", "openvino_us": 85.0, "kernels_after": None},
                "ratio": Interval(0.9, 0.8, 0.95, "openvino/iosched"),
            },
            [
                "4 before, unknown for OpenVINO",
                "180.0 µs  onnxruntime",
                "85.0 µs",
                "openvino: it is",
                "sequential 150.0 µs, greedy 120.0 µs",
            ],
        ),
        (
            {"openvino_us": 99.0, "ratio": Interval(1.1, 1.05, 1.15, "openvino/iosched")},
            ["99.0 µs  OpenVINO", "90.0 µs  1.100x", "iosched: it is", "greedy 120.0 µs, onnxruntime 180.0 µs"],
        ),
        (
            {"openvino_us": 200.0},
            ["180.0 µs  onnxruntime", "90.0 µs  1.980x", "greedy 120.0 µs, OpenVINO 200.0 µs"],
        ),
    ],
)
def test_the_table_compares_with_onnxruntime_and_openvino(
    invoke, model: Path, monkeypatch, found: dict[str, Any], rows: list[str]
) -> None:
    monkeypatch.setattr(optimize_job, "optimize", lambda model, *_: replace(result_for(model), **found))
    text = " ".join(invoke("optimize", model).stdout.split())
    for row in rows:
        assert " ".join(row.split()) in text


@pytest.mark.parametrize(
    ("found", "row"),
    [
        ({}, "onnxruntime 170.0 µs, shipped 95.0 µs"),
        ({"shipped": "reference"}, "onnxruntime 170.0 µs"),
        ({"device_kind": "cuda", "reference_us": None, "ratio": None}, "sequential 160.0 µs, shipped 95.0 µs"),
        ({"device_kind": "cuda", "reference_us": None, "shipped": "sequential"}, "sequential 160.0 µs"),
    ],
)
def test_the_table_compares_latencies_after_idle_with_the_baseline(
    invoke, model: Path, monkeypatch, found: dict[str, Any], row: str
) -> None:
    rested_us = {"iosched": 95.0, "reference": 170.0, "sequential": 160.0}
    monkeypatch.setattr(optimize_job, "optimize", lambda m, *_: replace(result_for(m), rested_us=rested_us, **found))
    (line,) = [line for line in invoke("optimize", model).stdout.splitlines() if "after idle" in line]
    assert " ".join(line.split()).endswith(row)


def test_notes_are_on_stderr_and_in_json(invoke, model: Path, monkeypatch) -> None:
    notes = ("The GPU was hot.",)
    monkeypatch.setattr(optimize_job, "optimize", lambda m, *_: replace(result_for(m), notes=notes))
    assert "The GPU was hot." in invoke("optimize", model).stderr.splitlines()
    assert json.loads(invoke("optimize", model, "--json").stdout)["notes"] == ["The GPU was hot."]


@pytest.mark.parametrize(
    ("shipped", "weighed", "after"),
    [
        ("reference", "iosched", "180.0 µs\n"),
        ("sequential", "sequential", "150.0 µs  1.980x (1.900 to 2.100)\n"),
        ("iosched", "iosched", "90.0 µs  1.980x (1.900 to 2.100)\n"),
    ],
)
def test_after_is_the_latency_of_what_was_shipped(
    invoke, model: Path, monkeypatch, shipped: str, weighed: str, after: str
) -> None:
    ratio = Interval(1.98, 1.9, 2.1, f"reference/{weighed}")
    monkeypatch.setattr(optimize_job, "optimize", lambda m, *_: replace(result_for(m), shipped=shipped, ratio=ratio))
    assert f"  after           {after}" in invoke("optimize", model).stdout


def test_no_ratio_is_printed_where_none_is_known(invoke, model: Path, monkeypatch) -> None:
    monkeypatch.setattr(optimize_job, "optimize", lambda m, *_: replace(result_for(m), ratio=None))
    assert "x (" not in invoke("optimize", model).stdout
    assert json.loads(invoke("optimize", model, "--json").stdout)["latency_us"]["ratio"] is None


@pytest.fixture
def wide(workdir: Path) -> Path:
    """A model for which another schedule is faster on a GPU."""
    onnx.save(branches(channels=256), workdir / "wide.onnx")
    return Path("wide.onnx")


def test_computed_latencies_and_speed_ups_have_intervals(invoke, wide: Path) -> None:
    found = json.loads(invoke("optimize", wide, "--device", "v100", "--json").stdout)
    latency_us, intervals = found["latency_us"], found["intervals"]
    assert latency_us["ratio"] is None
    assert (set(intervals), intervals["level"]) == ({"level", "latency_us", "ratios"}, LEVEL)
    assert set(intervals["latency_us"]) == {"predicted", "sequential", "greedy"}
    for name, ends in intervals["latency_us"].items():
        assert 0 < ends["low"] < latency_us[name] < ends["high"]
    assert set(intervals["ratios"]) == {"sequential/iosched", "greedy/iosched"}
    for name, ratio in intervals["ratios"].items():
        assert ratio["value"] == pytest.approx(latency_us[name.split("/")[0]] / latency_us["predicted"])
        assert ratio["low"] <= ratio["value"] <= ratio["high"]
        assert ratio["equal"] == (ratio["low"] <= 1 <= ratio["high"])


@pytest.mark.parametrize("is_equal", [True, False])
def test_a_gain_within_the_models_uncertainty_ships_and_is_called_equal(
    invoke, wide: Path, monkeypatch: pytest.MonkeyPatch, is_equal: bool
) -> None:
    monkeypatch.setattr(uncertainty, "deviation", lambda shares: 1.0 if is_equal else 0.01)
    shown = invoke("optimize", wide, "--device", "v100").stdout
    found = json.loads(invoke("optimize", wide, "--device", "v100", "--json").stdout)
    assert found["latency_us"]["predicted"] < found["latency_us"]["sequential"]
    assert found["shipped"] == "iosched"
    assert found["intervals"]["ratios"]["sequential/iosched"]["equal"] == is_equal
    after = next(line for line in shown.splitlines() if line.startswith("  after "))
    assert ("equal within the model's uncertainty" in after) == is_equal
    assert bool(re.search(r" \d\.\d\dx \(\d\.\d\d to \d\.\d\d\) by the analytic model$", after)) != is_equal
    assert ("x the speed" in found["reason"]) != is_equal
    assert ("it is as fast as one operator after another" in found["reason"]) == is_equal
    assert re.search(r"greedy \d.* µs, which equals the schedule found", shown)  # it is the same
    assert "in brackets     interval expected to hold 90% of measurements" in shown


@pytest.mark.parametrize(
    ("kind", "slowness", "words"),
    [
        ("cpu", None, " at the speed of the machine's first measurements"),
        ("cpu", 1.1, " at the machine's current speed"),
        ("cuda", None, ""),
    ],
)
def test_predictions_name_the_machine_speed_they_assume(kind: str, slowness: float | None, words: str) -> None:
    result = result_for(load_model(branches().SerializeToString()))
    result = replace(result, device_kind=kind, slowness=slowness)
    assert dict(table_rows(result))["schedule found"] == f"90.0 µs (predicted 80.0 µs{words})"


def test_a_schedule_measured_without_all_its_stages_has_no_prediction() -> None:
    result = replace(
        result_for(load_model(branches().SerializeToString())), predicted_us=None, signatures=1, measurements=1
    )
    rows = dict(table_rows(result))
    assert rows["schedule found"] == "90.0 µs"
    assert "; 1 stage: 1 measurement, 2 from the profile database" in rows["search"]


def test_a_schedule_without_any_latency_is_called_not_measured(invoke, workdir: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> same (string[3] word) => (string[3] y) { y = Identity(word) }"""
    onnx.save(onnx.parser.parse_model(text), workdir / "words.onnx")
    shown = invoke("optimize", "words.onnx", "--device", "cpu").stdout
    assert re.search(r"^  schedule found +not measured$", shown, re.MULTILINE)
    assert "predicted" not in shown


@pytest.mark.usefixtures("in_streams")
def test_sequential_ships_if_no_other_schedule_is_faster(invoke, model: Path) -> None:
    shown = invoke("optimize", model, "--device", "v100").stdout
    assert "shipped         sequential: by the analytic model, the schedule found is not faster" in shown
    assert "x (" not in shown


@pytest.mark.usefixtures("in_streams")
def test_limits_of_a_search_do_not_hide_that_greedy_is_faster(invoke, wide: Path) -> None:
    found = json.loads(invoke("optimize", wide, "--device", "v100", "-r", 1, "-s", 1, "--json").stdout)
    assert found["latency_us"]["greedy"] < found["latency_us"]["sequential"]
    assert found["shipped"] == "sequential"
    assert "no schedule" not in found["reason"]


def test_json_has_the_keys_that_scripts_rely_on(invoke, model: Path, asked) -> None:
    result = invoke("optimize", model, "--json")
    found = json.loads(result.stdout)
    for key, kind in JSON_KEYS.items():
        assert set(found[key]) == kind if isinstance(kind, set) else isinstance(found[key], kind)
    assert (found["output"], found["schedule"]) == ("branches.iosched.onnx", "branches.schedule.json")
    assert found["latency_us"] == {
        "predicted": 80.0, "measured": 90.0, "sequential": 150.0, "greedy": 120.0, "reference": 180.0,
        "openvino": None, "tensorrt": None,
        "ratio": {"of": "reference/iosched", "median": 1.98, "low": 1.9, "high": 2.1},
        "after_rest": {"measured": 95.0, "reference": 170.0}, "measured_share": None, "sequential_measured_share": None,
    }  # fmt: skip
    assert "in brackets" not in result.stderr
    assert "shipped" in result.stderr
    assert "onnxruntime 170.0 µs, shipped 95.0 µs" in result.stderr


@pytest.mark.parametrize(
    ("gap", "scope", "text"),
    [
        (0.0, "whole", ";best by the measured latencies;"),
        (0.0, "blocks", ";each block best by the measured latencies, the whole graph not proven;"),
        (0.0213, "whole", ";best found; by estimated bounds, at most 2.1% is left to gain;"),
        (0.0213, "blocks", ";best found; by estimated bounds, at most 2.1% is left to gain;"),
        (1e-5, "whole", ";best found; by estimated bounds, at most 0.1% is left to gain;"),
        (1.0, "blocks", ";best found, not proven optimal;"),
        (None, None, ";nothing was searched;"),
    ],
)
def test_the_gap_to_the_optimum_is_reported(
    invoke, model: Path, monkeypatch, gap: float | None, scope: Scope | None, text: str
) -> None:
    proven = scope if gap == 0 else None

    def found(model: Model, *_: object) -> OptimizeResult:
        result = result_for(model)
        return replace(result, document=replace(result.document, proven=proven), gap=gap, gap_of=scope)

    monkeypatch.setattr(optimize_job, "optimize", found)
    shown = invoke("optimize", model).stdout
    told = json.loads(invoke("optimize", model, "--json").stdout)

    row = next(line.strip() for line in shown.splitlines() if line.strip().startswith("search"))
    assert text in f";{row.removeprefix('search').strip()};"
    assert (told["search"]["gap"], told["search"]["gap_of"]) == (gap, scope)
    assert (told["optimal"], told["proven"]) == (proven == "whole", proven)


def test_simulated_results_are_called_analytic_wherever_shown(invoke, model: Path) -> None:
    shown = invoke("optimize", model, "--device", "v100")
    assert "cost            analytic" in shown.stdout
    assert "branches on Tesla V100-SXM2-16GB" in shown.stdout
    assert "sequential" in shown.stdout
    assert "not measured" in shown.stdout
    found = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    assert found["cost"] == "analytic"
    assert found["device"] == {"kind": "cuda", "name": "Tesla V100-SXM2-16GB"}
    assert (found["latency_us"]["measured"], found["latency_us"]["reference"]) == (None, None)
    assert found["search"]["measurements"] == 0
    for words in (("show",), ("show", "--format", "svg")):
        assert "analytic" in invoke(*words, "branches.iosched.onnx").stdout
    ran = invoke("run", "branches.iosched.onnx", "--check")
    assert ran.exit_code == 0
    assert "made for Tesla V100-SXM2-16GB by the analytic model" in ran.stderr


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ("graph", "specification for one CUDA graph, not"),
        ("streams", "specification for kernels launched one by one, not"),
    ],
)
def test_the_launch_of_kernels_is_named_wherever_a_plan_is_shown(
    invoke, model: Path, request: pytest.FixtureRequest, launch: str, words: str
) -> None:
    if launch == "streams":
        request.getfixturevalue("in_streams")
    shown = invoke("optimize", model, "--device", "v100")
    assert words in shown.stdout
    for command in (("show",), ("show", "--format", "svg"), ("explain", "b")):
        name, *more = command
        lines = re.sub("<[^>]+>", " ", invoke(name, "branches.iosched.onnx", *more).stdout)
        assert words in " ".join(lines.split())
        if "svg" not in more:
            assert json.loads(invoke(name, "branches.iosched.onnx", *more, "--json").stdout)["launch"] == launch
    found = json.loads(invoke("optimize", model, "--device", "v100", "--json").stdout)
    assert found["launch"] == launch


def test_the_launch_is_the_requested_one_and_not_that_of_the_given_schedule(invoke, model: Path) -> None:
    streams = optimize_job.optimize(load_model(model), OptimizeSettings("v100", launch="streams"))
    Path("streams.json").write_text(streams.document.to_json())
    again = invoke("optimize", model, "--device", "v100", "--schedule-from", "streams.json", "--json")
    assert json.loads(again.stdout)["launch"] == "graph"


@pytest.fixture
def wired(workdir: Path) -> Path:
    """The first stage of RandWire."""
    net = Network("wired")
    image = net.input(77, 112)
    outputs: list[Value] = []
    for index, before in enumerate(wirings()[0]):
        source = net.sum([outputs[other] for other in before], f"{index}/sum") if before else image
        outputs.append(net.relu_sep_conv(source, 154, 3, f"{index}", stride=1 if before else 2))
    onnx.save(net.finish(net.identity(outputs[-1], "output")), workdir / "wired.onnx")
    return Path("wired.onnx")


@pytest.mark.parametrize("launch", ["graph", "streams"])
def test_an_optimal_search_computes_few_of_its_stages(wired: Path, launch: str) -> None:
    found = optimize_job.optimize(load_model(wired), OptimizeSettings("v100", launch=launch, gap_percent=0))
    assert (found.document.optimal, found.gap) == (True, 0.0)
    assert found.stages > 1_000
    assert found.signatures < 17  # there are 17 operators


def test_a_search_ends_within_the_requested_gap(invoke, workdir: Path) -> None:
    onnx.save(fire_proto(), workdir / "fire.onnx")
    proof, default, rough = (
        json.loads(invoke("optimize", "fire.onnx", "--device", "v100", *words, "--json").stdout)
        for words in (("--gap", 0), (), ("--gap", 95))
    )
    assert (proof["optimal"], default["optimal"], rough["optimal"], rough["proven"]) == (True, True, False, None)
    assert proof["latency_us"] == default["latency_us"]
    assert 0 < rough["search"]["gap"] <= 0.95
    assert rough["search"]["signatures"] < proof["search"]["signatures"]
    assert proof["latency_us"]["predicted"] >= (1 - rough["search"]["gap"]) * rough["latency_us"]["predicted"]


@pytest.mark.parametrize("gap", ["-1", "100", "nan", "1%"])
def test_a_gap_outside_0_to_100_percent_is_refused(invoke, model: Path, gap: str) -> None:
    result = invoke("optimize", model, "--device", "v100", "--gap", gap)
    assert result.exit_code == 2
    assert "gap" in result.stderr


@pytest.mark.slow
def test_predictions_end_a_measured_search_unless_the_gap_is_0(invoke, model: Path, workdir: Path) -> None:
    words = ("optimize", model, "--device", "cpu", "--json", "-o", workdir / "found.onnx")
    told = [json.loads(invoke(*words, *more).stdout)["search"] for more in ((), ("--gap", 0), ("--exhaustive",))]
    assert [each["predicted_gap"] is None for each in told] == [False, True, True]
    assert 0 <= told[0]["predicted_gap"] < 1


@pytest.mark.parametrize("percent", [(1.8, "1.8%"), (0.0, "0.0%")])
def test_a_predicted_gap_is_called_predicted(invoke, model: Path, monkeypatch, percent: tuple[float, str]) -> None:
    def found(model: Model, *_: object) -> OptimizeResult:
        return replace(result_for(model), gap=0.09, gap_of="blocks", predicted_gap=percent[0] / 100)

    monkeypatch.setattr(optimize_job, "optimize", found)
    shown = " ".join(invoke("optimize", model).stdout.split())
    assert f"by predicted stage latencies, at most {percent[1]} is left to gain" in shown
    assert "bounds" not in shown


@pytest.mark.parametrize("words", [("run",), ("bench",)])
def test_run_and_bench_refuse_a_gpu_that_is_not_attached(invoke, complains, model: Path, words) -> None:
    complains(invoke(*words, model, "--device", "v100", "-q"), 3, "is not attached", "optimize --device v100")


def test_an_unknown_device_is_refused_before_the_model_is_read(invoke, complains) -> None:
    complains(invoke("optimize", "no-such-model.onnx", "--device", "v101"), 2, "did you mean v100", "h100")


def test_dry_run_for_a_gpu_says_that_nothing_is_measured(invoke, model: Path) -> None:
    assert "nothing: the cost is analytic" in invoke("optimize", model, "--device", "v100", "--dry-run").stdout
    found = json.loads(invoke("optimize", model, "--device", "v100", "--dry-run", "--json").stdout)
    assert (found["cost"], found["measurements"], found["seconds"]) == ("analytic", 0, 0.0)
    assert set(found["blocks"][0]) == {
        "index", "operators", "width", "states", "transitions", "stages", "signatures", "known", "measurements",
    }  # fmt: skip


def test_quiet_prints_only_the_data(invoke, model: Path, asked) -> None:
    assert invoke("optimize", model, "-q").output == ""
    assert invoke("optimize", model, "-q", "--json").stderr == ""


def test_the_model_travels_through_pipes(invoke, asked, workdir: Path) -> None:
    result = invoke("optimize", "-", "-o", "-", stdin=branches().SerializeToString())
    assert result.exit_code == 0
    assert onnx.load_from_string(result.stdout_bytes).graph.node
    assert "shipped" in result.stderr
    assert list(workdir.iterdir()) == []
    checked = invoke("run", "-", "--check", stdin=result.stdout_bytes)
    assert checked.exit_code == 0
    assert "passed" in checked.stdout


def test_the_schedule_can_go_to_stdout(invoke, model: Path, asked) -> None:
    result = invoke("optimize", model, "--schedule", "-")
    assert ScheduleDocument.from_json(result.stdout).model == "branches"


def test_a_hostile_graph_name_stays_in_the_folder(invoke, asked, workdir: Path) -> None:
    proto = branches()
    proto.graph.name = "../../evil/.name"
    assert invoke("optimize", "-", stdin=proto.SerializeToString()).exit_code == 0
    assert all(path.parent == workdir for path in workdir.iterdir())
    assert len(list(workdir.iterdir())) == 2


def test_options_reach_the_search(invoke, model: Path, asked: list[OptimizeSettings]) -> None:
    words = ("-r", 2, "-s", 4, "--threads", 2, "--strategy", "merge", "--budget", 2.5, "--device", "cpu")
    assert invoke("optimize", model, *words, "--profile-db", "p.sqlite").exit_code == 0
    assert invoke("optimize", model, "--no-pruning").exit_code == 0
    more = ("--exhaustive", "--no-resume", "--precision", "fp16", "--device", "V100", "--gap", "0.5")
    assert invoke("optimize", model, *more).exit_code == 0
    assert invoke("optimize", model, "--no-search").exit_code == 0
    assert asked == [
        OptimizeSettings(
            device="cpu", threads=2, strategy="merge", r=2, s=4, budget_s=2.5, profile_db=Path("p.sqlite")
        ),
        OptimizeSettings(r=None, s=None),
        OptimizeSettings(device="V100", exhaustive=True, resume=False, precision="fp16", gap_percent=0.5),
        OptimizeSettings(strategy="lanes"),
    ]


@pytest.mark.parametrize("words", [("--strategy", "both"), ("--exhaustive",)])
def test_no_search_contradicts_options_of_a_search(invoke, complains, model: Path, asked, words) -> None:
    complains(invoke("optimize", model, "--no-search", *words), 2, f"--no-search contradicts {words[0]}")
    assert asked == []


def test_without_a_search_lanes_are_shown_explained_compared_and_run(invoke, model: Path, workdir: Path) -> None:
    words = ("optimize", model, "--device", "h100", "--json")
    told = json.loads(invoke(*words, "--no-search", "-o", "lanes.onnx", "--schedule", "lanes.json").stdout)
    assert (told["shipped"], told["candidate"], told["search"]["states"]) == ("iosched", "lanes", 0)
    assert invoke(*words, "--strategy", "sequential", "-o", "turn.onnx", "--schedule", "turn.json").exit_code == 0
    assert " lanes " in invoke("show", "lanes.json").stdout
    assert "lanes, with" in invoke("explain", "lanes.json", "b", "--model", model).stdout
    assert "lane 0" in invoke("diff", "turn.json", "lanes.json").stdout
    assert "passed" in invoke("run", "lanes.onnx", "--check").stdout
    assert invoke("show", "lanes.json", "--format", "svg", "-o", "lanes.svg").exit_code == 0
    assert "lanes that wait for each other" in (workdir / "lanes.svg").read_text()
    taken = ("optimize", model, "--device", "cpu", "--threads", 2, "--schedule-from", "lanes.json", "-o", "cpu.onnx")
    assert invoke(*taken).exit_code == 0
    assert invoke("export", "cpu.onnx", "-o", "lanes.plan").exit_code == 0
    assert "passed" in invoke("run", "lanes.plan", "--check").stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("-o", "no/such/out.onnx"), "no folder no/such"),
        (("--schedule", "no/such/out.json"), "no folder no/such"),
        (("-o", "branches.onnx"), "overwrite the input"),
        (("-o", "same", "--schedule", "same"), "written twice"),
        (("-o", "-", "--json"), "both write to stdout"),
        (("-o", "-", "--schedule", "-"), "both write to stdout"),
    ],
)
def test_outputs_are_refused_before_the_work(invoke, complains, model: Path, asked, words, text: str) -> None:
    complains(invoke("optimize", model.name, *words), 2, text)
    assert asked == []


def test_outputs_are_refused_before_the_model_is_read(invoke, complains) -> None:
    complains(invoke("optimize", "no-such-model.onnx", "-o", "no/such/out.onnx"), 2, "no folder no/such")


def test_the_default_output_does_not_overwrite_the_input_either(invoke, complains, model: Path, asked) -> None:
    model.rename("branches.iosched.onnx")
    complains(invoke("optimize", "branches.iosched.onnx"), 2, "overwrite the input")
    assert asked == []


def test_ctrl_c_leaves_no_files(invoke, complains, model: Path, failing, workdir: Path) -> None:
    failing(KeyboardInterrupt())
    complains(invoke("optimize", model), 130, "Interrupted")
    assert list(workdir.iterdir()) == [model]


def test_a_full_disk_is_named(invoke, complains, model: Path, asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "branches.iosched.onnx")

    monkeypatch.setattr("iosched.models.export.write_model", full)
    complains(invoke("optimize", model), 1, "branches.iosched.onnx: No space left on device")


def test_dry_run_counts_and_writes_nothing(invoke, model: Path, asked, workdir: Path) -> None:
    result = invoke("optimize", model, "--dry-run")
    assert result.exit_code == 0
    assert "signatures" in result.stdout
    found = json.loads(invoke("optimize", model, "--dry-run", "--json").stdout)
    assert found["pruning"] == {"r": 3, "s": 8}
    assert found["measurements"] == sum(block["measurements"] for block in found["blocks"]) > 0
    assert asked == []
    assert list(workdir.iterdir()) == [model]


def test_optimize_run_and_show_with_real_measurements(invoke, model: Path) -> None:
    first = json.loads(invoke("optimize", model, "--json", "--threads", 2).stdout)
    assert first["search"]["measurements"] > 0
    second = json.loads(invoke("optimize", model, "--json", "--threads", 2).stdout)
    # Stages that other processes interfered with are measured again.
    assert second["search"]["measurements"] < first["search"]["measurements"]
    assert second["search"]["cache_hits"] > 0
    checked = json.loads(invoke("run", "branches.iosched.onnx", "--against", model, "--json").stdout)
    assert checked["check"]["passed"]
    assert "block 0" in invoke("show", "branches.iosched.onnx").stdout


def test_a_gpu_runs_several_requests_at_a_time(invoke, model: Path) -> None:
    found = json.loads(invoke("optimize", model, "--device", "v100", "--objective", "throughput", "--json").stdout)
    requests, us = found["teams"]["requests"], found["latency_us"]
    assert requests > 1
    assert found["images_per_s"] == pytest.approx(
        {"iosched": 1e6 / us["predicted"], "sequential": 1e6 / us["sequential"]}, rel=1e-6
    )
    shown = invoke("optimize", model, "--device", "v100", "--objective", "throughput")
    assert f"{requests} requests at a time" in shown.stdout
    assert "never run" in shown.stderr
    (teams,) = (line for line in invoke("explain", "branches.iosched.onnx", "a").stdout.splitlines() if "teams" in line)
    assert f"{requests} requests at a time" in teams
    assert (
        "latencies of stages are those of one"
        in invoke("show", "branches.iosched.onnx", "--format", "html").stdout.lower()
    )
    assert json.loads(invoke("run", "branches.iosched.onnx", "--check", "--json").stdout)["check"]["passed"]


def test_throughput_is_refused_in_a_dry_run(invoke, complains, model: Path) -> None:
    result = invoke("optimize", model, "--device", "cpu", "--objective", "throughput", "--dry-run")
    complains(result, 2, "--dry-run", "leave --objective out")
