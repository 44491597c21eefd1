"""Explanations by latencies from the database, from a few measurements, and from the analytic model."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from host_cuda import needs_compiler
from host_gpu import attach_host, time_by_size
from scripted import LATENCIES_US, fire, script_models, script_stages

from iosched.jobs.explain import MOST_IN_TURN, Explanation, explain_operator, find_operator
from iosched.jobs.optimize import OptimizeResult, OptimizeSettings, optimize
from iosched.models.errors import DeviceError, InvalidScheduleError, UsageError
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.measured_costs import ComparesSegments
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.baselines import greedy, one_session, sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Scripts latencies of stages and of whole models; has one entry for each measured stage."""
    script_models(monkeypatch, LATENCIES_US)
    return script_stages(monkeypatch)


@pytest.fixture
def optimized(measured: list[int], tmp_path: Path) -> Callable[..., OptimizeResult]:
    def call(**settings: object) -> OptimizeResult:
        given = OptimizeSettings(threads=2, profile_db=tmp_path / "p.db")
        return optimize(fire(), replace(given, **settings))  # type: ignore[arg-type]

    return call


def test_after_an_exhaustive_search_nothing_is_faster_and_nothing_is_measured(
    optimized: Callable[..., OptimizeResult], measured: list[int], tmp_path: Path
) -> None:
    result = optimized(exhaustive=True, strategy="concurrent")
    before = len(measured)
    for operator in fire().graph.operators:
        found = explain_operator(fire(), result.document, operator.name, profile_db=tmp_path / "p.db")
        explanation = found.explanation
        assert (found.measurements, found.cost) == (0, "measured")
        assert operator.name in found.together
        assert explanation.present_us is not None
        for placement in explanation.others:
            assert placement.at_most_us >= explanation.present_us * (1 - 1e-6)
    assert len(measured) == before


def test_no_more_is_measured_than_allowed(
    optimized: Callable[..., OptimizeResult], measured: list[int], tmp_path: Path
) -> None:
    result = optimized(strategy="sequential")
    before = len(measured)
    name = fire().graph.operators[1].name
    unknown = explain_operator(fire(), result.document, name, measurements=0, profile_db=tmp_path / "p.db")
    assert len(measured) == before
    assert unknown.explanation.present_us is None
    assert all(math.isinf(placement.at_most_us) for placement in unknown.explanation.others)
    some = explain_operator(fire(), result.document, name, measurements=3, profile_db=tmp_path / "p.db")
    assert (len(measured) - before, some.measurements) == (3, 3)
    known = explain_operator(fire(), result.document, name, measurements=1000, profile_db=tmp_path / "p.db")
    assert known.explanation.present_us is not None
    assert any(placement.is_exact for placement in known.explanation.others)


def test_an_analytic_schedule_is_explained_by_the_analytic_model(
    optimized: Callable[..., OptimizeResult], measured: list[int]
) -> None:
    result = optimized(device="v100", precision="fp16")
    for operator in fire().graph.operators:
        found = explain_operator(fire(), result.document, operator.name)
        explanation = found.explanation
        assert (found.cost, found.device_name, found.tolerance) == ("analytic", "Tesla V100-SXM2-16GB", 0.0)
        assert explanation.present_us == pytest.approx(sum(stage.predicted_us or 0.0 for stage in explanation.stages))
        for placement in explanation.others:
            assert placement.is_exact or not placement.possible
            assert placement.at_most_us >= explanation.present_us * (1 - 1e-9)
    assert not measured


@needs_compiler
def test_a_schedule_of_an_attached_gpu_is_explained_by_measurements_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach_host(monkeypatch)
    time_by_size(monkeypatch)
    settings = OptimizeSettings(device="cuda", profile_db=tmp_path / "p.db", exhaustive=True, strategy="concurrent")
    result = optimize(fire(), settings)
    for operator in fire().graph.operators:
        found = explain_operator(fire(), result.document, operator.name, profile_db=tmp_path / "p.db")
        assert (found.device_name, found.cost, found.measurements) == ("Host 1000", "measured", 0)
        present_us = found.explanation.present_us
        assert present_us is not None
        assert all(placement.at_most_us >= present_us * (1 - 1e-6) for placement in found.explanation.others)
    elsewhere = replace(result.document, device={"kind": "cuda", "name": "Other 2000"})
    with pytest.raises(DeviceError, match="measured on Other 2000, but the attached GPU is Host 1000"):
        explain_operator(fire(), elsewhere, operator.name, profile_db=tmp_path / "p.db")


def test_unknown_operators_and_devices_and_other_shapes_are_refused(
    optimized: Callable[..., OptimizeResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    planned = optimized(device="v100").document
    name = fire().graph.operators[0].name
    with pytest.raises(UsageError, match="did you mean"):
        explain_operator(fire(), planned, f"{name}x")
    with pytest.raises(DeviceError, match="whose specification this version"):
        explain_operator(fire(), replace(planned, device={"kind": "cuda", "name": "A GPU of 2040"}), name)
    with pytest.raises(DeviceError, match="CuPy is not installed"):
        explain_operator(fire(), replace(planned, cost="measured"), name, profile_db=tmp_path / "p.db")
    with pytest.raises(InvalidScheduleError, match="shape"):
        explain_operator(fire(batch=2), planned, name)


def test_an_operator_is_found_by_its_nodes_and_outputs() -> None:
    graph = fire().graph
    for operator in graph.operators:
        assert find_operator(graph, operator.name) == operator
        assert all(find_operator(graph, part) == operator for part in (*operator.nodes, *operator.outputs))
    with pytest.raises(UsageError, match="iosched show"):
        find_operator(graph, "zzzzzzzz")


def turns(now_us: float, others_us: float) -> Callable[..., dict[str, Measurement]]:
    """Interleaved latencies of the block as it is and with the operator elsewhere; some rounds are slower."""

    def in_turn(self: object, segments: Mapping[str, Sequence[Stage]]) -> dict[str, Measurement]:
        speeds = [1.0, 1.3, 0.9, 1.1, 1.0, 1.2, 1.0]
        return {
            name: summarize([(now_us if name == "now" else others_us) * speed for speed in speeds]) for name in segments
        }

    return in_turn


def test_placements_that_look_faster_by_their_stages_are_confirmed_by_interleaved_runs(
    optimized: Callable[..., OptimizeResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Latencies of stages are scripted, so the sequential schedule looks worse than others."""
    result = optimized(strategy="sequential")
    optimized(exhaustive=True, strategy="concurrent")
    document = result.document

    def explained(now_us: float, others_us: float, measurements: int = 50) -> list[Explanation]:
        monkeypatch.setattr(CpuStageCost, "in_turn", turns(now_us, others_us))
        names = [operator.name for operator in fire().graph.operators]
        given = {"measurements": measurements, "profile_db": tmp_path / "p.db"}
        return [explain_operator(fire(), document, name, **given) for name in names]  # type: ignore[arg-type]

    for now_us, others_us in ((100.0, 100.0), (90.0, 100.0)):
        found = [each for each in explained(now_us, others_us) if each.in_turn]
        assert found
        assert all(each.better is None for each in found)
        assert any(each.explanation.verdict(each.tolerance) == "worse" for each in found), "by its stages alone"
    found = [each for each in explained(120.0, 100.0) if each.in_turn]
    assert all(each.better in each.in_turn for each in found)
    for each in found:
        assert len(each.in_turn) <= MOST_IN_TURN
        assert all(place.at_most_us < (each.explanation.present_us or 0.0) for place in each.in_turn)
        assert [ratio.value for ratio in each.in_turn.values()] == pytest.approx([1.2] * len(each.in_turn))
    assert not any(each.in_turn for each in explained(120.0, 100.0, measurements=0))


def test_an_operator_of_a_session_is_compared_with_its_separate_stages(
    optimized: Callable[..., OptimizeResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = optimized(exhaustive=True, strategy="concurrent")
    names = [operator.name for operator in fire().graph.operators]
    (whole,) = one_session(fire().graph).stages
    session = replace(whole, predicted_us=1e6)
    document = replace(result.document, schedule=Schedule((Block(0, (session,)),)))
    monkeypatch.setattr(CpuStageCost, "in_turn", turns(120.0, 100.0))
    for name in names:
        found = explain_operator(fire(), document, name, profile_db=tmp_path / "p.db")
        (instead,) = found.explanation.others
        assert found.explanation.present.strategy is Strategy.SESSION
        assert instead.at_most_us < 1e6
        assert (found.better == instead) == (instead.at_most_us < (found.explanation.present_us or 0.0))


def test_segments_are_measured_interleaved_on_this_cpu(tmp_path: Path) -> None:
    with ProfileDatabase(None) as database, CpuBackend(fire(), lanes=2) as backend:
        cost = CpuStageCost(backend, database)
        schedules = {"one by one": sequential(backend.graph), "greedy": greedy(backend.graph)}
        found = cost.in_turn({name: tuple(schedule.stages) for name, schedule in schedules.items()})
        assert isinstance(cost, ComparesSegments)
        assert cost.in_turn({}) == {}
        assert cost.measurements == 0, "it keeps nothing"
    comparison = compare(found["one by one"], found["greedy"])
    assert comparison is not None
    assert comparison.value > 0
