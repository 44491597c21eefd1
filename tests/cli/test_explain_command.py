"""`iosched explain`: the table, JSON, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest
from scripted import LATENCIES_US, script_models, script_stages
from small_models import branches

from iosched.profiler.devices.analytic import uncertainty
from iosched.profiler.devices.cpu.cost import CpuStageCost
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.schedule import Stage, Strategy

STAGE = {"strategy", "groups", "predicted_us", "flops", "tflops", "share_of_peak", "sm_share"}


@pytest.fixture
def planned(invoke, model: Path) -> Path:
    """`branches.onnx` planned for a GPU."""
    assert invoke("optimize", model, "--device", "v100", "-q").exit_code == 0
    return Path("branches.iosched.onnx")


def test_the_table_weighs_every_place(invoke, planned: Path) -> None:
    result = invoke("explain", planned, "b")
    assert result.exit_code == 0
    for text in (
        "b in branches on Tesla V100",
        "analytic",
        "type       Conv",
        "place      block 0",
        "of peak",
        "why ",
        "as it is",
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


def test_a_place_is_called_equal_where_the_difference_is_less_than_the_model_can_tell(
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
    assert "every other place takes longer" in shown
    assert "=" not in shown
    shown, equal = explained(1.0)
    assert equal == {True}
    assert "it takes as long, as far as the model can tell" in shown
    assert "%) =\n= takes as long as it does now" in shown


def test_a_schedule_file_needs_its_model(invoke, complains, model: Path, planned: Path) -> None:
    complains(invoke("explain", "branches.schedule.json", "b"), 2, "give it with --model")
    result = invoke("explain", "branches.schedule.json", "b", "--model", model, "--json")
    assert json.loads(result.stdout) == json.loads(invoke("explain", planned, "b", "--json").stdout)


def test_an_unknown_operator_is_told_from_what_comes_close(invoke, complains, planned: Path) -> None:
    complains(invoke("explain", planned, "bb"), 2, "there is no operator 'bb'", "did you mean b")


def test_a_model_without_a_schedule_is_refused(invoke, complains, model: Path) -> None:
    complains(invoke("explain", model, "b"), 2, "carries no schedule")


def test_a_schedule_of_this_machine(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0
    result = invoke("explain", "branches.iosched.onnx", "b", "--measurements", 0)
    assert result.exit_code == 0
    assert "as far as the model can tell" not in result.stdout
    found = json.loads(invoke("explain", "branches.iosched.onnx", "b", "--measurements", 0, "--json").stdout)
    assert {placement["equal"] for placement in found["placements"]} == {None}
    assert "as it is" in result.stdout
    assert "not known" not in result.stdout
    assert "FLOP/s" in result.stdout
    assert "of peak" not in result.stdout


def test_the_other_schedules_that_were_compared_are_told(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "reference": 15.0})
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0
    words = ("explain", "branches.iosched.onnx", "b", "--measurements", 0)
    lines = invoke(*words).stdout.splitlines()
    table = lines[next(index for index, line in enumerate(lines) if line.startswith("in another schedule")) + 1 :]
    assert table[0].split() == ["sequential", "20.0", "µs", "concurrent,", "alone"]
    assert table[1].startswith("greedy")
    assert " with " in table[1]
    found = json.loads(invoke(*words, "--json").stdout)["alternatives"]
    assert [each["name"] for each in found] == ["sequential", "greedy"]
    assert (found[0]["latency_us"], found[0]["strategy"]) == (20.0, "concurrent")
    assert found[0]["groups"] == [["b"]]
    assert ["b"] in found[1]["groups"]


def test_an_operator_of_a_session_is_told_its_session_and_its_stage_without_it(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        del cost, lanes, worse_than_us
        return summarize([1.0 if stage.strategy is Strategy.SESSION else 10.0 * len(stage.operators)] * 7)

    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    script_models(monkeypatch, LATENCIES_US)
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0
    result = invoke("explain", "branches.iosched.onnx", "b")
    assert result.exit_code == 0
    for text in (
        "strategy   session, with ",
        "why        every other place takes longer; the next best is without the session",
        "without the session  ",
        "Its stage in the best schedule known without the session:\n  concurrent  ",
    ):
        assert text in result.stdout
    found = json.loads(invoke("explain", "branches.iosched.onnx", "b", "--json").stdout)
    assert (found["present"]["strategy"], found["present_us"]) == ("session", 1.0)
    assert [placement["kind"] for placement in found["placements"]] == ["by_stages"]


def test_what_is_not_used_is_said(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, {**LATENCIES_US, "reference": 1.0})
    invoke("optimize", model, "--threads", 2, "-q")
    assert "plain onnxruntime was shipped" in invoke("explain", "branches.iosched.onnx", "b").stderr


@pytest.mark.parametrize(("faster", "words"), [(1.0, "no difference was found in turn"), (1.2, "it would be faster")])
def test_a_place_is_called_faster_if_it_is_so_in_turn(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch, faster: float, words: str
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    assert invoke("optimize", model, "--threads", 2, "--strategy", "sequential", "-q").exit_code == 0
    assert invoke("optimize", model, "--threads", 2, "--exhaustive", "-o", "best.onnx", "-q").exit_code == 0

    def in_turn(self: object, stretches: Mapping[str, object]) -> dict[str, Measurement]:
        return {name: summarize([faster if name == "now" else 1.0] * 7) for name in stretches}

    monkeypatch.setattr(CpuStageCost, "in_turn", in_turn)
    result = invoke("explain", "branches.iosched.onnx", "b")
    assert words in result.stdout
    assert f"in turn {faster:.3f}x" in result.stdout
    found = json.loads(invoke("explain", "branches.iosched.onnx", "b", "--json").stdout)
    ratio = {"speedup": faster, "low": faster, "high": faster}
    assert ratio in [placement["in_turn"] for placement in found["placements"]]


def test_what_is_best_by_measured_latencies_is_not_called_optimal(
    invoke, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    table = invoke("optimize", model, "--threads", 2, "--strategy", "concurrent", "--exhaustive").stdout
    shown = [invoke("explain", "branches.iosched.onnx", "b").stdout, invoke("show", "branches.iosched.onnx").stdout]
    for text in (table, *shown):
        assert "best by its latencies as they were measured" in text
        assert "optimal" not in text


CHANGE = {"kind", "operator", "from", "to", "free", "ratio", "low", "high", "tried", "readers"}
CAPACITY = {
    "model",
    "device",
    "cost",
    "launch",
    "shipped",
    "lanes",
    "teams",
    "channel_block",
    "measurements",
    "why",
    "stages",
}
STAGE_CAPACITY = {
    *("block", "stage", "strategy", "groups", "latency_us", "idle_share", "apart_us", "why", "changes"),
}  # fmt: skip


def test_an_operator_or_the_capacity_of_all_stages_has_to_be_asked_for(invoke, complains, planned: Path) -> None:
    complains(invoke("explain", planned), 2, "--capacity")


def test_the_capacity_of_every_stage_is_shown_with_what_is_free_in_it(invoke, planned: Path) -> None:
    result = invoke("explain", planned, "--capacity")
    assert result.exit_code == 0
    assert result.stderr == ""
    found = json.loads(invoke("explain", planned, "--capacity", "--json").stdout)
    assert set(found) == CAPACITY
    assert (found["cost"], found["lanes"], found["measurements"], found["why"]) == ("analytic", None, 0, None)
    for stage in found["stages"]:
        assert set(stage) == STAGE_CAPACITY
        place = f"block {stage['block']}, stage {stage['stage'] + 1}"
        assert f"{place} " in result.stdout
        assert 0 <= stage["idle_share"] <= 1
        free = [change for change in stage["changes"] if change["free"]]
        assert (f"{place}: " in result.stdout) == bool(free)
        for change in stage["changes"]:
            assert set(change) == CHANGE
            assert change["low"] <= change["ratio"] <= change["high"]
            is_wider = change["free"] and change["kind"] == "width"
            assert (f"{change['operator']} may have {change['to'][0]} instead of" in result.stdout) == is_wider
            assert not change["readers"] or change["kind"] == "width"
    assert "; 1 operator reads them later\n" in result.stdout
    assert "of the SMs" in result.stdout
    assert "which is not counted" in result.stdout


def test_the_capacity_of_one_stage(invoke, complains, planned: Path) -> None:
    found = json.loads(invoke("explain", planned, "b", "--capacity", "--json").stdout)
    tried = [stage for stage in found["stages"] if stage["changes"]]
    assert len(tried) == 1
    assert any("b" in group for group in tried[0]["groups"])
    complains(invoke("explain", planned, "bb", "--capacity"), 2, "did you mean b")


def test_the_capacity_of_a_schedule_of_this_machine(invoke, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    assert invoke("optimize", model, "--threads", 2, "-q").exit_code == 0

    def in_turn(cost: CpuStageCost, stretches: Mapping[str, list[Stage]]) -> dict[str, Measurement]:
        return {name: summarize([10.0, 11.0, 10.0] * 3) for name in stretches}

    monkeypatch.setattr(CpuStageCost, "in_turn", in_turn)
    result = invoke("explain", "branches.iosched.onnx", "--capacity", "--measurements", 200)
    assert result.exit_code == 0
    assert "channels at no latency (measured: 1.00-1.00 times as long)" in result.stdout
    assert "a branch like that of" in result.stdout
    assert "idle for" in result.stdout
    nothing = invoke("explain", "branches.iosched.onnx", "--capacity", "--measurements", 0)
    assert "more measurements than are allowed" in nothing.stdout
    assert "at no latency (" not in nothing.stdout
