"""Likely divisions hold the best of all that give bundles of groups lanes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iosched.profiler.devices.cpu.divisions import (
    LEAST_GAIN,
    MOST_OTHERS,
    GroupTime,
    Lanes,
    likely_divisions,
    makespan_us,
)
from iosched.runtime.cpu.calls import assign_lanes
from iosched.scheduler.latencies import makespans

WORK = st.tuples(st.integers(0, 20), st.integers(0, 80)).map(lambda pair: GroupTime(*map(float, pair)))


def guessed(times: list[GroupTime], lanes: int) -> Lanes:
    return assign_lanes([time.on(1) for time in times], lanes)


def every_division(count: int, lanes: int) -> Iterator[Lanes]:
    """All ways to give each of `count` groups a range of lanes, where two ranges are equal or have no lane in common,
    and not all are equal; a single lane, where there are as many groups as lanes or more."""
    widest = 1 if count >= lanes else lanes
    ranges = [(*range(start, start + size),) for size in range(1, widest + 1) for start in range(lanes - size + 1)]
    for groups in product(ranges, repeat=count):
        different = set(groups)
        apart = sum(map(len, different)) == len({lane for own in different for lane in own})
        if apart and len(different) > 1:
            yield groups


@given(st.lists(WORK, min_size=2, max_size=4), st.integers(2, 4))
def test_no_division_is_better_than_the_best_of_those_measured(times: list[GroupTime], lanes: int) -> None:
    rule = guessed(times, lanes)
    found = likely_divisions(times, lanes, rule)
    least = min(makespan_us(times, groups) for groups in every_division(len(times), lanes))
    if found:
        assert found[0][1] * makespan_us(times, rule) <= least + 1e-9
    else:
        assert makespan_us(times, rule) * (1 - LEAST_GAIN) <= least + 1e-9


@given(st.lists(WORK, min_size=1, max_size=9), st.integers(1, 16))
def test_few_are_measured_and_none_that_looks_slower(times: list[GroupTime], lanes: int) -> None:
    rule = guessed(times, lanes)
    found = likely_divisions(times, lanes, rule)
    assert found == likely_divisions(list(times), lanes, rule)
    assert len(found) <= MOST_OTHERS
    assert [ratio for _, ratio in found] == sorted(ratio for _, ratio in found)
    for division, ratio in found:
        assert ratio <= 1 - LEAST_GAIN
        assert makespan_us(times, division.groups) == pytest.approx(ratio * makespan_us(times, rule))
        assert (division.lanes, len(division.groups)) == (lanes, len(times))
        for own in division.groups:
            assert own == tuple(range(own[0], own[-1] + 1))
            assert own[-1] < lanes


@given(st.integers(2, 4).flatmap(lambda n: st.tuples(st.just(n), st.lists(WORK, min_size=n, max_size=8))))
def test_the_bound_of_many_groups_holds_for_all_that_is_measured(case: tuple[int, list[GroupTime]]) -> None:
    lanes, times = case
    bound = float(makespans(np.array([[time.on(1) for time in times]]), lanes)[0])
    for division, _ in likely_divisions(times, lanes, guessed(times, lanes)):
        assert makespan_us(times, division.groups) >= bound - 1e-9


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
def test_where_there_is_no_choice_nothing_more_is_measured(lanes: int) -> None:
    """One group has all lanes; equal ones share them evenly; of two on two lanes, each has one."""
    one, other = GroupTime(1.0, 90.0), GroupTime(2.0, 50.0)
    assert likely_divisions([one], lanes, guessed([one], lanes)) == ()
    assert likely_divisions([one] * lanes, lanes, guessed([one] * lanes, lanes)) == ()
    assert likely_divisions([one, other], 2, guessed([one, other], 2)) == ()
    assert likely_divisions([], lanes, ()) == ()


def test_two_small_groups_share_a_lane_beside_a_large_one() -> None:
    times = [GroupTime(0, 90.0), GroupTime(0, 10.0), GroupTime(0, 12.0)]
    found = likely_divisions(times, 4, ((0, 1), (2,), (3,)))
    assert found[0][0].groups == ((0, 1, 2), (3,), (3,))
    assert found[0][1] == pytest.approx(30 / 45)


def test_a_wrong_guess_is_found_out() -> None:
    """The guess took the second group for the larger one."""
    times = [GroupTime(0, 90.0), GroupTime(0, 30.0)]
    assert likely_divisions(times, 4, ((0,), (1, 2, 3)))[0][0].groups == ((0, 1, 2), (3,))


def test_lanes_that_make_a_group_slower_are_left_idle() -> None:
    times = [GroupTime(20.0, -5.0), GroupTime(5.0, 5.0)]
    division, _ = likely_divisions(times, 8, ((0, 1, 2, 3), (4, 5, 6, 7)))[0]
    assert division.groups[0] == (0,)


@given(st.floats(1, 100), st.floats(1, 100), st.integers(2, 16))
def test_what_a_group_takes_goes_through_both_latencies(one_us: float, all_us: float, lanes: int) -> None:
    time = GroupTime.between(one_us, all_us, lanes)
    assert time.on(1) == pytest.approx(one_us)
    assert time.on(lanes) == pytest.approx(all_us)
    assert (time + time).on(lanes) == pytest.approx(2 * all_us)
