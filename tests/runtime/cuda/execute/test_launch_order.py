"""Launches by demand: an order that lanes and waits allow, in which kinds alternate and small tasks come first."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from host_cuda import needs_compiler
from host_driver import HostChoice, HostDriver
from hypothesis import given
from hypothesis import strategies as st
from lowering import random_schedule
from networks import zoo_model
from scripted import fire

from iosched.runtime.cuda.execute.executor import CudaExecutor, segments
from iosched.runtime.cuda.execute.launch_order import order_by_demand
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower
from iosched.runtime.hazards import happens_before
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy


@cache
def network(name: str) -> LoweredModel:
    return LoweredModel(zoo_model(name), Precision("fp32"))


@given(st.sampled_from(["squeezenet", "googlenet"]), st.integers(0, 1000), st.booleans())
def test_launches_follow_the_plan_and_alternate_kinds_where_possible(name: str, seed: int, barriers: bool) -> None:
    found = lower(network(name), random_schedule(zoo_model(name).graph, seed), barriers=barriers)
    order, launched = happens_before(found.plan.lanes), order_by_demand(found)
    numbers = [number for number, _ in sorted(enumerate(pairs_of(found)), key=lambda each: launched.index(each[1]))]
    assert sorted(launched) == pairs_of(found)
    last = False
    for position, number in enumerate(numbers):
        left = numbers[position:]
        ready = [each for each in left if not any(order.before(other, each) for other in left if other != each)]
        assert number in ready
        ranks = {each: (is_cudnn(found, each) == last, written(found, each)) for each in ready}
        assert ranks[number] == min(ranks.values())
        last = is_cudnn(found, number)


def pairs_of(found: Lowering) -> list[tuple[int, int]]:
    return [(lane, step) for lane, tasks in enumerate(found.plan.lanes) for step in range(len(tasks))]


def is_cudnn(found: Lowering, number: int) -> bool:
    return isinstance(found.kernels[found.plan.tasks[number].kernel], CudnnKernel)


def written(found: Lowering, number: int) -> int:
    return sum(view.nbytes for view in found.plan.tasks[number].writes)


def test_launches_are_reordered_only_on_request() -> None:
    plain = lower(network("googlenet"), greedy(zoo_model("googlenet").graph))
    (one,), (other,) = segments(plain), segments(replace(plain, by_demand=True))
    assert list(other.tasks) == order_by_demand(plain)
    assert one.tasks != other.tasks
    assert sorted(one.tasks) == sorted(other.tasks)


@needs_compiler
@pytest.mark.parametrize("seed", range(4))
def test_reordered_launches_give_the_same_outputs(seed: int) -> None:
    model, outputs = fire(batch=2), []
    inputs = random_inputs(model.graph.inputs)
    schedule = greedy(model.graph) if seed == 0 else random_schedule(model.graph, seed)
    for by_demand in (False, True):
        driver = HostDriver(seed)
        lowering = replace(lower(LoweredModel(model, Precision("fp32")), schedule), by_demand=by_demand)
        executor = CudaExecutor(lowering, driver, HostChoice(driver))
        executor.poison()
        given = {view.buffer: inputs[view.buffer.removesuffix("@caller")] for view in executor.inputs}
        outputs.append(executor.run(given))
    for name, array in outputs[0].items():
        np.testing.assert_array_equal(outputs[1][name], array)
