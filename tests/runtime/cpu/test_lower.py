"""Lowered plans are free of hazards and of unnecessary tasks."""

from __future__ import annotations

import itertools
from dataclasses import replace

import onnx
import pytest
from lowering import check_everything, random_schedule
from networks import zoo_model
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.runtime.compare import compare
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.lower import KernelCache, lower
from iosched.runtime.cpu.native import NativeExecutor
from iosched.runtime.cpu.placement import place_tensors
from iosched.runtime.cpu.python_executor import PythonExecutor
from iosched.runtime.hazards import HazardError, check, happens_before
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import ExecutionPlan, MemorySpace
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import greedy, sequential

node = helper.make_node


def branches(swapped: bool = False) -> onnx.ModelProto:
    """Three branches of equal size side by side, put together, and a tail; every node big enough to be cut in two."""
    nodes, weights = [], {"v": weight(32, 96, 3, 3, seed=8)}
    for name in ("a", "b", "c"):
        weights[f"w{name}"], weights[f"u{name}"] = weight(32, 32, 3, 3, seed=ord(name)), weight(32, 32, 1, 1)
        nodes.append(node("Conv", ["x", f"w{name}"], [f"{name}1"], pads=[1] * 4))
        nodes.append(node("Conv", [f"{name}1", f"u{name}"], [name]))
    operands = ["b", "a", "c"] if swapped else ["a", "b", "c"]
    nodes += [node("Concat", operands, ["cat"], axis=1), node("Conv", ["cat", "v"], ["y"], pads=[1] * 4)]
    return proto_of(nodes, {"x": (1, 32, 20, 20)}, ["y"], weights)


def plan_of(backend: CpuBackend, kind: str) -> ExecutionPlan:
    schedule = {"sequential": sequential, "greedy": greedy}.get(kind, lambda graph: random_schedule(graph, 3))
    return backend.lower(schedule(backend.graph)).plan


@pytest.mark.parametrize("kind", ["sequential", "greedy", "random"])
@pytest.mark.parametrize("lanes", [2, 3])
def test_every_wait_is_needed(kind: str, lanes: int) -> None:
    """Without any single one of its waits the plan is refused."""
    with CpuBackend(loaded(branches()), lanes=lanes) as backend:
        plan = plan_of(backend, kind)
    dropped = 0
    for number, lane in enumerate(plan.lanes):
        for step, task in enumerate(lane):
            for wait in task.waits:
                fewer = tuple(other for other in task.waits if other != wait)
                tasks = (*lane[:step], replace(task, waits=fewer), *lane[step + 1 :])
                with pytest.raises(HazardError):
                    check(replace(plan, lanes=(*plan.lanes[:number], tasks, *plan.lanes[number + 1 :])))
                dropped += 1
    assert dropped >= 2


@pytest.mark.parametrize("kind", ["sequential", "greedy", "random"])
def test_with_barriers_a_stage_begins_after_the_previous_one(kind: str) -> None:
    model = loaded(branches())
    inputs = random_inputs(model.graph.inputs)
    schedule = {"sequential": sequential, "greedy": greedy}.get(kind, lambda graph: random_schedule(graph, 5))
    with CpuBackend(model, lanes=2) as backend:
        with Reference(model) as reference:
            expected = reference.run(inputs)
        chosen = schedule(backend.graph)
        assert not is_in_stage_order(backend.lower(chosen).plan)
        assert is_in_stage_order(backend.lower(chosen, barriers=True).plan)
        compiled = backend.compile(chosen, barriers=True)
        check(compiled.lowering.plan)
        assert compare(compiled.run(inputs), expected).passed


def is_in_stage_order(plan: ExecutionPlan) -> bool:
    """Whether every task comes after all tasks of the stages before its own."""
    order = happens_before(plan.lanes)
    pairs = itertools.product(range(len(order.tasks)), repeat=2)
    return all(order.before(a, b) for a, b in pairs if order.tasks[a].stage < order.tasks[b].stage)


def test_moving_a_buffer_onto_a_live_one_is_refused() -> None:
    with CpuBackend(loaded(branches()), lanes=1) as backend:
        plan = plan_of(backend, "greedy")
    arena = [buffer for buffer in plan.buffers if buffer.space is MemorySpace.ARENA]
    tasks = plan.lanes[0]
    live = next(
        (read.buffer, write.buffer)
        for task in tasks for read in task.reads for write in task.writes
        if {read.buffer, write.buffer} <= {buffer.name for buffer in arena} and read.buffer != write.buffer
    )  # fmt: skip
    offset = next(buffer.offset for buffer in arena if buffer.name == live[0])
    moved = tuple(replace(b, offset=offset) if b.name == live[1] else b for b in plan.buffers)
    nbytes = max(b.offset + b.nbytes for b in moved if b.space is MemorySpace.ARENA)
    with pytest.raises(HazardError):
        check(replace(plan, buffers=moved, arena_nbytes=max(nbytes, plan.arena_nbytes)))


def swap_operands(kernels: KernelGraph) -> KernelGraph:
    """The same graph with the first two operands of its Concat exchanged."""
    nodes = []
    for each in kernels.nodes:
        changed = onnx.NodeProto()
        changed.CopyFrom(each)
        if each.op_type == "Concat":
            changed.input[:2] = [each.input[1], each.input[0]]
        nodes.append(changed)
    return replace(kernels, nodes=tuple(nodes))


def test_exchanging_two_operands_of_equal_size_changes_the_outputs() -> None:
    model = loaded(branches())
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    with CpuBackend(model, lanes=2) as backend:
        numbered = [[list(backend.coarse.nodes[o.name])] for o in backend.graph.operators]
        results = []
        for kernels in (backend.kernels, swap_operands(backend.kernels)):
            # The plan is sound either way: only the outputs differ.
            lowering = lower(kernels, place_tensors(kernels), numbered, 2, KernelCache())
            kind = NativeExecutor if available() else PythonExecutor
            executor = kind(lowering.checked, lowering.kernels)
            results.append(compare(executor.run(inputs), expected).passed)
            executor.close()
    assert results == [True, False]
    with Reference(loaded(branches(swapped=True))) as other:
        assert not compare(other.run(inputs), expected).passed


def test_operators_of_one_group_share_a_session() -> None:
    """Neighbours on one lane in one stage become one task; stages stay separate so that they can be told apart."""
    model = loaded(branches())
    with CpuBackend(model, lanes=1, invokes=False) as backend:
        apart = plan_of(backend, "sequential").lanes[0]
        together = plan_of(backend, "greedy").lanes[0]
        assert len(together) < len(apart)
        assert [task.stage for task in apart] == sorted(task.stage for task in apart)


def test_a_call_that_reads_a_buffer_partly_written_by_its_session_is_a_separate_task() -> None:
    """Inside a session it would see old bytes of the Concat."""
    nodes = [
        node("Exp", ["x"], ["a"]), node("Sin", ["x"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=1), node("Cos", ["c"], ["y"]),
    ]  # fmt: skip
    model = loaded(proto_of(nodes, {"x": (1, 4, 3, 3)}, ["y"]))
    with CpuBackend(model, lanes=1) as backend:
        kernels, placement = backend.kernels, backend._placement
        plan = lower(kernels, placement, [[list(range(len(kernels.nodes)))]], 1, KernelCache()).plan
    names = [task.name for task in plan.lanes[0]]
    assert len(names) == 2


def test_arena_is_shared_by_tensors_that_do_not_live_together() -> None:
    with CpuBackend(zoo_model("light_squeezenet"), lanes=2) as backend:
        plan = plan_of(backend, "sequential")
    total = sum(buffer.nbytes for buffer in plan.buffers if buffer.space is MemorySpace.ARENA)
    assert plan.arena_nbytes < total / 2


def test_lanes_that_wait_only_at_the_end_reuse_the_memory_of_their_images() -> None:
    with CpuBackend(zoo_model("light_squeezenet", batch_size=4), lanes=4) as backend:
        plan = plan_of(backend, "sequential")
    assert not [task for task in plan.tasks if task.waits and task != plan.lanes[0][-1]]
    total = sum(buffer.nbytes for buffer in plan.buffers if buffer.space is MemorySpace.ARENA)
    assert plan.arena_nbytes < total / 2


@pytest.mark.slow
def test_lowering_is_deterministic() -> None:
    model = zoo_model("light_shufflenet")
    with CpuBackend(model, lanes=2) as one, CpuBackend(model, lanes=2) as other:
        for kind in ("sequential", "greedy", "random"):
            first, second = plan_of(one, kind), plan_of(other, kind)
            assert first == plan_of(one, kind)
            # onnxruntime numbers what it inserts in another order each time, so names differ; nothing else does.
            assert [len(lane) for lane in first.lanes] == [len(lane) for lane in second.lanes]
            assert first.arena_nbytes == second.arena_nbytes


@pytest.mark.slow
def test_branches_on_many_lanes() -> None:
    check_everything(loaded(branches()), lanes=(1, 2, 3, 4), seeds=range(4))
