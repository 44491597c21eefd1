"""Groups run on the lanes that a stage names for them, whichever these are, and compute the same."""

from __future__ import annotations

import random
from dataclasses import replace

import onnx
import pytest
from lowering import check_schedules, drawn
from networks import zoo_model
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.plan import ExecutionPlan
from iosched.scheduler.baselines import greedy
from iosched.scheduler.schedule import Block, Division, Schedule, Stage, Strategy


def divided_at_random(schedule: Schedule, lanes: int, seed: int) -> Schedule:
    """The schedule with random lanes for the groups of each of its stages; groups may share lanes, lanes may idle."""
    draw = random.Random(seed)

    def divided(stage: Stage) -> Stage:
        if stage.strategy is not Strategy.CONCURRENT:
            return stage
        chosen = (draw.sample(range(lanes), draw.randint(1, lanes)) for _ in stage.groups)
        return replace(stage, division=Division(lanes, tuple(tuple(sorted(own)) for own in chosen)))

    return Schedule(tuple(replace(block, stages=tuple(map(divided, block.stages))) for block in schedule.blocks))


node = helper.make_node


def three_branches() -> onnx.ModelProto:
    """Three convolutions of unequal size side by side, each big enough to be cut in four, and their concatenation."""
    nodes, weights = [], {}
    for name, size in (("a", 5), ("b", 3), ("c", 3)):
        weights[f"w{name}"] = weight(64, 32, size, size, seed=ord(name))
        nodes.append(node("Conv", ["x", f"w{name}"], [name], pads=[size // 2] * 4))
    nodes.append(node("Concat", ["a", "b", "c"], ["y"], axis=1))
    return proto_of(nodes, {"x": (1, 32, 20, 20)}, ["y"], weights)


def branches_on(division: Division | None) -> Schedule:
    first = Stage(Strategy.CONCURRENT, (("a",), ("b",), ("c",)), division=division)
    return Schedule((Block(0, (first, Stage(Strategy.CONCURRENT, (("y",),)))),))


def plan_on(division: Division | None, lanes: int) -> ExecutionPlan:
    with CpuBackend(loaded(three_branches()), lanes=lanes) as backend:
        return backend.lower(branches_on(division)).plan


def computing(plan: ExecutionPlan) -> list[int]:
    """How many calls of convolutions each lane makes in the first stage."""
    found = []
    for tasks in plan.lanes:
        calls = [part for task in tasks if task.stage == 0 for part in task.name.split("+")]
        found.append(len([part for part in calls if "Reorder" not in part]))
    return found


@pytest.mark.parametrize(
    ("groups", "calls"),
    [
        (((0,), (1,), (1,)), [1, 2, 0, 0]),
        (((0, 1), (2,), (3,)), [1, 1, 1, 1]),
        (((0, 1, 2), (3,), (3,)), [1, 1, 1, 2]),
        (((1, 3), (1, 3), (1, 3)), [0, 3, 0, 3]),
    ],
)
def test_groups_run_where_their_stage_says(groups: tuple[tuple[int, ...], ...], calls: list[int]) -> None:
    assert computing(plan_on(Division(4, groups), lanes=4)) == calls


def test_lanes_of_another_device_mean_nothing() -> None:
    """On two lanes or eight, the stage is divided as if it named no lanes."""
    division = Division(4, ((3,), (3,), (3,)))
    for lanes in (2, 8):
        assert plan_on(division, lanes) == plan_on(None, lanes)
    assert plan_on(division, 4) != plan_on(None, 4)


@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_whatever_lanes_groups_have_they_compute_the_same(lanes: int) -> None:
    """Every plan also passes the check of all its interleavings when it is made."""
    for model in (loaded(three_branches()), zoo_model("light_squeezenet")):
        with CpuBackend(model, lanes=lanes) as backend:
            plain = [("greedy", greedy(backend.graph)), *drawn(backend.graph, (0, 1))]
            divided = ((name, divided_at_random(each, lanes, seed)) for seed, (name, each) in enumerate(plain))
            check_schedules(model, backend, divided, seeds=(0,))
