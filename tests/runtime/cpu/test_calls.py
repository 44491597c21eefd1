"""Calls, lanes and waits of stages: reads follow their writes, and implied waits are omitted."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lowering import check_schedules, drawn
from networks import zoo_model
from onnx import ModelProto, helper
from quantized import quantized
from small_models import loaded, proto_of, weight

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.calls import NodeCall, assign_lanes, in_caches, overlap, steps_of
from iosched.runtime.cpu.kernel_graph import node_work_us
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.plan import ExecutionPlan, MemorySpace, View, Wait
from iosched.runtime.waits import LaneStep, find_waits, input_spaces
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


def seen(buffer: str, offset: int = 0, nbytes: int = 8) -> View:
    return View(buffer, "uint8", (nbytes,), offset, nbytes)


def call(lane: int, reads: list[View], writes: list[View]) -> NodeCall:
    return NodeCall(0, lane, 0, None, False, tuple((v.buffer, v) for v in reads), tuple((v.buffer, v) for v in writes))


def waits_of(calls: list[NodeCall], lanes: int) -> list[tuple[Wait, ...]]:
    return find_waits(steps_of(calls), lanes)


def test_a_read_waits_only_for_a_writer_on_another_lane() -> None:
    calls = [call(0, [], [seen("a")]), call(0, [seen("a")], [seen("b")]), call(1, [seen("a")], [seen("c")])]
    assert waits_of(calls, 2) == [(), (), (Wait(0, 1),)]


def test_no_wait_for_adjacent_bytes() -> None:
    calls = [call(0, [], [seen("a", 0)]), call(1, [], [seen("a", 8)]), call(1, [seen("a", 8)], [seen("b")])]
    assert waits_of(calls, 2) == [(), (), ()]
    calls[2] = call(1, [seen("a", 7, 2)], [seen("b")])
    assert waits_of(calls, 2) == [(), (), (Wait(0, 1),)]


def test_overwriting_waits_for_readers_and_writers() -> None:
    calls = [call(0, [], [seen("a")]), call(1, [seen("a")], [seen("b")]), call(0, [seen("a")], [seen("a")])]
    assert waits_of(calls, 2) == [(), (Wait(0, 1),), (Wait(1, 1),)]
    assert waits_of([calls[0], call(1, [], [seen("a", 4)])], 2) == [(), (Wait(0, 1),)]
    assert waits_of([calls[0], call(1, [], [seen("a", 8)])], 2) == [(), ()]


def test_in_place_operand_is_an_input() -> None:
    adds = [call(0, [seen("a"), seen("b")], [seen("a")]), call(0, [seen("a")], [seen("c")])]
    assert input_spaces(steps_of(adds)) == {"a": MemorySpace.INOUT, "b": MemorySpace.INPUT}


def test_implied_waits_are_omitted() -> None:
    """Lane 2 waits for lane 1, which waited for lane 0."""
    calls = [
        call(0, [], [seen("a")]),
        call(1, [seen("a")], [seen("b")]),
        call(2, [seen("b")], [seen("c")]),
        call(2, [seen("a")], [seen("d")]),
    ]
    assert waits_of(calls, 3) == [(), (Wait(0, 1),), (Wait(1, 1),), ()]


def test_a_wait_implied_by_another_wait_of_the_same_step_is_omitted() -> None:
    calls = [
        call(0, [], [seen("a")]),
        call(1, [seen("a")], [seen("b")]),
        call(2, [seen("a"), seen("b")], [seen("c")]),
    ]
    assert waits_of(calls, 3) == [(), (Wait(0, 1),), (Wait(1, 1),)]


def test_barriers_order_stages_that_share_no_bytes() -> None:
    steps = [LaneStep(0, (), ()), LaneStep(1, (), ()), LaneStep(2, (), (), stage=1), LaneStep(0, (), (), stage=1)]
    assert find_waits(steps, 3, barriers=True) == [(), (), (Wait(0, 1), Wait(1, 1)), (Wait(1, 1),)]


def test_with_barriers_a_stage_waits_exactly_for_the_previous_stage() -> None:
    """Lane 1 is idle in the second stage; its call in the third still waits for lane 0."""
    stages, lanes = [0, 0, 1, 2, 2], [0, 1, 0, 0, 1]
    calls = [
        replace(call(lane, [], [seen(str(number))]), stage=stage)
        for number, (lane, stage) in enumerate(zip(lanes, stages, strict=True))
    ]
    assert find_waits(steps_of(calls), 2) == [()] * 5
    assert find_waits(steps_of(calls), 2, barriers=True) == [(), (), (Wait(1, 1),), (), (Wait(0, 2),)]


def test_views_of_unknown_size_are_the_whole_buffer() -> None:
    unknown = View("a", "float32", None)
    assert overlap(unknown, seen("a", 4))
    assert overlap(seen("a", 4), unknown)
    assert not overlap(unknown, seen("b"))


@given(st.integers(0, 10**6), st.integers(1, 4))
def test_random_calls_are_ordered_in_every_interleaving(seed: int, lanes: int) -> None:
    """Happens-before by definition: the closure of lane order and waits holds every (writer, reader) pair."""
    draw = random.Random(seed)
    calls = []
    for number in range(draw.randint(1, 12)):
        reads = [
            seen(f"t{draw.randrange(number)}", draw.choice([0, 4]), 4) for _ in range(min(number, draw.randint(0, 2)))
        ]
        calls.append(call(draw.randrange(lanes), reads, [seen(f"t{number}")]))
    waits = waits_of(calls, lanes)
    on_lane = [[i for i, c in enumerate(calls) if c.lane == lane] for lane in range(lanes)]
    before: list[set[int]] = []
    for position, each in enumerate(calls):
        own = on_lane[each.lane]
        direct = own[: own.index(position)]
        for wait in waits[position]:
            assert wait.lane != each.lane
            direct += on_lane[wait.lane][: wait.steps]
        before.append(set(direct).union(*(before[i] for i in direct if i < position)))
        assert all(i < position for i in direct)
        for _, view in each.reads:
            assert {i for i in range(position) if calls[i].writes[0][0] == view.buffer} <= before[position]


def longest_us(proto: ModelProto) -> float:
    kernels = build_kernel_graph(loaded(proto))
    return max(node_work_us(kernels, index) for index in range(len(kernels.nodes)))


def test_an_integer_convolution_costs_a_third_of_a_float_one() -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    proto = proto_of([node], {"x": (1, 64, 28, 28)}, ["y"], {"w": weight(64, 64, 3, 3)})
    floats, whole = longest_us(proto), longest_us(quantized(proto))
    assert 2.5 < floats / whole < 3.5


WORK = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=6)


@given(WORK, st.integers(1, 6))
def test_few_groups_share_all_lanes_and_many_get_one_each(work_us: list[float], lanes: int) -> None:
    found = assign_lanes(work_us, lanes)
    assert found == assign_lanes(list(work_us), lanes)
    assert len(found) == len(work_us)
    used = sorted(lane for group in found for lane in group)
    if len(work_us) < lanes:
        assert used == list(range(lanes))
    else:
        assert all(len(group) == 1 for group in found)
        assert set(used) == set(range(lanes))


@given(WORK, st.integers(1, 3))
def test_the_longest_lane_is_within_grahams_bound(work_us: list[float], lanes: int) -> None:
    if len(work_us) < lanes:
        return

    def makespan(chosen: tuple[int, ...]) -> float:
        return max(sum(w for w, lane in zip(work_us, chosen, strict=True) if lane == own) for own in range(lanes))

    best = min(makespan(chosen) for chosen in product(range(lanes), repeat=len(work_us)))
    found = makespan(tuple(group[0] for group in assign_lanes(work_us, lanes)))
    assert found <= best * (4 / 3 - 1 / (3 * lanes)) + 1e-9


def test_spare_lanes_go_to_the_group_with_most_work_per_lane() -> None:
    assert assign_lanes([10.0, 100.0], 4) == ((0,), (1, 2, 3))
    assert assign_lanes([100.0, 100.0], 4) == ((0, 1), (2, 3))
    assert assign_lanes([5.0], 3) == ((0, 1, 2),)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 5), st.integers(0, 4))
def test_groups_stay_within_a_cache_while_there_is_room(counts: list[int], in_a_cache: int, spare: int) -> None:
    lanes = sum(counts) + spare
    found = in_caches(counts, lanes, in_a_cache)
    assert [len(own) for own in found] == counts
    used = [lane for own in found for lane in own]
    assert len(set(used)) == len(used)
    assert set(used) <= set(range(lanes))
    if in_a_cache < 2:
        assert used == list(range(sum(counts)))
        return
    caches = [{lane // in_a_cache for lane in own} for own in found]
    if all(2 * count <= in_a_cache for count in counts):  # then a cache with less room than needed is half full
        assert sum(len(own) > 1 for own in caches) <= lanes // in_a_cache
    if all(count == in_a_cache for count in counts):
        assert all(len(own) == 1 for own in caches)


def test_lanes_of_groups_on_sixteen_cores_with_two_caches() -> None:
    assert in_caches([3, 6, 5], 16, 8) == ((13, 14, 15), (0, 1, 2, 3, 4, 5), (8, 9, 10, 11, 12))
    assert in_caches([4, 12], 16, 8) == ((12, 13, 14, 15), tuple(range(12)))
    assert assign_lanes([10.0, 10.0, 10.0], 16, 8) == ((0, 1, 2, 3, 4, 5), (8, 9, 10, 11, 12), (6, 7, 13, 14, 15))


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
    """Number of convolution calls of each lane in the first stage."""
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
def test_groups_run_on_the_lanes_of_their_division(groups: tuple[tuple[int, ...], ...], calls: list[int]) -> None:
    assert computing(plan_on(Division(4, groups), lanes=4)) == calls


def test_lanes_for_another_lane_count_are_ignored() -> None:
    """On two lanes or eight, the stage is divided as if it named no lanes."""
    division = Division(4, ((3,), (3,), (3,)))
    for lanes in (2, 8):
        assert plan_on(division, lanes) == plan_on(None, lanes)
    assert plan_on(division, 4) != plan_on(None, 4)


@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_any_lanes_of_groups_compute_the_same(lanes: int) -> None:
    """Every plan also passes the check of all its interleavings when it is made."""
    for model in (loaded(three_branches()), zoo_model("light_squeezenet")):
        with CpuBackend(model, lanes=lanes) as backend:
            plain = [("greedy", greedy(backend.graph)), *drawn(backend.graph, (0, 1))]
            divided = ((name, divided_at_random(each, lanes, seed)) for seed, (name, each) in enumerate(plain))
            check_schedules(model, backend, divided, seeds=(0,))
