"""Output and results of the ablation scripts."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from by_definition import dags, graph_of, groups_of
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from hypothesis import example, given
from hypothesis import strategies as st
from networks import zoo_model
from scripted import fire, script_stages

from iosched.models.graph import ComputationGraph
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.measuring.statistics import Measurement, measure, summarize
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import check_operators
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import can_merge

FOLDER = Path(__file__).parents[2] / "benchmarks"


def ran(script: ModuleType, folder: Path, *words: str) -> Mapping[str, object]:
    """Runs a script and returns its raw results."""
    path = folder / "raw.json"
    script.main([*words, "-o", str(path)])
    found = json.loads(path.read_text())
    assert {"command", "machine", "versions"} <= set(found)
    return found


def table_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[0] == "|"]


@pytest.fixture(scope="module")
def squeezenet() -> ComputationGraph:
    return zoo_model("squeezenet").graph


def check_legal(schedule: Schedule, graph: ComputationGraph) -> None:
    """Each operator occurs once and in order; groups follow the definition and the limits."""
    check_operators(schedule, graph)
    for stage in schedule.stages:
        assert len(stage.groups) <= 8
        assert max(map(len, stage.groups)) <= 3
        components = groups_of(graph, frozenset(stage.operators))
        assert sorted(map(sorted, stage.groups)) == sorted(map(sorted, components))
        assert stage.strategy is not Strategy.MERGE or can_merge(graph, stage.operators)


@example(graph=graph_of(12, []), eagerness=0.99, seed=0)
@given(graph=dags(), eagerness=st.floats(0, 0.99), seed=st.integers(0, 99))
def test_random_schedules_are_legal(graph: ComputationGraph, eagerness: float, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        additive = import_module("ablation_additive")
    check_legal(additive.random_schedule(graph, eagerness, random.Random(seed)), graph)


def test_random_schedules_merge_and_differ_in_concurrency(script, squeezenet: ComputationGraph) -> None:
    additive = script("ablation_additive")
    lazy, eager = (additive.random_schedule(squeezenet, eagerness, random.Random(1)) for eagerness in (0.0, 0.95))
    for schedule in (lazy, eager):
        check_legal(schedule, squeezenet)
    assert len(list(lazy.stages)) == len(squeezenet.operators) > len(list(eager.stages))
    some = [additive.random_schedule(squeezenet, 0.5, random.Random(seed)) for seed in range(5)]
    assert any(stage.strategy is Strategy.MERGE for schedule in some for stage in schedule.stages)


@pytest.mark.parametrize(
    ("measured", "accuracy", "correlation"),
    [((1.0, 2.0, 3.0), 1.0, 1.0), ((3.0, 2.0, 1.0), 0.0, -1.0), ((1.0, 3.0, 2.0), 2 / 3, 0.5)],
)
def test_order_accuracy_counts_pairs(script, measured, accuracy: float, correlation: float) -> None:
    additive = script("ablation_additive")
    pairs = [additive.Pair(1, 10.0 + place, latency, ()) for place, latency in enumerate(measured)]
    assert additive.order_accuracy(pairs) == pytest.approx(accuracy)
    assert additive.spearman(*map(np.array, additive._columns(pairs))) == pytest.approx(correlation)


def bed_on(
    script: ModuleType,
    device: str,
    graph: ComputationGraph,
    warm_stage_us: Callable[[object], float] | None = None,
    rested_us: tuple[float, ...] = (),
) -> Callable[..., AbstractContextManager[object]]:
    """SqueezeNet on a device where a stage takes 10 us, and the k-th schedule 50 + k."""

    def in_turn(schedules: Sequence[Schedule], rounds: int) -> object:
        measured = [summarize([50.0 + place] * rounds) for place in range(len(schedules))]
        return script.Turns([replace(each, rested_us=rested_us * rounds) for each in measured], slowness=1.25)

    spec = gpu_named("v100")
    assert spec is not None
    bed = script.Bed(
        graph,
        device,
        "measured",
        AnalyticCost(graph, spec),
        lambda stage: 10.0,
        in_turn=in_turn,
        warm_stage_us=warm_stage_us,
    )
    return lambda *_: nullcontext(bed)


def test_additive_compares_sums_of_stages_with_whole_schedules(
    script,
    squeezenet: ComputationGraph,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    additive = script("ablation_additive")
    monkeypatch.setattr(additive, "open_bed", bed_on(script("testbed"), "Some CPU", squeezenet))
    found = ran(additive, tmp_path, "--networks", "squeezenet", "--schedules", "3", "--rounds", "2")["networks"]
    assert isinstance(found, dict)
    schedules = found["squeezenet"]["schedules"]
    assert [one["predicted_us"] for one in schedules] == [10.0 * one["stages"] for one in schedules]
    assert [one["samples_us"] for one in schedules] == [[50.0, 50.0], [51.0, 51.0], [52.0, 52.0]]
    assert found["squeezenet"]["analytic"] is None
    assert found["squeezenet"]["warm_and_rested"] == {}
    ratio, at_one_speed = (found["squeezenet"][key] for key in ("measured_over_predicted", "at_the_profiles_speed"))
    assert at_one_speed == pytest.approx(ratio / 1.25, rel=1e-3)
    assert table_of(capsys.readouterr().out)[2][:4] == ["squeezenet", "3", "amid the model", "in a row"]


def test_additive_reports_ratios_with_warm_caches_and_after_idle(
    script, squeezenet: ComputationGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    additive = script("ablation_additive")
    bed = bed_on(script("testbed"), "Some CPU", squeezenet, lambda stage: 5.0, (200.0,))
    monkeypatch.setattr(additive, "open_bed", bed)
    words = ("--networks", "squeezenet", "--schedules", "3", "--rounds", "2")
    found = ran(additive, tmp_path, *words)["networks"]["squeezenet"]  # type: ignore[index]
    assert [one["warm_us"] for one in found["schedules"]] == [5.0 * one["stages"] for one in found["schedules"]]
    assert [one["rested_us"] for one in found["schedules"]] == [200.0] * 3
    ways = found["warm_and_rested"]
    doubled = ways["in the caches, in a row"]["measured_over_predicted"]
    assert doubled == pytest.approx(2 * found["measured_over_predicted"], rel=1e-3)
    assert set(ways) == {"in the caches, in a row", "in the caches, after a rest", "amid the model, after a rest"}


def test_on_a_gpu_results_include_the_analytic_model(
    script, squeezenet: ComputationGraph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    additive = script("ablation_additive")
    monkeypatch.setattr(additive, "open_bed", bed_on(script("testbed"), "Tesla V100-SXM2-16GB", squeezenet))
    words = ("--networks", "squeezenet", "--schedules", "4", "--device", "cuda")
    networks = ran(additive, tmp_path, *words)["networks"]
    assert isinstance(networks, dict)
    found = networks["squeezenet"]
    assert all(one["analytic_us"] > 0 for one in found["schedules"])
    errors = [abs(theirs - ours) / ours for ours, theirs in found["stage_us"]]
    assert found["analytic"]["stage_error"] == pytest.approx(sum(errors) / len(errors), abs=1e-3)


def test_additive_refuses_simulated_devices(script) -> None:
    with pytest.raises(SystemExit, match="CPU or an attached GPU only"):
        script("ablation_additive").main(["--networks", "squeezenet", "--device", "v100"])


@needs_compiler
def test_stages_and_schedules_are_measured_on_a_gpu(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testbed = script("testbed")
    monkeypatch.setattr(testbed, "zoo_model", lambda *_: fire())
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    with testbed.open_bed("squeezenet", "cuda", profile_db=tmp_path / "p.db") as bed:
        found = bed.search().schedule
        assert (bed.device, bed.cost_kind) == ("Host 1000", "measured")
        assert bed.latency_us(found) < bed.latency_us(sequential(bed.graph))
        plain, best = bed.in_turn([sequential(bed.graph), found], 3).measured
        assert best.median_us < plain.median_us
        assert len(plain.samples_us) == 3


def test_wider_limits_are_never_worse(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ran(script("ablation_pruning"), tmp_path, "--networks", "squeezenet")["rows"]
    assert isinstance(rows, list)
    by_limit = {(row["r"], row["s"]): row for row in rows}
    assert len(by_limit) == len(rows) == 6
    for (r, s), row in by_limit.items():
        assert row["asked"] <= row["stages"] <= row["transitions"]
        wider = [other for (more_r, more_s), other in by_limit.items() if more_r >= r and more_s >= s]
        assert all(other["latency_us"] <= row["latency_us"] * (1 + 1e-6) for other in wider)
        assert all(other["transitions"] >= row["transitions"] for other in wider)
    assert by_limit[1, 3]["transitions"] < by_limit[3, 8]["transitions"]
    cells = table_of(capsys.readouterr().out)
    assert cells[-1][-1] == "+0.00 %"
    assert len(cells) == 2 + len(rows)


def test_no_block_is_slower_than_sequential_execution(script, tmp_path: Path) -> None:
    rows = ran(script("ablation_blocks"), tmp_path, "--networks", "squeezenet")["rows"]
    assert isinstance(rows, list)
    assert rows
    for row in rows:
        assert 0 < row["found_us"] <= row["sequential_us"] * (1 + 1e-6)
        assert 1 <= row["stages"] <= row["operators"]
        assert row["operators"] > 1


@pytest.mark.slow
def test_blocks_and_chains_add_up_to_the_network(script, tmp_path: Path) -> None:
    blocks, testbed = script("ablation_blocks"), script("testbed")
    rows = ran(blocks, tmp_path, "--networks", "googlenet")["rows"]
    assert isinstance(rows, list)
    with testbed.open_bed("googlenet", "v100") as bed:
        schedule = bed.search().schedule
        shown = {row["block"] for row in rows}
        chains = [block for block in schedule.blocks if block.index not in shown]
        total_us = sum(row["found_us"] for row in rows) + sum(map(bed.block_us, chains))
        assert total_us == pytest.approx(bed.latency_us(schedule), rel=1e-4)


@pytest.mark.slow
def test_on_the_cpu_stages_are_measured(script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = script_stages(monkeypatch)
    words = ("--networks", "squeezenet", "--device", "cpu", "--profile-db", str(tmp_path / "p.db"))
    first = ran(script("ablation_blocks"), tmp_path, *words)["rows"]
    assert isinstance(first, list)
    count = len(measured)
    assert count > len(first) > 0
    assert all(40 < row["found_us"] / row["stages"] < 120 for row in first)  # the scripted latencies
    assert ran(script("ablation_blocks"), tmp_path, *words)["rows"] == first
    assert len(measured) == count


def test_the_schedule_for_a_batch_size_beats_both_baselines(script, tmp_path: Path) -> None:
    words = ("--networks", "squeezenet", "--batch-sizes", "1,32")
    rows = ran(script("ablation_batch"), tmp_path, *words)["rows"]
    assert isinstance(rows, list)
    assert [row["batch_size"] for row in rows] == [1, 32]
    assert all(row["both_us"] <= min(row["sequential_us"], row["greedy_us"]) for row in rows)
    assert 8 < rows[1]["sequential_us"] / rows[0]["sequential_us"] <= 32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pruning", "blocks", "batch"])
def test_charts_state_that_nothing_was_measured(script, name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="charts need matplotlib (extra 'bench')")
    words = ["--networks", "squeezenet", "--plot", str(tmp_path / "f.svg")]
    script(f"ablation_{name}").main(words + ["--batch-sizes", "1,2"] * (name == "batch"))
    drawn = (tmp_path / "f.svg").read_text()
    assert "analytic model, not measured" in drawn


def test_curtailing_compares_two_searches(
    script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Latencies scatter by a quarter around 100 us; of stages with two operators around 400, with three around 900."""
    curtailing = script("ablation_curtailing")

    def timed(cost: CpuStageCost, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        level_us = 100.0 * len(stage.operators) ** 2
        samples = (level_us * (0.75 + 0.125 * (index % 5)) for index in count())
        return measure(lambda runs: list(islice(samples, runs)), cost.settings, worse_than_us=worse_than_us)

    def interleaved(runnables: Mapping[str, object], *_: object) -> dict[str, Measurement]:
        return {way: summarize([10.0 if way == "curtailed" else 12.0] * 9) for way in runnables}

    monkeypatch.setattr(curtailing, "zoo_model", lambda _: fire())
    monkeypatch.setattr(CpuStageCost, "_timed", timed)
    monkeypatch.setattr(curtailing, "in_turn", interleaved)
    found = ran(curtailing, tmp_path, "--networks", "fire")["networks"]["fire"][0]
    full, curtailed = found["searches"]
    assert (full["way"], full["rough"]) == ("in full", 0)
    assert curtailed["rough"] > 0
    assert curtailed["samples"] < full["samples"]
    rows = table_of(capsys.readouterr().out)
    assert [row[:2] for row in rows[2:]] == [["fire", "in full"], ["fire", "curtailed"]]
    assert rows[3][-1] == "1.200 (1.200 to 1.200)"
