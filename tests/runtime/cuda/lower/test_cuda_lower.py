"""Plans for streams are sound, and compute the same as onnxruntime, in every order that they allow.

The light models without branches are left out: they show nothing that VGG-16 does not, and take long.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from gpu_plans import Interpreter, expected_outputs, interpreted, relative_error
from lowering import on_lanes, random_schedule
from networks import zoo_model
from scripted import fire

from iosched.models import zoo
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import NAMES
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower import lowering as plan_module
from iosched.runtime.cuda.lower.lowered_model import LoweredModel, is_supported
from iosched.runtime.cuda.lower.lowering import Lowering, lower, lower_stage
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import ExecutionPlan, MemorySpace, PlanTask
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import PrecisionName
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

FP32, FP16 = Precision("fp32"), Precision("fp16")
BRANCHED = [name for name in NAMES if name not in ("vgg19", "bvlc_alexnet", "zfnet512")]
LARGE = ("densenet121", "resnet50", "inception_v2")
LARGE = {"nasnet_a", "vgg16"}


@lru_cache(maxsize=2)
def zoo_network(name: str, layout: Layout = Layout.NHWC) -> LoweredModel:
    return LoweredModel(zoo_model(name), FP32, layout)


@lru_cache(maxsize=1)
def light(name: str) -> tuple[Model, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A light model, its inputs, and the outputs of onnxruntime."""
    model = zoo_model(f"light_{name}")
    inputs = random_inputs(model.graph.inputs)
    return model, inputs, expected_outputs(model, inputs)


def networks() -> list[object]:
    return [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in zoo.names()]


@pytest.mark.slow
@pytest.mark.parametrize("name", networks())
def test_every_network_under_random_schedules(name: str) -> None:
    model = zoo_model(name)
    inputs = random_inputs(model.graph.inputs)
    expected = expected_outputs(model, inputs)
    drawn = random_schedule(model.graph, 7)
    schedules = [sequential(model.graph), greedy(model.graph), drawn, on_lanes(model.graph, drawn, 1)]
    plans = [(schedule, barriers) for schedule in schedules for barriers in (True, False)]
    run = [(7, Layout.NCHW), (5 if name in LARGE else 2, Layout.NHWC), (5 if name in LARGE else 6, Layout.NHWC)]
    for (number, (schedule, barriers)), layout in product(enumerate(plans), Layout):
        lowering = lower(zoo_network(name, layout), schedule, barriers=barriers)
        if (number, layout) in run:
            assert relative_error(interpreted(lowering, inputs, seed=number), expected) < 1e-4


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in BRANCHED]
)
def test_light_models(name: str) -> None:
    model, inputs, expected = light(name)
    network = LoweredModel(model, FP32)
    drawn = random_schedule(model.graph, 3)
    for schedule in (drawn, on_lanes(model.graph, drawn, 2)):
        assert relative_error(interpreted(lower(network, schedule), inputs, seed=5), expected) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("tf32", 1e-4), ("fp16", 2e-2)])
@pytest.mark.parametrize("name", BRANCHED)
def test_light_models_in_every_layout_and_precision(
    name: str, precision: PrecisionName, tolerance: float, layout: Layout
) -> None:
    """Random weights make ShuffleNet's activations too large for half precision: there it is lowered only."""
    model, inputs, expected = light(name)
    lowering = lower(LoweredModel(model, Precision(precision), layout), random_schedule(model.graph, 4))
    if (name, precision) != ("shufflenet", "fp16"):
        assert relative_error(interpreted(lowering, inputs, seed=6), expected) < tolerance


@pytest.mark.slow
@pytest.mark.parametrize(("name", "batch"), [("squeezenet", 3), ("randwire", 2)])
def test_batches_and_half_precision(name: str, batch: int) -> None:
    model = zoo_model(name, batch)
    inputs = random_inputs(model.graph.inputs)
    expected = expected_outputs(model, inputs)
    for precision, layout, tolerance in ((FP32, Layout.NCHW, 1e-4), (FP16, Layout.NHWC, 2e-2)):
        lowering = lower(LoweredModel(model, precision, layout), greedy(model.graph))
        assert relative_error(interpreted(lowering, inputs, seed=1), expected) < tolerance


@pytest.mark.parametrize(("layout", "batch", "copies"), [(Layout.NHWC, 1, 2), (Layout.NCHW, 1, 0), (Layout.NCHW, 3, 0)])
def test_operands_of_a_concat_and_parts_of_a_merged_convolution_cost_nothing(
    layout: Layout, batch: int, copies: int
) -> None:
    """As many kernels as there are convolutions, and in NHWC the copies of input and output."""
    model = fire(batch)
    merged = [
        Stage(Strategy.CONCURRENT, (("fs",),)), Stage(Strategy.MERGE, (("f1",), ("f3",))),
        Stage(Strategy.CONCURRENT, (("fc", "gs"),)), Stage(Strategy.MERGE, (("g1",), ("g3",))),
        Stage(Strategy.CONCURRENT, (("gc",),)),
    ]  # fmt: skip
    network = LoweredModel(model, FP32, layout)
    for schedule, convolutions in ((greedy(model.graph), 6), (Schedule((Block(0, tuple(merged)),)), 4)):
        lowering = lower(network, schedule)
        kinds = [type(lowering.kernels[task.kernel]).__name__ for lane in lowering.plan.lanes for task in lane]
        assert sorted(kinds) == ["Conv"] * convolutions + ["Copy"] * copies


def without_wait(plan: ExecutionPlan, lane: int, step: int, dropped: int) -> ExecutionPlan:
    task = plan.lanes[lane][step]
    changed = replace(task, waits=task.waits[:dropped] + task.waits[dropped + 1 :])
    tasks = (*plan.lanes[lane][:step], changed, *plan.lanes[lane][step + 1 :])
    return replace(plan, lanes=(*plan.lanes[:lane], tasks, *plan.lanes[lane + 1 :]))


@pytest.mark.parametrize("name", ["squeezenet", "inception_v3"])
def test_dropping_any_wait_of_a_plan_without_barriers_is_caught(name: str) -> None:
    plan = lower(zoo_network(name), greedy(zoo_model(name).graph), barriers=False).plan
    waits = [
        (lane, step, number)
        for lane, tasks in enumerate(plan.lanes)
        for step, task in enumerate(tasks)
        for number in range(len(task.waits))
    ]
    assert len(waits) > 10
    for lane, step, number in waits[:: max(len(waits) // 25, 1)]:
        with pytest.raises(HazardError):
            check(without_wait(plan, lane, step, number))


def test_operators_of_a_session_run_in_one_stream() -> None:
    model = zoo_model("squeezenet")
    (expand,) = (stage for stage in list(greedy(model.graph).stages)[3:4])
    assert len(expand.groups) == 2

    def streams(strategy: Strategy) -> int:
        lowering = lower_stage(zoo_network("squeezenet"), replace(expand, strategy=strategy))
        assert lowering is not None
        return len(lowering.plan.lanes)

    assert (streams(Strategy.CONCURRENT), streams(Strategy.SESSION)) == (2, 1)


def test_moving_a_buffer_onto_a_live_one_is_caught() -> None:
    plan = lower(zoo_network("squeezenet"), greedy(zoo_model("squeezenet").graph)).plan
    inner = [buffer for buffer in plan.buffers if buffer.space is MemorySpace.ARENA]
    caught = 0
    for moved in inner:
        for other in inner:
            if moved.name == other.name or moved.offset == other.offset:
                continue
            buffers = tuple(replace(b, offset=other.offset) if b.name == moved.name else b for b in plan.buffers)
            try:
                check(replace(plan, buffers=buffers, arena_nbytes=2 * plan.arena_nbytes))
            except HazardError:
                caught += 1
            break
    assert caught >= len(inner) // 2


def test_the_interpreter_detects_a_race() -> None:
    """With a wait dropped, some order reads values that are not written yet."""
    model = fire()
    inputs = random_inputs(model.graph.inputs)
    lowering = lower(LoweredModel(model, FP32), greedy(model.graph), barriers=False)
    expected = expected_outputs(model, inputs)
    lane, step = next(
        (lane, step) for lane, tasks in enumerate(lowering.plan.lanes) for step, task in enumerate(tasks) if task.waits
    )
    broken = without_wait(lowering.plan, lane, step, 0)
    assert all(relative_error(interpreted(lowering, inputs, seed), expected) < 1e-4 for seed in range(20))
    assert any(relative_error(interpreted(lowering, inputs, seed, broken), expected) > 1e-2 for seed in range(20))


def test_with_barriers_stages_wait_for_all_of_the_previous_stage() -> None:
    model = zoo_model("inception_v3")
    schedule = greedy(model.graph)

    def depth(lowering: Lowering) -> bool:
        """Whether a task of a later stage may start before one of an earlier stage is done."""
        from iosched.runtime.hazards import happens_before

        order = happens_before(lowering.plan.lanes)
        stages = np.array([task.stage for task in order.tasks])
        pairs = ((a, b) for a in range(len(stages)) for b in np.flatnonzero(stages > stages[a]).tolist())
        return any(not order.before(a, b) for a, b in pairs)

    assert not depth(lower(zoo_network("inception_v3"), schedule, barriers=True))
    assert depth(lower(zoo_network("inception_v3"), schedule, barriers=False))


def test_there_are_no_more_lanes_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = zoo_model("inception_v3")
    for lanes in (1, 2):
        monkeypatch.setattr(plan_module, "MAX_LANES", lanes)
        plan = lower(zoo_network("inception_v3"), greedy(model.graph)).plan
        assert len(plan.lanes) == lanes


def test_every_stage_can_be_lowered_and_run_alone() -> None:
    """Every stage in turn on ones, in the layout of the whole network."""
    model = zoo_model("squeezenet")
    network, schedule = zoo_network("squeezenet"), random_schedule(zoo_model("squeezenet").graph, 11)
    for stage in schedule.stages:
        lowering = lower_stage(network, stage)
        assert lowering is not None
        operators = {task.name for lane in lowering.plan.lanes for task in lane}
        computing = {name for name in stage.operators if model.graph.by_name[name].type != "Concat"}
        assert operators - {stage.operators[0]} <= computing
        given = {view.buffer: np.ones(_elements(view.shape), view.dtype) for view in lowering.plan.inputs}
        Interpreter(lowering).run(given, seed=1)


def _elements(shape: tuple[int, ...] | None) -> int:
    return int(np.prod(shape or ()))


def test_a_stage_that_cannot_merge_is_refused() -> None:
    model = fire()
    network = LoweredModel(model, FP32)
    assert lower_stage(network, Stage(Strategy.MERGE, (("f1",), ("f3",)))) is not None
    assert lower_stage(network, Stage(Strategy.MERGE, (("fs",), ("f3",)))) is None


def test_operators_without_a_kernel_run_in_onnxruntime_and_never_concurrently() -> None:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Sigmoid", ["x"], ["b"]),
        helper.make_node("Det", ["a"], ["d"]),
        helper.make_node("Tanh", ["b"], ["t"]),
        helper.make_node("Exp", ["d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 3, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "t")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = load_model(made.SerializeToString(), name="g")
    assert is_supported(model)
    lowering = lower(LoweredModel(model, FP32), greedy(model.graph), barriers=False)
    assert lowering.sessions == {"d": ("Det",)}
    inputs = random_inputs(model.graph.inputs)
    for seed in range(4):
        assert relative_error(interpreted(lowering, inputs, seed), expected_outputs(model, inputs)) < 1e-5
    alone = next(task for lane in lowering.plan.lanes for task in lane if task.name == "d")
    assert _ordered_with_all(lowering.plan, alone)


def _ordered_with_all(plan: ExecutionPlan, task: PlanTask) -> bool:
    from iosched.runtime.hazards import happens_before

    order = happens_before(plan.lanes)
    number = order.tasks.index(task)
    others = (other for other in range(len(order.tasks)) if other != number)
    return all(order.before(number, other) or order.before(other, number) for other in others)


def test_models_of_unknown_sizes_are_not_supported() -> None:
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = load_model(made.SerializeToString(), name="g")
    assert not is_supported(model)
    with pytest.raises(ValueError, match="unknown or zero size"):
        LoweredModel(model, FP32)
