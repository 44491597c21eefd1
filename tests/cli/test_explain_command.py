"""`iosched explain`: the table, JSON, and refusals."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from scripted import LATENCIES_US, script_models, script_stages
from small_models import branches

from iosched.models.load import load_model
from iosched.profiler.devices.analytic import uncertainty
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.baselines import one_session
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

STAGE = {"strategy", "groups", "idle_share", "predicted_us", "flops", "tflops", "share_of_peak", "sm_share"}


@pytest.fixture
def planned(invoke, model: Path) -> Path:
    """`branches.onnx` planned for a GPU."""
    assert invoke("optimize", model, "--device", "v100", "-q").exit_code == 0
    return Path("branches.iosched.onnx")


def test_the_table_describes_the_operator_and_its_place(invoke, planned: Path) -> None:
    result = invoke("explain", planned, "b")
    assert result.exit_code == 0
    for text in (
        "b in branches on Tesla V100",
        "analytic",
        "type       Conv",
        "place      block 0",
        "of peak",
        "why ",
        "current",
        "schedule   optimal",
    ):
        assert text in result.stdout
    assert "at least" not in result.stdout
    assert result.stderr == ""


def test_json_has_the_keys_that_scripts_rely_on(invoke, planned: Path) -> None:
    found = json.loads(invoke("explain", planned, "b", "--json").stdout)
    assert (found["operator"], found["type"], found["together"], found["cost"]) == ("b", "Conv", ["b"], "analytic")
    assert found["proven"] == "whole"
    assert found["present_us"] > 0
    assert set(found["present"]) == STAGE
    assert found["present"]["share_of_peak"] == pytest.approx(found["present"]["tflops"] / found["peak_tflops"])
    assert any("b" in group for group in found["present"]["groups"])
    for placement in found["placements"]:
        assert set(placement) == {
            "kind",
            "stage",
            "possible",
            "at_least_us",
            "at_most_us",
            "equal",
            "in_turn",
            "schedule",
        }
        assert isinstance(placement["equal"], bool)
        assert all(set(stage) == STAGE for stage in placement["schedule"])
        assert placement["at_least_us"] >= found["present_us"] * (1 - 1e-9)


def test_a_place_is_called_equal_if_the_difference_is_within_the_models_uncertainty(
    invoke, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(branches(channels=256), workdir / "wide.onnx")
    assert invoke("optimize", "wide.onnx", "--device", "v100", "-q").exit_code == 0

    def explained(spread: float) -> tuple[str, set[bool]]:
        monkeypatch.setattr(uncertainty, "deviation", lambda shares: spread)
        found = json.loads(invoke("explain", "wide.iosched.onnx", "b", "--json").stdout)
        equal = {placement["equal"] for placement in found["placements"] if placement["schedule"]}
        return invoke("explain", "wide.iosched.onnx", "b").stdout, equal

    shown, equal = explained(0.0)
    assert equal == {False}
    assert "every alternative takes longer" in shown
    assert "=" not in shown
    shown, equal = explained(1.0)
    assert equal == {True}
    assert "it takes equally long within the model's uncertainty" in shown
    assert "%) =\n= is equal to the current place within the model's uncertainty" in shown


def test_a_schedule_file_needs_its_model(invoke, complains, model: Path, planned: Path) -> None:
    complains(invoke("explain", "branches.schedule.json", "b"), 2, "give it with --model")
    result = invoke("explain", "branches.schedule.json", "b", "--model", model, "--json")
    assert json.loads(result.stdout) == json.loads(invoke("explain", planned, "b", "--json").stdout)


def test_an_unknown_operator_is_refused_with_a_similar_name(invoke, complains, planned: Path) -> None:
    complains(invoke("explain", planned, "bb"), 2, "unknown operator 'bb'", "did you mean b")


def test_a_model_without_a_schedule_is_refused(invoke, complains, model: Path) -> None:
    complains(invoke("explain", model, "b"), 2, "carries no schedule")


def test_a_schedule_of_this_machine(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "greedy": 10.0})  # it is the schedule found
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0
    result = invoke("explain", "branches.iosched.onnx", "b", "--measurements", 0)
    assert result.exit_code == 0
    assert "as far as the model can tell" not in result.stdout
    found = json.loads(invoke("explain", "branches.iosched.onnx", "b", "--measurements", 0, "--json").stdout)
    assert {placement["equal"] for placement in found["placements"]} == {None}
    assert "current" in result.stdout
    assert "unknown" not in result.stdout
    assert "FLOP/s" in result.stdout
    assert "of peak" not in result.stdout


def test_the_other_compared_schedules_are_listed(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "reference": 15.0})
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0
    words = ("explain", "branches.iosched.onnx", "b", "--measurements", 0)
    lines = invoke(*words).stdout.splitlines()
    table = lines[next(index for index, line in enumerate(lines) if line.startswith("other schedule")) + 1 :]
    assert table[0].split()[:3] == ["sequential", "20.0", "µs"]
    assert re.fullmatch(r"\d+% +concurrent, alone", table[0].split("µs")[1].strip())
    assert table[1].startswith("greedy")
    assert " with " in table[1]
    found = json.loads(invoke(*words, "--json").stdout)["alternatives"]
    assert [each["name"] for each in found] == ["sequential", "greedy"]
    assert (found[0]["latency_us"], found[0]["strategy"]) == (20.0, "concurrent")
    assert found[0]["groups"] == [["b"]]
    assert ["b"] in found[1]["groups"]


def test_an_operator_of_a_session_has_its_stage_with_and_without_the_session(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        del cost, lanes, worse_than_us
        return summarize([1.0 if stage.strategy is Strategy.SESSION else 10.0 * len(stage.operators)] * 7)

    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    script_models(monkeypatch, LATENCIES_US)
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0
    (whole,) = one_session(load_model(model).graph).stages
    path = Path("branches.schedule.json")
    document = ScheduleDocument.from_json(path.read_text())
    path.write_text(replace(document, schedule=Schedule((Block(0, (replace(whole, predicted_us=1.0),)),))).to_json())
    words = (path, "b", "--model", model)
    result = invoke("explain", *words)
    assert result.exit_code == 0
    for text in (
        "strategy   session, with ",
        "why        every alternative takes longer; the next best is without the session",
        "without the session  ",
        "Its stage in the best known schedule without the session:\n  concurrent  ",
    ):
        assert text in result.stdout
    found = json.loads(invoke("explain", *words, "--json").stdout)
    assert (found["present"]["strategy"], found["present_us"]) == ("session", 1.0)
    assert [placement["kind"] for placement in found["placements"]] == ["by_stages"]


def test_an_unused_schedule_is_reported(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "reference": 1.0})
    invoke("optimize", model, "--threads", 2, "-q")
    assert "uses plain onnxruntime" in invoke("explain", "branches.iosched.onnx", "b").stderr


@pytest.mark.parametrize(("faster", "words"), [(1.0, "interleaved runs show no difference"), (1.2, "it is faster")])
def test_a_place_is_called_faster_if_interleaved_runs_confirm_it(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch, faster: float, words: str
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    assert invoke("optimize", model, "--threads", 2, "--strategy", "sequential", "-q").exit_code == 0
    assert invoke("optimize", model, "--threads", 2, "--exhaustive", "-o", "best.onnx", "-q").exit_code == 0

    def in_turn(self: object, segments: Mapping[str, object]) -> dict[str, Measurement]:
        return {name: summarize([faster if name == "now" else 1.0] * 7) for name in segments}

    monkeypatch.setattr(CpuStageCost, "in_turn", in_turn)
    result = invoke("explain", "branches.iosched.onnx", "b")
    assert words in result.stdout
    assert f"interleaved {faster:.3f}x" in result.stdout
    found = json.loads(invoke("explain", "branches.iosched.onnx", "b", "--json").stdout)
    ratio = {"speedup": faster, "low": faster, "high": faster}
    assert ratio in [placement["in_turn"] for placement in found["placements"]]


def test_the_best_schedule_by_measured_latencies_is_not_called_optimal(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    table = invoke("optimize", model, "--threads", 2, "--strategy", "concurrent", "--exhaustive").stdout
    shown = [invoke("explain", "branches.iosched.onnx", "b").stdout, invoke("show", "branches.iosched.onnx").stdout]
    for text in (table, *shown):
        assert "best by the measured latencies" in text
        assert "optimal" not in text


def test_an_operator_has_to_be_named(invoke, complains, planned: Path) -> None:
    complains(invoke("explain", planned), 2, "Missing argument 'OPERATOR'")


def idle_column(text: str) -> list[str]:
    """The cells of the column 'idle' of the table of places."""
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("alternative"))
    end = lines[first].index("idle") + len("idle")
    rows = itertools.takewhile(lambda line: "µs" in line, lines[first + 1 :])
    return [line[:end].split()[-1] for line in rows]


def test_the_idle_share_of_the_stage_is_shown_for_each_place(invoke, planned: Path) -> None:
    found = json.loads(invoke("explain", planned, "b", "--json").stdout)
    own = [stage for each in found["placements"] if each["possible"] for stage in each["schedule"]]
    shares = [found["present"], *(stage for stage in own if any("b" in group for group in stage["groups"]))]
    assert all((stage["idle_share"] is None) == (stage["strategy"] == "merge") for stage in (*shares, *own))
    texts = ["-" if stage["idle_share"] is None else f"{stage['idle_share']:.0%}" for stage in shares]
    assert idle_column(invoke("explain", planned, "b").stdout) == texts
    assert all(0 <= stage["idle_share"] <= 1 for stage in own if stage["idle_share"] is not None)
    for each in found["alternatives"]:
        assert (each["idle_share"] is None) == (each["strategy"] == "merge")


def test_the_idle_share_on_this_machine_is_of_cores(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small convolutions are not split: a single one keeps one of two cores busy."""

    def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        del cost, lanes, worse_than_us
        return summarize([10.0 if len(stage.operators) == 1 else 12.0 * len(stage.operators)] * 7)

    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    script_models(monkeypatch, LATENCIES_US)
    words = ("--threads", 2, "--strategy", "concurrent", "-q")
    assert invoke("optimize", model, *words).exit_code == 0
    found = json.loads(invoke("explain", "branches.iosched.onnx", "b", "--measurements", 0, "--json").stdout)
    assert (found["present"]["groups"], found["present"]["idle_share"]) == ([["b"]], pytest.approx(0.5))
    assert idle_column(invoke("explain", "branches.iosched.onnx", "b", "--measurements", 0).stdout)[0] == "50%"
