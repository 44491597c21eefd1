"""Bounds of stages: no placement of groups on lanes undercuts them, and with two lanes one attains them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from by_definition import dags, groups_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.latencies import concurrent_bounds, makespans
from iosched.scheduler.pruning import NO_PRUNING


def best_placement(groups: list[int], lanes: int) -> float:
    """The least makespan over all placements of groups on lanes."""
    return min(
        max(sum(us for us, lane in zip(groups, chosen, strict=True) if lane == number) for number in range(lanes))
        for chosen in product(range(lanes), repeat=len(groups))
    )


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_two_lanes_are_filled_in_the_best_way(groups: list[int]) -> None:
    assert makespans(np.array([groups], dtype=float), 2) == pytest.approx([best_placement(groups, 2)])


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.sampled_from([1, 3, 4]))
def test_no_placement_on_other_lanes_is_below_the_bound(groups: list[int], lanes: int) -> None:
    bound = float(makespans(np.array([groups], dtype=float), lanes)[0])

    assert max(sum(groups) / lanes, max(groups)) - 1e-9 <= bound <= best_placement(groups, lanes) + 1e-9


def test_two_long_groups_must_share_one_of_three_lanes() -> None:
    assert makespans(np.array([[10.0, 10.0, 10.0, 10.0]]), 3) == pytest.approx([20.0])


@given(dags(6), st.integers(1, 3), st.data())
def test_a_bound_is_the_slowest_group_or_the_busiest_lane(
    graph: ComputationGraph, lanes: int, data: st.DataObject
) -> None:
    names = [operator.name for operator in graph.operators]
    work = [float(data.draw(st.integers(1, 30))) for _ in names]
    alone = [us / lanes for us in work]
    lattice = lattices.build(lattices.relation(graph, names), NO_PRUNING)
    rounds = list(lattices.components(lattice.stages, lattice.order))
    found = concurrent_bounds(lattice.stages, rounds, alone, work, lanes)

    for mask, bound in zip(lattice.stages.tolist(), found.tolist(), strict=True):
        groups = groups_of(graph, frozenset(names[index] for index in lattices.bits(mask)))
        loads = [round(sum(work[names.index(name)] for name in group)) for group in groups]
        best = best_placement(loads, lanes) if len(groups) >= lanes else max(loads) / lanes
        assert bound <= max(best, sum(loads) / lanes) + 1e-9
        assert bound == pytest.approx(max(best, sum(loads) / lanes)) or lanes > 2
