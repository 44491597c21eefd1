"""The front and the ranks behind it, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from iosched.jobs.exploring.pareto_front import Point, best_first, crowding, dominates, ranks

POINTS = st.integers(1, 3).flatmap(
    lambda count: st.lists(
        st.builds(
            Point,
            st.tuples(*[st.integers(0, 4).map(float)] * count),
            st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        ),
        max_size=12,
    )
)


def _by_peeling(points: Sequence[Point]) -> list[int]:
    """The definition: rank 0 has what nothing dominates; rank 1 what nothing does once rank 0 is gone; and so on."""
    found = [-1] * len(points)
    rank = 0
    while -1 in found:
        left = [place for place, known in enumerate(found) if known == -1]
        free = [a for a in left if not any(dominates(points[b], points[a]) for b in left)]
        for place in free:
            found[place] = rank
        rank += 1
    return found


@given(POINTS)
def test_ranks_are_those_of_fronts_taken_off_one_after_another(points: list[Point]) -> None:
    assert ranks(points) == _by_peeling(points)


@given(POINTS)
def test_the_best_come_first_and_each_once(points: list[Point]) -> None:
    order = best_first(points)
    assert sorted(order) == list(range(len(points)))
    found = [ranks(points)[place] for place in order]
    assert found == sorted(found)


def test_of_two_one_dominates_that_is_nowhere_worse_and_somewhere_better() -> None:
    assert dominates(Point((1, 2)), Point((1, 3)))
    assert not dominates(Point((1, 3)), Point((2, 2)))
    assert not dominates(Point((1, 2)), Point((1, 2)))


def test_what_meets_the_constraints_is_better_than_what_does_not() -> None:
    assert dominates(Point((9, 9)), Point((1, 1), violation=0.1))
    assert dominates(Point((9, 9), violation=0.1), Point((1, 1), violation=0.2))
    assert not dominates(Point((1, 1), violation=0.1), Point((9, 9), violation=0.1))


def test_the_ends_of_a_front_are_the_farthest_apart_and_a_crowd_is_near() -> None:
    front = [Point((0.0, 10.0)), Point((1.0, 9.0)), Point((1.1, 8.9)), Point((10.0, 0.0))]
    apart = crowding(front)
    assert apart[0] == apart[3] == math.inf
    assert apart[1] < apart[2]
    assert best_first(front) == [0, 3, 2, 1]


def test_several_points_at_one_place_are_all_of_the_front() -> None:
    assert ranks([Point((1.0, 1.0)), Point((1.0, 1.0)), Point((2.0, 2.0))]) == [0, 0, 1]
    assert best_first([]) == []


def test_an_objective_counts_by_its_range_and_not_by_its_unit() -> None:
    losses = [(0.0, 9.0), (1.0, 8.0), (5.0, 2.0), (9.0, 0.0)]
    apart, in_other_units = (
        crowding([Point((first, unit * second)) for first, second in losses]) for unit in (1.0, 1024.0)
    )
    assert apart == in_other_units
