"""Merged convolutions compute the same as separate ones."""

from __future__ import annotations

import onnx
import pytest
from lowering import check_schedules
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.graph import ComputationGraph
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.strategies import can_merge

node = helper.make_node


def expand(
    order: tuple[str, str],
    kernels: tuple[tuple[int, int], tuple[int, int]],
    channels: int,
    results: int | tuple[int, int],
    dilation: int = 1,
) -> onnx.ModelProto:
    """Two convolutions of one input, as a SqueezeNet fire module has them, and the Concat of both."""
    nodes, weights = [], {}
    counts = (results, results) if isinstance(results, int) else results
    for name, (height, width), count in zip(("a", "b"), kernels, counts, strict=True):
        weights[f"w{name}"], weights[f"b{name}"] = weight(count, channels, height, width), weight(count, seed=9)
        pads = [dilation * (height // 2), dilation * (width // 2)] * 2
        inputs = ["h", f"w{name}", f"b{name}"]
        nodes.append(node("Conv", inputs, [f"{name}c"], pads=pads, dilations=[dilation, dilation]))
        nodes.append(node("Relu", [f"{name}c"], [name]))
    nodes.append(node("Concat", list(order), ["y"], axis=1))
    weights["ws"] = weight(channels, 3, 1, 1)
    return proto_of([node("Conv", ["x", "ws"], ["h"]), *nodes], {"x": ("n", 3, 7, 7)}, ["y"], weights)


def merging(graph: ComputationGraph, *names: str) -> Schedule:
    """One stage each, but `names` merged."""
    done: set[str] = set()
    stages = []
    for operator in graph.operators:
        if operator.name in names and not done.intersection(names):
            stages.append(Stage(Strategy.MERGE, tuple((name,) for name in names)))
            done.update(names)
        elif operator.name not in names:
            stages.append(Stage(Strategy.CONCURRENT, ((operator.name,),)))
    return Schedule((Block(0, tuple(stages)),))


def merged_nodes(backend: CpuBackend, schedule: Schedule) -> list[str]:
    tasks = [task.name for lane in backend.lower(schedule).plan.lanes for task in lane]
    return [name for name in tasks if "merged:" in name]


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("order", [("a", "b"), ("b", "a"), ("a", "a")], ids=" ".join)
@pytest.mark.parametrize("stack", [("a", "b"), ("b", "a")], ids=" ".join)
@pytest.mark.parametrize("kernels", [((1, 1), (3, 3)), ((1, 3), (3, 1)), ((5, 5), (3, 3)), ((1, 1), (1, 1))], ids=str)
def test_two_convolutions_merged(
    batch: int, order: tuple[str, str], stack: tuple[str, str], kernels: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    if order == ("a", "a"):
        proto = expand(order, kernels, 16, 32)
        proto.graph.node.append(node("Exp", ["b"], ["z"]))
        proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    else:
        proto = expand(order, kernels, 16, 32)
    model = loaded(proto, batch_size=batch)
    with CpuBackend(model, lanes=2) as backend:
        schedule = merging(backend.graph, *stack)
        if order != ("a", "a"):  # there `b` leaves the blocked layout by a second node
            assert merged_nodes(backend, schedule), "nothing was merged"
        check_schedules(model, backend, iter([("merged", schedule)]))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("channels", "results"), [(3, 16), (3, 20), (8, 12), (20, 36), (17, 5), (64, 48)])
def test_any_numbers_of_channels(batch: int, channels: int, results: int) -> None:
    """Few enough for the plain layout, blocks filled and not: merged, or not merged but still correct."""
    model = loaded(expand(("a", "b"), ((1, 1), (3, 3)), channels, results), batch_size=batch)
    with CpuBackend(model, lanes=3) as backend:
        check_schedules(model, backend, iter([("merged", merging(backend.graph, "a", "b"))]))


@pytest.mark.parametrize("results", [(16, 32), (32, 16), (64, 16)])
def test_numbers_of_channels_that_differ(results: tuple[int, int]) -> None:
    model = loaded(expand(("a", "b"), ((1, 1), (3, 3)), 16, results), batch_size=1)
    with CpuBackend(model, lanes=2) as backend:
        schedule = merging(backend.graph, "a", "b")
        assert can_merge(backend.graph, ("a", "b"))
        assert merged_nodes(backend, schedule)
        check_schedules(model, backend, iter([("merged", schedule)]))


@pytest.mark.parametrize("dilation", [2, 3])
@pytest.mark.parametrize("kernels", [((1, 1), (3, 3)), ((5, 3), (3, 1))], ids=str)
def test_dilated_convolutions_merged(dilation: int, kernels: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """As a kernel grows by two, its reach grows by two dilations."""
    model = loaded(expand(("a", "b"), kernels, 16, 16, dilation), batch_size=1)
    with CpuBackend(model, lanes=2) as backend:
        schedule = merging(backend.graph, "a", "b")
        assert merged_nodes(backend, schedule)
        check_schedules(model, backend, iter([("merged", schedule)]))


def test_parts_that_are_outputs() -> None:
    proto = expand(("a", "b"), ((1, 1), (3, 3)), 16, 16)
    proto.graph.output.extend(helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in ("a", "b"))
    for batch in (1, 2):
        model = loaded(proto, batch_size=batch)
        with CpuBackend(model, lanes=2) as backend:
            check_schedules(model, backend, iter([("merged", merging(backend.graph, "a", "b"))]))


def test_in_order_the_merged_result_is_the_concat() -> None:
    """At batch 1 one kernel writes both parts straight into the Concat's buffer; swapped, they are copied."""
    calls = {}
    for order in (("a", "b"), ("b", "a")):
        with CpuBackend(loaded(expand(order, ((1, 1), (3, 3)), 16, 32), batch_size=1), lanes=1) as backend:
            plan = backend.lower(merging(backend.graph, "a", "b")).plan
            calls[order] = sum(len(lane) for lane in plan.lanes)
    assert calls["b", "a"] == calls["a", "b"] + 2


def test_a_sum_that_was_fused_in_is_not_merged() -> None:
    """onnxruntime folds the Add into one of the two, so they differ: the stage cannot be measured as a merge."""
    proto = expand(("a", "b"), ((1, 1), (3, 3)), 16, 16)
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([n for n in nodes if n.output[0] != "b"][:-1])
    proto.graph.node.extend([node("Add", ["bc", "h"], ["s"]), node("Relu", ["s"], ["b"]), nodes[-1]])
    model = loaded(proto, batch_size=1)
    with CpuBackend(model, lanes=2) as backend:
        unit_of = backend.coarse.units.unit_of
        owner = next(o.name for o in model.graph.operators if "bc" in (*o.nodes, *o.outputs))
        stage = Stage(Strategy.MERGE, ((unit_of["a"],), (unit_of[owner],)))
        assert backend.compile_stage(stage) is None
