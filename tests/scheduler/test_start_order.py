"""Operators of lanes start after their inputs, and in the order of their lane."""

from __future__ import annotations

import random

import pytest
from by_definition import dags, graph_of
from hypothesis import given
from hypothesis import strategies as st
from lowering import random_lanes

from iosched.models.errors import InvalidScheduleError
from iosched.models.graph import ComputationGraph
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.start_order import start_order


@given(dags(), st.integers(0, 999))
def test_a_start_order_is_found_for_all_valid_lanes(graph: ComputationGraph, seed: int) -> None:
    draw = random.Random(seed)
    names = [name for name in graph.by_name if draw.random() < 0.8]
    stage = Stage(Strategy.LANES, random_lanes(graph, names, draw))
    found = start_order(graph, stage)
    assert sorted(found) == sorted(names)
    place = {name: number for number, name in enumerate(found)}
    for name in names:
        assert all(place[other] < place[name] for other in graph.predecessors[name] if other in place)
    for group in stage.groups:
        assert [name for name in found if name in group] == [*group]


@pytest.mark.parametrize(
    "groups", [(("1", "0"),), (("2", "0"), ("3", "1")), (("0", "3"), ("2", "1"))], ids=["one lane", "two", "later"]
)
def test_lanes_that_wait_for_each_other_are_refused(groups: tuple[tuple[str, ...], ...]) -> None:
    graph = graph_of(4, [(0, 1), (1, 2), (0, 3)])
    with pytest.raises(InvalidScheduleError, match="before an operator whose output it reads"):
        start_order(graph, Stage(Strategy.LANES, groups))
