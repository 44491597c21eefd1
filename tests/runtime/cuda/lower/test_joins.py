"""An empty node joins two stages exactly where that makes fewer edges, and orders the same tasks as waits would."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gpu_plans import expected_outputs, interpreted, relative_error
from hypothesis import given
from hypothesis import strategies as st
from lowering import random_schedule
from networks import zoo_model
from small_models import crossed

from iosched.runtime.cuda.kernel import JoinNode, Precision
from iosched.runtime.cuda.lower import lowering as lowering_module
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower
from iosched.runtime.hazards import HazardError, check, happens_before
from iosched.runtime.inputs import random_inputs
from iosched.runtime.plan import PlanTask
from iosched.scheduler.baselines import greedy
from iosched.scheduler.schedule import Schedule

FP32 = Precision("fp32")


def is_join(found: Lowering, task: PlanTask) -> bool:
    return isinstance(found.kernels[task.kernel], JoinNode)


def joins(found: Lowering) -> int:
    return sum(is_join(found, task) for task in found.plan.tasks)


def edges(found: Lowering) -> int:
    """Of the captured graph: a task follows the one before in its lane and those that it waits for, or a join alone."""
    lanes = found.plan.lanes

    def before(lane: int, step: int) -> list[PlanTask]:
        own = lanes[lane][step - 1 : step] if step else ()
        return [*own, *(lanes[wait.lane][wait.steps - 1] for wait in lanes[lane][step].waits)]

    behind = [before(lane, step) for lane, tasks in enumerate(lanes) for step in range(len(tasks))]
    return sum(1 if any(is_join(found, task) for task in tasks) else len(tasks) for tasks in behind)


def order(found: Lowering) -> set[tuple[PlanTask, PlanTask]]:
    """Pairs of kernels of which the first ends before the second starts."""
    known = happens_before(found.plan.lanes)
    pairs = [(n, task_of(task)) for n, task in enumerate(known.tasks) if not is_join(found, task)]
    return {(a, b) for m, a in pairs for n, b in pairs if m != n and known.before(m, n)}


def task_of(task: PlanTask) -> PlanTask:
    return PlanTask(task.name, 0, task.reads, task.writes, stage=task.stage)


def without_joins(network: LoweredModel, schedule: Schedule) -> Lowering:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lowering_module, "_with_joins", lambda placed: placed)
        return lower(network, schedule)


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_joins_make_fewer_edges_and_the_same_order(width: int, depth: int, seed: int, is_greedy: bool) -> None:
    model = crossed(width, depth)
    network = LoweredModel(model, FP32)
    schedule = greedy(model.graph) if is_greedy else random_schedule(model.graph, seed)
    found, before = lower(network, schedule), without_joins(network, schedule)
    assert order(found) == order(before)
    assert found.kernel_count == before.kernel_count == len(before.plan.tasks)
    assert edges(found) <= edges(before) - joins(found)
    inputs = random_inputs(model.graph.inputs)
    assert relative_error(interpreted(found, inputs, seed), expected_outputs(model, inputs)) < 1e-5


@pytest.mark.parametrize(("width", "number"), [(1, 0), (2, 0), (3, 2), (5, 2)])
def test_stages_of_two_lanes_need_no_join(width: int, number: int) -> None:
    model = crossed(width, 3)
    schedule = greedy(model.graph)
    assert joins(lower(LoweredModel(model, FP32), schedule)) == number
    assert joins(lower(LoweredModel(model, FP32), schedule, barriers=False)) == 0


def test_every_wait_of_and_for_a_join_is_proven_to_be_needed() -> None:
    model = crossed(4, 3)
    plan = lower(LoweredModel(model, FP32), greedy(model.graph)).plan
    caught = 0
    for lane, tasks in enumerate(plan.lanes):
        for step, task in enumerate(tasks):
            for number in range(len(task.waits)):
                changed = replace(task, waits=task.waits[:number] + task.waits[number + 1 :])
                broken = (*tasks[:step], changed, *tasks[step + 1 :])
                with pytest.raises(HazardError):
                    check(replace(plan, lanes=(*plan.lanes[:lane], broken, *plan.lanes[lane + 1 :])))
                caught += 1
    assert caught == 2 * 6 + 3  # two joins of four lanes, and the sum


def test_edges_of_inception() -> None:
    """Without joins as many as an H100 captured: `benchmarks/results/gpu-h100.json` has 271 for one task less."""
    model = zoo_model("inception_v3")
    network, schedule = LoweredModel(model, FP32), greedy(model.graph)
    found, before = lower(network, schedule), without_joins(network, schedule)
    assert (edges(before), edges(found), joins(found)) == (272, 208, 17)
