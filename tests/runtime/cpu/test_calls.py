"""Waits make every read follow its writes, and are left out where another wait says as much."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from iosched.runtime.cpu.calls import Call, overlap, steps_of
from iosched.runtime.plan import Space, View, Wait
from iosched.runtime.waits import Step, find_waits, input_spaces


def seen(buffer: str, offset: int = 0, nbytes: int = 8) -> View:
    return View(buffer, "uint8", (nbytes,), offset, nbytes)


def call(lane: int, reads: list[View], writes: list[View]) -> Call:
    return Call(0, lane, 0, None, False, tuple((v.buffer, v) for v in reads), tuple((v.buffer, v) for v in writes))


def waits_of(calls: list[Call], lanes: int) -> list[tuple[Wait, ...]]:
    return find_waits(steps_of(calls), lanes)


def test_a_read_waits_for_its_writer_on_another_lane_alone() -> None:
    calls = [call(0, [], [seen("a")]), call(0, [seen("a")], [seen("b")]), call(1, [seen("a")], [seen("c")])]
    assert waits_of(calls, 2) == [(), (), (Wait(0, 1),)]


def test_bytes_beside_those_read_are_not_waited_for() -> None:
    calls = [call(0, [], [seen("a", 0)]), call(1, [], [seen("a", 8)]), call(1, [seen("a", 8)], [seen("b")])]
    assert waits_of(calls, 2) == [(), (), ()]
    calls[2] = call(1, [seen("a", 7, 2)], [seen("b")])
    assert waits_of(calls, 2) == [(), (), (Wait(0, 1),)]


def test_what_is_written_over_has_been_read_and_written_before() -> None:
    calls = [call(0, [], [seen("a")]), call(1, [seen("a")], [seen("b")]), call(0, [seen("a")], [seen("a")])]
    assert waits_of(calls, 2) == [(), (Wait(0, 1),), (Wait(1, 1),)]
    assert waits_of([calls[0], call(1, [], [seen("a", 4)])], 2) == [(), (Wait(0, 1),)]
    assert waits_of([calls[0], call(1, [], [seen("a", 8)])], 2) == [(), ()]


def test_what_is_added_to_is_given() -> None:
    adds = [call(0, [seen("a"), seen("b")], [seen("a")]), call(0, [seen("a")], [seen("c")])]
    assert input_spaces(steps_of(adds)) == {"a": Space.INOUT, "b": Space.INPUT}


def test_what_follows_from_an_earlier_wait_is_left_out() -> None:
    """Lane 2 waits for lane 1, which waited for lane 0."""
    calls = [
        call(0, [], [seen("a")]),
        call(1, [seen("a")], [seen("b")]),
        call(2, [seen("b")], [seen("c")]),
        call(2, [seen("a")], [seen("d")]),
    ]
    assert waits_of(calls, 3) == [(), (Wait(0, 1),), (Wait(1, 1),), ()]


def test_of_two_waits_of_one_step_the_implied_one_is_left_out() -> None:
    calls = [
        call(0, [], [seen("a")]),
        call(1, [seen("a")], [seen("b")]),
        call(2, [seen("a"), seen("b")], [seen("c")]),
    ]
    assert waits_of(calls, 3) == [(), (Wait(0, 1),), (Wait(1, 1),)]


def test_a_barrier_is_waited_for_whatever_it_touches() -> None:
    steps = [Step(0, (), ()), Step(1, (), ()), Step(2, (), (), stage=1), Step(0, (), (), stage=1)]
    assert find_waits(steps, 3, barriers=True) == [(), (), (Wait(0, 1), Wait(1, 1)), (Wait(1, 1),)]


def test_with_barriers_a_stage_waits_for_all_of_the_one_before_and_for_no_more() -> None:
    """Lane 1 is idle in the second stage; its call in the third waits for lane 0 all the same."""
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
