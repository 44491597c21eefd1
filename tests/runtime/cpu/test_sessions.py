"""A session stage is one call of onnxruntime over all cores, for any operators."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lowering import check_schedules, with_sessions
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.kernels import Program
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

pytest.importorskip("onnxruntime", reason="needs pip install '.[cpu]'")

node = helper.make_node


def tower() -> onnx.ModelProto:
    """Two branches put together, cut in two again by a Split, and read from outside at each of these places."""
    nodes = [
        node("Conv", ["x", "wa"], ["a"], pads=[1] * 4),
        node("Conv", ["x", "wb"], ["b"], pads=[1] * 4),
        node("Concat", ["a", "b"], ["cat"], axis=1),
        node("Split", ["cat", "halves"], ["left", "right"], axis=1),
        node("Conv", ["left", "wa"], ["c"], pads=[1] * 4),
        node("Add", ["c", "right"], ["d"]),
        node("Flatten", ["d"], ["flat"]),
        node("Relu", ["b"], ["seen"]),
        node("Relu", ["flat"], ["y"]),
    ]
    weights = {"wa": weight(32, 32, 3, 3), "wb": weight(32, 32, 3, 3, seed=1), "halves": np.array([32, 32])}
    return proto_of(nodes, {"x": (1, 32, 12, 12)}, ["y", "seen"], weights)


def whole(backend: CpuBackend) -> Schedule:
    names = tuple(operator.name for operator in backend.graph.operators)
    return Schedule((Block(0, (Stage(Strategy.SESSION, (names,)),)),))


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_whole_model_is_one_call_over_all_cores(lanes: int) -> None:
    model = loaded(tower())
    with CpuBackend(model, lanes=lanes) as backend:
        lowering = backend.lower(whole(backend))
        assert [len(lane) for lane in lowering.plan.lanes] == [1] + [0] * (lanes - 1)
        (kernel,) = lowering.kernels
        assert isinstance(kernel, Program)
        assert kernel.cores == lanes
        assert lowering.plan.arena_nbytes == 0
        check_schedules(model, backend, iter([("whole", whole(backend))]))


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_any_stages_may_be_sessions(lanes: int, native: bool) -> None:
    model = loaded(tower())
    with CpuBackend(model, lanes=lanes, native=native) as backend:
        bases = sequential(backend.graph), greedy(backend.graph)
        made = [with_sessions(backend.graph, base, seed) for base in bases for seed in range(8)]
        assert any(stage.strategy is Strategy.SESSION for schedule in made for stage in schedule.stages)
        check_schedules(model, backend, ((f"{number}", schedule) for number, schedule in enumerate(made)))


def test_session_runs_exclusively() -> None:
    """Not even a task that shares no data with it runs at the same time."""
    read_by = {"a": "x", "b": "x", "c": "a", "d": "b"}
    nodes = [node("Conv", [source, f"w{name}"], [name], pads=[1] * 4) for name, source in read_by.items()]
    weights = {f"w{name}": weight(32, 32, 3, 3, seed=ord(name)) for name in read_by}
    model = loaded(proto_of(nodes, {"x": (1, 32, 12, 12)}, ["c", "d"], weights))
    with CpuBackend(model, lanes=2) as backend:
        ways = [
            (Strategy.CONCURRENT, (("a",), ("b",))),
            (Strategy.SESSION, (("c",),)),
            (Strategy.CONCURRENT, (("d",),)),
        ]
        schedule = Schedule((Block(0, tuple(Stage(*way) for way in ways)),))
        plan = backend.lower(schedule).plan
        check_schedules(model, backend, iter([("between", schedule)]))
    session = next(index for index, task in enumerate(plan.lanes[0]) if task.stage == 1)
    assert [wait.lane for wait in plan.lanes[0][session].waits] == [1]
    after = [task for task in plan.lanes[1] if task.stage == 2]
    assert after[0].waits[0].lane == 0
    assert after[0].waits[0].steps > session
    assert not [task for task in plan.lanes[1] if task.stage == 1]


def test_a_session_stage_can_be_timed_alone() -> None:
    with CpuBackend(loaded(tower())) as backend:
        names = tuple(operator.name for operator in backend.graph.operators)
        for stage in (Stage(Strategy.SESSION, (names,)), Stage(Strategy.SESSION, (names[:1],))):
            compiled = backend.compile_stage(stage)
            assert compiled is not None
            assert len(compiled.time(2, flush_nbytes=1 << 16)) == 2
            compiled.executor.close()


def test_the_weights_of_a_session_are_not_copied() -> None:
    model = loaded(tower())
    with CpuBackend(model) as backend:
        (kernel,) = backend.lower(whole(backend)).kernels
        assert isinstance(kernel, Program)
        assert kernel.weights
        for name, array in kernel.weights:
            assert array is backend.kernels.weights[name]
        compiled = backend.compile(whole(backend))
        assert compiled.run(random_inputs(model.graph.inputs))["y"].shape == (1, 32 * 12 * 12)
