"""Unconnected parts are searched separately, equal ones once, and run in the best of three ways."""

from __future__ import annotations

from dataclasses import replace

import pytest
from by_definition import TableCost, dags, graph_of
from hypothesis import given
from hypothesis import strategies as st
from lane_costs import FixedLanes, KeptLanes, KeyedLanes, Lanes

from iosched.models.graph import ComputationGraph
from iosched.scheduler.components import components, search_components
from iosched.scheduler.cost import CostModel, CostQuestion
from iosched.scheduler.document import check_operators
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import SearchResult, search

TWO_CHAINS = graph_of(8, [(0, 4), (4, 6), (1, 5), (5, 7), (2, 3)])


def chains(count: int, length: int) -> ComputationGraph:
    """Equal chains of operators under `Lanes`, which has as many kinds as positions."""
    places = [(part * length, place) for part in range(count) for place in range(length - 1)]
    graph = graph_of(count * length, [(first + place, first + place + 1) for first, place in places])
    return replace(graph, outputs=tuple(str((part + 1) * length - 1) for part in range(count)))


def found_by(graph: ComputationGraph, cost: object, **settings: object) -> SearchResult:
    return search_components(graph, cost, find, **settings)  # type: ignore[arg-type]


def find(part: ComputationGraph, cost: CostModel) -> SearchResult:
    return search(part, cost, strategy="concurrent", pruning=Pruning(3, 8))


@given(dags(8))
def test_components_are_closed_under_edges_and_keep_the_order(graph: ComputationGraph) -> None:
    parts = components(graph)
    assert sorted(name for part in parts for name in part) == sorted(graph.by_name)
    for part in parts:
        beside = {other for name in part for other in (*graph.predecessors[name], *graph.successors[name])}
        assert beside <= set(part)
        assert list(part) == [operator.name for operator in graph.operators if operator.name in part]


def test_parts_are_found_in_order() -> None:
    assert components(TWO_CHAINS) == (("0", "4", "6"), ("1", "5", "7"), ("2", "3"))


@given(dags(8), st.integers(0, 10**6))
def test_the_schedule_is_the_faster_of_in_sequence_and_side_by_side(graph: ComputationGraph, seed: int) -> None:
    found = found_by(graph, TableCost(seed))
    check_operators(found.schedule, graph)
    parts = components(graph)
    if len(parts) == 1:
        assert found.schedule == search(graph, TableCost(seed), strategy="concurrent", pruning=Pruning(3, 8)).schedule
        return
    row_us = sum(found_by(_alone(graph, part), TableCost(seed)).schedule.predicted_us or 0.0 for part in parts)
    beside_us = TableCost(seed).latency_us(frozenset(graph.by_name))
    assert found.schedule.predicted_us == min(row_us, beside_us)


def _alone(graph: ComputationGraph, part: tuple[str, ...]) -> ComputationGraph:
    returned = tuple(name for name in graph.outputs if name in part)
    return replace(graph, outputs=returned, operators=tuple(graph.by_name[name] for name in part))


def test_equal_parts_are_searched_once() -> None:
    graph = chains(4, 5)
    cost = KeyedLanes(graph, kinds=5)
    searched: list[ComputationGraph] = []

    def noted(part: ComputationGraph, cost: CostModel) -> SearchResult:
        searched.append(part)
        return find(part, cost)

    found = search_components(graph, cost, noted, concurrent=False)
    assert [len(part.operators) for part in searched] == [5]
    check_operators(found.schedule, graph)
    assert found.measured == len(cost.asked)


def test_unlike_parts_run_side_by_side_where_that_is_faster() -> None:
    graph = graph_of(7, [(0, 1), (1, 2), (3, 4), (4, 5), (5, 6)])
    found = found_by(graph, KeyedLanes(graph))
    assert [stage.groups for stage in found.schedule.stages] == [(("0", "1", "2"), ("3", "4", "5", "6"))]
    assert found.proven is None


class InStep(KeyedLanes):
    """Whole parts side by side do not pay: they wait for each other."""

    def latency_us(self, stage: Stage) -> float:
        return super().latency_us(stage) * (1 if all(len(group) < 4 for group in stage.groups) else 9)


def test_equal_parts_run_in_step_where_that_is_faster() -> None:
    graph = chains(2, 4)
    found = found_by(graph, InStep(graph))
    assert all(len(stage.groups) == 2 for stage in found.schedule.stages)
    row = found_by(graph, InStep(graph), concurrent=False)
    assert (found.schedule.predicted_us or 0.0) < (row.schedule.predicted_us or 0.0)


def test_the_best_schedule_in_step_may_differ_from_that_of_a_part() -> None:
    """Alone, the two branches run side by side; with two parts on two lanes, one after the other."""
    one = [(0, 1), (0, 2), (1, 3), (2, 3)]
    graph = graph_of(8, [*one, *((a + 4, b + 4) for a, b in one)])
    graph = replace(graph, outputs=("3", "7"))
    cost = InStep(graph)
    found = found_by(graph, cost)
    best = min(_in_step_us(cost, stages) for stages in ((("0",), ("1",), ("2",), ("3",)), (("0",), ("1", "2"), ("3",))))
    assert (found.schedule.predicted_us or 0.0) <= best
    check_operators(found.schedule, graph)


def _in_step_us(cost: Lanes, stages: tuple[tuple[str, ...], ...]) -> float:
    beside = (tuple((name,) for own in stage for name in (own, str(int(own) + 4))) for stage in stages)
    return sum(cost.latency_us(Stage(Strategy.CONCURRENT, groups)) for groups in beside)


@pytest.mark.parametrize("how", [{"concurrent": False}, {"is_over": lambda: True}])
def test_parts_run_in_sequence_if_no_other_way_is_allowed(how: dict[str, object]) -> None:
    """Each block is then as optimal as in a separate part."""
    graph = chains(3, 4)
    found = found_by(graph, KeyedLanes(graph), **how)
    assert all(len(stage.groups) == 1 for stage in found.schedule.stages)
    assert found.proven == "blocks"
    assert found.gap == 0
    check_operators(found.schedule, graph)


def test_equal_parts_need_no_operator_keys() -> None:
    graph = chains(2, 3)
    cost = Lanes(graph, kinds=3)
    assert (
        found_by(graph, cost).schedule.predicted_us == found_by(graph, KeyedLanes(graph, kinds=3)).schedule.predicted_us
    )


def test_equal_parts_in_step_are_asked_ahead_alone_and_side_by_side() -> None:
    graph = chains(3, 4)

    class Kept(KeptLanes):
        def answer_us(self, question: CostQuestion) -> float:
            everything = set(question.stage.operators) == set(graph.by_name)  # a single question, after all others
            return self.fixed_us(question) if everything else super().answer_us(question)

    cost = Kept(graph)
    assert found_by(graph, cost) == found_by(graph, FixedLanes(graph))
    asked = {len(question.stage.groups) for question in cost.asked}
    assert {1, 3} <= asked
