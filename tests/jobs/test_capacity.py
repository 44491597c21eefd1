"""What a schedule leaves idle, and what is promised to be free: by the analytic model, and with made-up latencies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import zoo_model
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs import capacity as jobs_capacity
from iosched.jobs.capacity import MOST_STAGES, capacity
from iosched.jobs.headroom.ratios import MOST_COMPUTED
from iosched.jobs.headroom.result import Capacity, Change
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.models.enlarging.branch import with_branch
from iosched.models.enlarging.kernel import with_kernel
from iosched.models.enlarging.part import Part, part_of
from iosched.models.enlarging.trial import groups_in_trial, trial
from iosched.models.enlarging.width import widened
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.analytic.cost import AnalyticCost
from iosched.profiler.devices.cpu.cost import CpuStageCost
from iosched.profiler.devices.gpus import gpu_keys, gpu_named
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.stretches import session_of


@cache
def network(name: str) -> Model:
    if name == "fire":
        return fire()
    return zoo_model(f"light_{name}")


@cache
def planned(name: str, gpu: str) -> Capacity:
    model = network(name)
    settings = OptimizeSettings(device=gpu, strategy="greedy", profile_db=Path("/nonexistent/p.db"))
    return capacity(model, optimize(model, settings).document)


def changed(part: Part, change: Change) -> Part:
    """The part with the change made, as a designer would make it."""
    if change.kind == "width":
        made = widened(part, change.operator, *change.to)
    elif change.kind == "kernel":
        made = with_kernel(part, change.operator, change.to)
    else:
        made = with_branch(part, next(place for place, group in enumerate(part.groups) if group[0] == change.operator))
    assert made is not None
    return made


@settings(max_examples=6, deadline=None)
@given(name=st.sampled_from(["fire", "squeezenet", "shufflenet"]), gpu=st.sampled_from(sorted(gpu_keys())))
def test_what_the_model_promises_is_not_slower_by_the_model(name: str, gpu: str) -> None:
    model, spec, found = network(name), gpu_named(gpu), planned(name, gpu)
    assert spec is not None
    assert found.cost == "analytic"
    assert sum(each.why is None for each in found.stages) <= MOST_STAGES
    for each in found.stages:
        part = part_of(model, each.stage.groups)
        assert each.apart_us in (None, pytest.approx(each.latency_us))
        for change in each.changes:
            parts = {"now": part, "changed": changed(part, change)}
            made = trial(parts, found.channel_block)
            cost = AnalyticCost(made.graph, spec)
            now_us, us = (
                cost.stage_latency_us(Stage(each.stage.strategy, groups_in_trial(own, parts[own].groups)))
                for own in ("now", "changed")
            )
            assert now_us == pytest.approx(each.latency_us)
            assert us / now_us == pytest.approx(change.ratio.value)
            if change.ratio.is_free:
                assert us <= now_us * MOST_COMPUTED


def test_a_merged_kernel_may_be_as_large_as_the_one_beside_it() -> None:
    """A merge pads it with zeros to that size anyway."""
    model = fire()
    document = optimize(model, OptimizeSettings(device="v100", strategy="greedy")).document
    expands = Stage(Strategy.MERGE, (("f1",), ("f3",)))
    blocks = (
        replace(block, stages=tuple(expands if "f1" in stage.operators else stage for stage in block.stages))
        for block in document.schedule.blocks
    )
    found = capacity(model, replace(document, schedule=Schedule(tuple(blocks))), "f3")
    (stage,) = (each for each in found.stages if each.why is None)
    (kernel,) = (each for each in stage.changes if (each.kind, each.operator) == ("kernel", "f1"))
    assert (kernel.now, kernel.to) == ((1, 1), (3, 3))
    assert (kernel.ratio.value, kernel.ratio.is_free) == (1.0, True)


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., OptimizeResult]:
    script_models(monkeypatch, LATENCIES_US)
    script_stages(monkeypatch)

    def call(**more: object) -> OptimizeResult:
        given = OptimizeSettings(threads=2, profile_db=tmp_path / "p.db", strategy="concurrent", exhaustive=True)
        return optimize(fire(), replace(given, **more))  # type: ignore[arg-type]

    return call


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stages take 10 µs, and more for each channel above 40, larger kernel or branch; has what was measured in turn."""
    taken: list[str] = []

    def in_turn(cost: CpuStageCost, stretches: Mapping[str, Sequence[Stage]]) -> dict[str, Measurement]:
        def us(stage: Stage) -> float:
            units = [cost.backend.graph.by_name[name] for name in stage.operators]
            wide = sum(max(unit.integer("out_channels") - 40, 0) for unit in units)
            return 10.0 + wide + sum(max(unit.integers("kernel_shape"), default=0) for unit in units) / 10

        taken.extend(stretches if len(stretches) == 1 else filter(None, stretches))
        return {name: summarize([us(stage)] * 9) for name, (stage,) in stretches.items()}

    monkeypatch.setattr(CpuStageCost, "in_turn", in_turn)
    return taken


def test_on_a_cpu_the_most_that_is_not_slower_is_found(
    optimized: Callable[..., OptimizeResult], turns: list[str], tmp_path: Path
) -> None:
    found = capacity(fire(), optimized().document, measurements=1000, profile_db=tmp_path / "p.db")
    assert (found.cost, found.lanes, found.why) == ("measured", 2, None)
    assert found.measurements == len(turns)
    changes = [change for each in found.stages for change in each.changes]
    assert {change.kind for change in changes} == {"width", "kernel", "branch"}
    for change in changes:
        assert change.ratio.is_free == (change.kind == "width")
        if change.kind == "width":
            assert change.now == (16,)
            assert change.to == (32,)
    for each in found.stages:
        assert each.idle is None or 0 <= each.idle <= 1
        assert each.changes or each.why


def test_no_more_is_measured_than_allowed_and_nothing_is_said_of_the_rest(
    optimized: Callable[..., OptimizeResult], turns: list[str], tmp_path: Path
) -> None:
    document = optimized().document
    for measurements in (0, 7, 14):
        turns.clear()
        found = capacity(fire(), document, measurements=measurements, profile_db=tmp_path / "p.db")
        assert found.measurements == len(turns) <= measurements
        untried = [each for each in found.stages if each.why is not None]
        assert any("more measurements than are allowed" in (each.why or "") for each in untried)
        assert all(not each.changes for each in untried)
        assert bool(turns) == (len(untried) < len(found.stages)) == (measurements == 14)


def test_whatever_is_allowed_what_was_begun_is_measured_a_second_time(
    optimized: Callable[..., OptimizeResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is free, so that every search would go on to its end."""
    monkeypatch.setattr(
        CpuStageCost, "in_turn", lambda cost, stretches: {name: summarize([10.0] * 9) for name in stretches}
    )
    document = optimized().document
    for measurements in (8, 11, 14, 17, 26, 39):
        found = capacity(fire(), document, measurements=measurements, profile_db=tmp_path / "p.db")
        assert found.measurements <= measurements
        for each in found.stages:
            names = each.stage.operators
            convolutions = min(sum(fire().graph.by_name[name].type == "Conv" for name in names), 2)
            kinds = convolutions * (1 if "gc" in names else 2) + 1  # what the model returns becomes no wider
            assert len(each.changes) == (kinds if each.why is None else 0)


def test_those_stages_are_tried_that_leave_most_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("squeezenet")
    document = optimize(model, OptimizeSettings(device="v100", strategy="greedy")).document
    everything = [each for each in capacity(model, document).stages if each.changes]
    monkeypatch.setattr(jobs_capacity, "MOST_STAGES", 3)
    found = capacity(model, document)
    tried = [(each.block, each.index) for each in found.stages if each.changes]
    most = sorted(everything, key=lambda each: -each.idle_us)[:3]
    assert sorted(tried) == sorted((each.block, each.index) for each in most)
    assert any("leave most idle" in (each.why or "") for each in found.stages)


def test_of_an_operator_its_stage_alone_is_tried(
    optimized: Callable[..., OptimizeResult], turns: list[str], tmp_path: Path
) -> None:
    document = optimized().document
    found = capacity(fire(), document, "g1", measurements=1000, profile_db=tmp_path / "p.db")
    (tried,) = (each for each in found.stages if each.changes)
    assert "g1" in tried.stage.operators
    with pytest.raises(UsageError, match="did you mean"):
        capacity(fire(), document, "g11")


def test_what_an_operators_stage_leaves_idle_is_measured_before_that_of_others(
    optimized: Callable[..., OptimizeResult], turns: list[str], tmp_path: Path
) -> None:
    """Nothing is known in another profile database, and three measurements are for what is idle: those of a stage."""
    document = optimized().document
    alone = replace(document, schedule=sequential(fire().graph))
    for operator, another in (("gs", "f3"), ("f3", "gs")):
        found = capacity(fire(), alone, operator, measurements=7, profile_db=tmp_path / f"{operator}.db")
        idle = {name: each.idle for each in found.stages for name in each.stage.operators}
        assert idle[operator] is not None
        assert idle[another] is None


def test_a_stage_that_is_another_apart_from_the_model_says_nothing(
    optimized: Callable[..., OptimizeResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `fire` itself everything takes 13 µs, of its parts 10."""

    def in_turn(cost: CpuStageCost, stretches: Mapping[str, Sequence[Stage]]) -> dict[str, Measurement]:
        us = 13.0 if len(cost.backend.graph.operators) == len(fire().graph.operators) else 10.0
        return {name: summarize([us] * 9) for name in stretches}

    monkeypatch.setattr(CpuStageCost, "in_turn", in_turn)
    found = capacity(fire(), optimized().document, "f1", measurements=1000, profile_db=tmp_path / "p.db")
    (stage,) = (each for each in found.stages if "f1" in each.stage.operators)
    assert (stage.apart_us, stage.changes) == (10.0, ())
    assert "not computed as they are amid it" in (stage.why or "")
    assert found.measurements == 2


def test_of_a_session_it_is_said_why_nothing_is(
    optimized: Callable[..., OptimizeResult], turns: list[str], tmp_path: Path
) -> None:
    graph = fire().graph
    whole = session_of(graph, [operator.name for operator in graph.operators])
    document = replace(optimized().document, schedule=Schedule((Block(0, (whole,)),)))
    (only,) = capacity(fire(), document, measurements=1000, profile_db=tmp_path / "p.db").stages
    assert "one session of onnxruntime" in (only.why or "")
    assert not turns


def test_the_executor_itself_measures_changed_stages(optimized: Callable[..., OptimizeResult], tmp_path: Path) -> None:
    """Nothing stands in for the clock here, so the ratios may be any."""
    document = optimized().document
    found = capacity(fire(), document, "f1", measurements=16, profile_db=tmp_path / "p.db")
    (tried,) = (each for each in found.stages if "f1" in each.stage.operators)
    assert tried.apart_us is not None
    assert tried.apart_us > 0
    assert 0 < found.measurements <= 16
    assert bool(tried.changes) == (tried.why is None)
    assert all(0 < change.ratio.low <= change.ratio.value <= change.ratio.high for change in tried.changes)


@needs_compiler
def test_of_an_attached_gpu_it_is_said_why_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    document = optimize(
        fire(), OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", strategy="greedy")
    ).document
    found = capacity(fire(), document, profile_db=tmp_path / "p.db")
    assert found.stages == ()
    assert "Plan for it by its name" in (found.why or "")
