"""Placed buffers never share bytes while both are in use, and the arena stays small."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.arena import ALIGNMENT_NBYTES, place
from iosched.runtime.hazards import HazardError, check
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait


def seen(name: str, nbytes: int, offset: int = 0) -> View:
    return View(name, "uint8", (nbytes,), offset, nbytes)


def chain(sizes: list[int]) -> tuple[tuple[tuple[PlanTask, ...], ...], tuple[Buffer, ...]]:
    """t0 -> t1 -> ... on one lane."""
    tasks = [PlanTask("t0", 0, (), (seen("t0", sizes[0]),))]
    for i in range(1, len(sizes)):
        tasks.append(PlanTask(f"t{i}", 0, (seen(f"t{i - 1}", sizes[i - 1]),), (seen(f"t{i}", sizes[i]),)))
    return (tuple(tasks),), tuple(Buffer(f"t{i}", MemorySpace.ARENA, size) for i, size in enumerate(sizes))


def test_a_chain_needs_two_buffers() -> None:
    lanes, buffers = chain([640] * 10)
    placed, nbytes = place(lanes, buffers)
    assert nbytes == 2 * 640
    assert {buffer.offset for buffer in placed} == {0, 640}


def test_memory_released_last_is_reused_first() -> None:
    # a and b are both free when d is placed; b was used last, a fits as well.
    lane = (
        PlanTask("a", 0, (), (seen("a", 64),)),
        PlanTask("b", 0, (seen("a", 64),), (seen("b", 64),)),
        PlanTask("c", 0, (seen("b", 64),), (seen("c", 64),)),
        PlanTask("e", 0, (seen("c", 64),), (seen("e", 64), seen("f", 64))),
        PlanTask("g", 0, (seen("e", 64),), (seen("g", 64),)),
    )
    placed, nbytes = place((lane,), tuple(Buffer(name, MemorySpace.ARENA, 64) for name in "abcefg"))
    offset = {buffer.name: buffer.offset for buffer in placed}
    assert offset["g"] == offset["c"], "c was read by the task before, a and b long ago"
    assert nbytes == 3 * 64


def test_other_spaces_and_the_order_of_buffers_are_unchanged() -> None:
    lane = (PlanTask("t", 0, (seen("x", 8),), (seen("a", 8), seen("y", 8))),)
    buffers = (Buffer("y", MemorySpace.OUTPUT, 8), Buffer("x", MemorySpace.INPUT, 8), Buffer("a", MemorySpace.ARENA, 8))
    assert place((lane,), buffers) == (buffers, 64)


def test_nothing_to_place() -> None:
    assert place((), ()) == ((), 0)
    assert place(((),), (Buffer("e", MemorySpace.ARENA, 0),)) == ((Buffer("e", MemorySpace.ARENA, 0),), 0)


def test_lanes_that_are_not_ordered_share_nothing() -> None:
    lanes = tuple((PlanTask(name, 0, (), (seen(name, 64),)),) for name in "abc")
    assert place(lanes, tuple(Buffer(name, MemorySpace.ARENA, 64) for name in "abc"))[1] == 3 * 64
    waiting = (lanes[0], (PlanTask("b", 0, (), (seen("b", 64),), (Wait(0, 1),)),))
    assert place(waiting, tuple(Buffer(name, MemorySpace.ARENA, 64) for name in "ab"))[1] == 64


def test_a_deadlock_is_refused() -> None:
    lanes = ((PlanTask("a", 0, (), (), (Wait(1, 1),)),), (PlanTask("b", 0, (), (), (Wait(0, 1),)),))
    with pytest.raises(HazardError, match="in a deadlock"):
        place(lanes, ())


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tuple[tuple[PlanTask, ...], ...], tuple[Buffer, ...]]:
    """Random dataflow on random lanes with every wait that it needs, and some values written in two halves."""
    n_lanes = draw(st.integers(1, 4))
    lanes: list[list[PlanTask]] = [[] for _ in range(n_lanes)]
    home: dict[str, list[tuple[int, int]]] = {}
    buffers: list[Buffer] = []
    for i in range(draw(st.integers(1, 14))):
        known = sorted(home)
        reads = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        size = draw(st.sampled_from([1, 64, 100, 640, 4096])) * 2
        buffers.append(Buffer(f"t{i}", MemorySpace.ARENA, size))
        home[f"t{i}"] = []
        for part in range(draw(st.integers(1, 2))):
            lane = draw(st.integers(0, n_lanes - 1))
            need: dict[int, int] = {}
            for other, step in (at for name in reads for at in home[name] if at[0] != lane):
                need[other] = max(need.get(other, 0), step)
            nbytes = {b.name: b.nbytes for b in buffers}
            waits = tuple(Wait(other, step) for other, step in sorted(need.items()))
            views = tuple(seen(name, nbytes[name]) for name in reads)
            lanes[lane].append(PlanTask(f"t{i}.{part}", 0, views, (seen(f"t{i}", size // 2, part * size // 2),), waits))
            home[f"t{i}"].append((lane, len(lanes[lane])))
        if len(home[f"t{i}"]) == 1:
            only = lanes[home[f"t{i}"][0][0]]
            only[-1] = PlanTask(only[-1].name, 0, only[-1].reads, (seen(f"t{i}", size),), only[-1].waits)
    return tuple(map(tuple, lanes)), tuple(buffers)


@given(graphs())
def test_every_placement_is_free_of_hazards(graph: tuple[tuple[tuple[PlanTask, ...], ...], tuple[Buffer, ...]]) -> None:
    lanes, buffers = graph
    placed, nbytes = place(lanes, buffers)
    check(ExecutionPlan(lanes, placed, nbytes))
    assert all(buffer.offset % ALIGNMENT_NBYTES == 0 for buffer in placed)
    assert nbytes <= sum(-(-buffer.nbytes // 64) * 64 for buffer in buffers)
    assert [buffer.name for buffer in placed] == [buffer.name for buffer in buffers]


@pytest.mark.slow
def test_a_large_plan_is_placed_in_a_small_arena() -> None:
    lanes, buffers = chain([64 * (1 + i % 7) for i in range(2500)])
    placed, nbytes = place(lanes, buffers)
    check(ExecutionPlan(lanes, placed, nbytes))
    assert nbytes <= 64 * 14
