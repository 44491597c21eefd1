"""The check refuses the same plans as a comparison of all pairs of accesses: random plans, and mutated real ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random

import pytest
from gpu_plans import random_schedule
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import random_schedule as random_units
from mutated_plans import MUTATIONS, mutated
from networks import zoo_model
from quadratic_hazards import check_all_pairs
from scripted import fire
from session_models import sliced

from iosched.models import zoo
from iosched.models.model import Model
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.kernel import Precision
from iosched.runtime.cuda.lower.network import Network
from iosched.runtime.cuda.lower.plan import lower, lower_stage
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.plan import Buffer, ExecutionPlan, Space, Task, View, Wait
from iosched.scheduler.baselines import greedy, sequential


def of_cpus(model: Model) -> Iterator[ExecutionPlan]:
    for lanes in (1, 2, 3):
        with CpuBackend(model, lanes=lanes) as backend:
            for schedule in (sequential(backend.graph), greedy(backend.graph), random_units(backend.graph, lanes)):
                yield backend.lower(schedule).plan


def of_gpus(model: Model) -> Iterator[ExecutionPlan]:
    network = Network(model, Precision("fp32"))
    schedules = [sequential(model.graph), greedy(model.graph), *(random_schedule(model.graph, seed) for seed in (1, 2))]
    for schedule in schedules:
        for barriers in (True, False):
            yield lower(network, schedule, barriers=barriers).plan
    for stage in schedules[-1].stages:
        alone = lower_stage(network, stage)
        assert alone is not None
        yield alone.plan


@cache
def small_plans() -> tuple[ExecutionPlan, ...]:
    squeezed = zoo_model("light_squeezenet")
    models = fire(), sliced()
    plans = (*of_cpus(squeezed), *(plan for model in models for plan in (*of_cpus(model), *of_gpus(model))))
    return tuple(plan for plan in plans if sum(map(len, plan.lanes)) > 2)


def verdicts(plan: ExecutionPlan) -> tuple[bool, bool]:
    """Whether the check passes the plan, and whether looking at all pairs does."""
    return passes(check, plan), passes(check_all_pairs, plan)


def passes(proof: object, plan: ExecutionPlan) -> bool:
    try:
        proof(plan)  # type: ignore[operator]
    except HazardError:
        return False
    return True


@pytest.mark.slow
def test_mutated_plans_with_conflicting_accesses_are_refused() -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=400)
    @given(st.integers(0, len(small_plans()) - 1), st.integers(0, 2**32))
    def agree(number: int, seed: int) -> None:
        plan = mutated(small_plans()[number], Random(seed))
        found, wanted = verdicts(plan)
        assert found == wanted
        seen[found] += 1

    agree()
    assert min(seen[True], seen[False]) > 50, "both verdicts are met often"


TABLES = (
    Buffer("x", Space.INPUT, 8),
    Buffer("p", Space.ARENA, 8, 0, pitch=4),
    Buffer("q", Space.ARENA, 4, 4),
    Buffer("r", Space.ARENA, 4, 8),
    Buffer("s", Space.INOUT, 6, pitch=3),
    Buffer("d", Space.DYNAMIC, 0),
    Buffer("y", Space.OUTPUT, 4, pitch=2),
)


@st.composite
def drawn_views(draw: st.DrawFn, names: str) -> View:
    buffer = draw(st.sampled_from([buffer for buffer in TABLES if buffer.name in names]))
    if buffer.space is Space.DYNAMIC:
        return View(buffer.name, "int64", None)
    width, rows = buffer.pitch or buffer.nbytes, buffer.nbytes // buffer.pitch if buffer.pitch else 1
    start = draw(st.sampled_from([0, 0, 0, 1, 2]).filter(lambda start: start < width))
    nbytes = draw(st.sampled_from([width - start, width - start, 1, 0])) * rows
    return View(buffer.name, "uint8", (nbytes,), start, nbytes)


@st.composite
def drawn_plans(draw: st.DrawFn) -> ExecutionPlan:
    """Plans on tables, in few bytes; a task waits for most of what comes before it in one order of all."""
    n_lanes = draw(st.integers(1, 3))
    lanes: list[list[Task]] = [[] for _ in range(n_lanes)]
    for number in range(draw(st.integers(1, 10))):
        lane = draw(st.integers(0, n_lanes - 1))
        others = [other for other in range(n_lanes) if other != lane and draw(st.sampled_from([True, True, False]))]
        waits = tuple(Wait(other, len(lanes[other])) for other in others)
        written = draw(st.sampled_from([1, 1, 1, 0, 2]))
        writes = tuple(draw(drawn_views("pqrsdy")) for _ in range(written))
        known = {view.buffer for tasks in lanes for task in tasks for view in task.writes} | {"x", "s"}
        reads = tuple(draw(drawn_views("".join(known))) for _ in range(draw(st.integers(0, 2))))
        added = draw(st.sampled_from([True, False, False]))
        in_place = tuple(view for view in writes if added and view.buffer in known)
        reads += tuple(view for view in in_place if draw(st.sampled_from([True, True, True, False])))
        lanes[lane].append(Task(f"k{number}", 0, reads, writes, waits, in_place=in_place))
    named = {view.buffer for tasks in lanes for task in tasks for view in (*task.reads, *task.writes)}
    buffers = tuple(buffer for buffer in TABLES if buffer.name in named or draw(st.sampled_from([True, *[False] * 9])))
    return ExecutionPlan(tuple(map(tuple, lanes)), buffers, 12)


@pytest.mark.slow
def test_random_plans_with_conflicting_accesses_are_refused() -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=600)
    @given(drawn_plans())
    def agree(plan: ExecutionPlan) -> None:
        found, wanted = verdicts(plan)
        assert found == wanted
        seen[found] += 1

    agree()
    assert min(seen[True], seen[False]) > 50, "both verdicts are met often"


@pytest.mark.parametrize("mutation", dict.fromkeys(MUTATIONS), ids=lambda mutation: mutation.__name__)
def test_every_mutation_is_refused_for_some_plan(mutation: object) -> None:
    draw = Random(0)
    assert any(not passes(check, mutation(draw.choice(small_plans()), draw)) for _ in range(40))  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.names())
def test_mutated_plans_of_the_networks(name: str) -> None:
    model = zoo_model(name)
    network, draw = Network(model, Precision("fp32")), Random(0)
    plans = [lower(network, schedule).plan for schedule in (greedy(model.graph), random_schedule(model.graph, 3))]
    with CpuBackend(model, lanes=2) as backend:
        plans += [backend.lower(schedule).plan for schedule in (greedy(backend.graph), random_units(backend.graph, 3))]
    for plan in plans:
        assert verdicts(plan) == (True, True)
        for _ in range(12):
            found, wanted = verdicts(mutated(plan, draw))
            assert found == wanted
