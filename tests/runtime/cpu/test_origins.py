"""The stage and operators of each task of a compiled schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from scripted import fire

from iosched.models.graph import ComputationGraph
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.executor import TaskOrigin, TracedRuns
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")


def alone(*names: str) -> tuple[Stage, ...]:
    return tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in names)


def merged(graph: ComputationGraph) -> Schedule:
    """The two convolutions of the first half as one, in the first of two blocks."""
    del graph
    both = Stage(Strategy.MERGE, (("f1",), ("f3",)))
    return Schedule((Block(0, (*alone("fs"), both, *alone("fc"))), Block(1, alone("gs", "g1", "g3", "gc"))))


def in_a_session(graph: ComputationGraph) -> Schedule:
    """The second half in one session."""
    del graph
    whole = Stage(Strategy.SESSION, (("gs", "g1", "g3", "gc"),))
    return Schedule((Block(0, (*alone("fs", "f1", "f3", "fc"), whole)),))


def traced(way: Callable[[ComputationGraph], Schedule], *, native: bool, lanes: int = 2) -> tuple[Schedule, TracedRuns]:
    model = fire()
    schedule = way(model.graph)
    with CpuBackend(model, lanes=lanes, native=native) as backend, closing(backend.compile(schedule)) as compiled:
        return schedule, compiled.trace(random_inputs(model.graph.inputs), 3)


def named(runs: TracedRuns, name: str) -> list[TaskOrigin]:
    return [task.origin for task in runs.tasks if name in task.origin.operators]


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("way", [sequential, greedy, merged, in_a_session])
def test_each_task_has_its_operators_and_stage(way: Callable[[ComputationGraph], Schedule], native: bool) -> None:
    schedule, runs = traced(way, native=native)
    stage_of = {name: number for number, stage in enumerate(schedule.stages) for name in stage.operators}
    assert {name for task in runs.tasks for name in task.origin.operators} >= set(stage_of) - {"fc", "gc"}
    for task in runs.tasks:
        assert {stage_of[name] for name in task.origin.operators} == {task.origin.stage}
        assert 0 <= task.begin_us < task.end_us <= runs.latency_us
    assert len(runs.times_us) == 3


def test_merged_task_belongs_to_all_its_operators() -> None:
    _, runs = traced(merged, native=True)
    assert {origin.operators for origin in named(runs, "f1")} == {("f1", "f3")}
    assert {origin.operators for origin in named(runs, "g1")} == {("g1",)}


def test_a_session_belongs_to_all_its_operators() -> None:
    _, runs = traced(in_a_session, native=True)
    (session,) = named(runs, "g1")
    assert session.operators == ("gs", "g1", "g3", "gc")
    assert session.stage == 4


def test_concurrent_groups_are_on_different_lanes() -> None:
    def side_by_side(graph: ComputationGraph) -> Schedule:
        del graph
        pair = Stage(Strategy.CONCURRENT, (("f1",), ("f3",)))
        return Schedule((Block(0, (*alone("fs"), pair, *alone("fc", "gs", "g1", "g3", "gc"))),))

    _, runs = traced(side_by_side, native=True)
    assert {origin.lane for origin in named(runs, "f1")} != {origin.lane for origin in named(runs, "f3")}


def test_stages_keep_their_numbers_if_one_is_empty() -> None:
    """Numbers are those of the schedule, whose stages the device may leave out."""

    def with_a_gap(graph: ComputationGraph) -> Schedule:
        return Schedule((Block(0, (Stage(Strategy.CONCURRENT, ()), *sequential(graph).stages)),))

    _, runs = traced(with_a_gap, native=True)
    assert {origin.stage for origin in named(runs, "fs")} == {1}
