"""The Pareto front and the ranks behind it, compared with their definitions."""

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
    """The definition: rank 0 holds the points that none dominates; rank 1 those once rank 0 is removed; and so on."""
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
def test_points_are_sorted_by_rank(points: list[Point]) -> None:
    order = best_first(points)
    assert sorted(order) == list(range(len(points)))
    found = [ranks(points)[place] for place in order]
    assert found == sorted(found)


def test_a_point_dominates_if_it_is_nowhere_worse_and_somewhere_better() -> None:
    assert dominates(Point((1, 2)), Point((1, 3)))
    assert not dominates(Point((1, 3)), Point((2, 2)))
    assert not dominates(Point((1, 2)), Point((1, 2)))


def test_a_smaller_constraint_violation_dominates() -> None:
    assert dominates(Point((9, 9)), Point((1, 1), violation=0.1))
    assert dominates(Point((9, 9), violation=0.1), Point((1, 1), violation=0.2))
    assert not dominates(Point((1, 1), violation=0.1), Point((9, 9), violation=0.1))


def test_crowding_is_infinite_at_the_ends_and_small_in_a_crowd() -> None:
    front = [Point((0.0, 10.0)), Point((1.0, 9.0)), Point((1.1, 8.9)), Point((10.0, 0.0))]
    apart = crowding(front)
    assert apart[0] == apart[3] == math.inf
    assert apart[1] < apart[2]
    assert best_first(front) == [0, 3, 2, 1]


def test_equal_points_are_all_on_the_front() -> None:
    assert ranks([Point((1.0, 1.0)), Point((1.0, 1.0)), Point((2.0, 2.0))]) == [0, 0, 1]
    assert best_first([]) == []


def test_an_objective_counts_by_its_range_and_not_by_its_unit() -> None:
    losses = [(0.0, 9.0), (1.0, 8.0), (5.0, 2.0), (9.0, 0.0)]
    apart, in_other_units = (
        crowding([Point((first, unit * second)) for first, second in losses]) for unit in (1.0, 1024.0)
    )
    assert apart == in_other_units
