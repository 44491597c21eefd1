"""Regions of shared operators and of separate ones alternate; models run side by side in the latter."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from by_definition import TableCost, dags, graph_of
from hypothesis import given
from hypothesis import strategies as st
from lane_costs import KeyedLanes

from iosched.models.graph import ComputationGraph
from iosched.scheduler.components import owner_parts, packed_regions, regions, search_owner_parts, search_regions
from iosched.scheduler.cost import CostModel
from iosched.scheduler.document import check_operators
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.search import SearchResult, search


def find(part: ComputationGraph, cost: CostModel) -> SearchResult:
    return search(part, cost, strategy="concurrent", pruning=Pruning(3, 8))


@given(dags(9), st.sets(st.integers(0, 8).map(str)), st.integers(0, 10**6))
def test_every_operator_is_in_the_earliest_region_it_can_be_in(
    graph: ComputationGraph, common: set[str], seed: int
) -> None:
    found = regions(graph, common)
    place = {name: index for index, region in enumerate(found) for name in region}
    assert place.keys() == graph.by_name.keys()
    for region in found:
        assert len({name in common for name in region}) == 1
    for name, before in graph.predecessors.items():
        assert all(place[other] <= place[name] for other in before)
        earlier = [found[index] for index in range(place[name]) if (found[index][0] in common) == (name in common)]
        assert not earlier or any(place[other] > place[earlier[-1][0]] for other in before)
    check_operators(search_regions(graph, TableCost(seed), common, find).schedule, graph)


@given(dags(9), st.lists(st.integers(1, 3), min_size=9, max_size=9), st.integers(0, 10**6))
def test_owner_parts_have_equal_owners_and_run_in_a_valid_order(
    graph: ComputationGraph, bits: list[int], seed: int
) -> None:
    owners = {operator.name: bits[index] for index, operator in enumerate(graph.operators)}
    found = owner_parts(graph, owners)
    of = [{owners[name] for name in part} for part in found]
    assert all(len(each) == 1 for each in of)
    assert all(one != other for one, other in pairwise(of))
    check_operators(search_owner_parts(graph, TableCost(seed), owners, find).schedule, graph)


def test_models_take_turns_after_their_shared_operators() -> None:
    graph = graph_of(6, [(0, 1), (0, 2), (1, 3), (2, 4)])
    owners = {"0": 3, "1": 1, "2": 2, "3": 1, "4": 2, "5": 1}
    assert owner_parts(graph, owners) == (("0",), ("1", "3", "5"), ("2", "4"))


def test_packed_models_run_side_by_side_in_their_separate_parts() -> None:
    graph = graph_of(6, [(0, 1), (0, 2), (1, 3), (2, 4)])
    found = packed_regions(graph, KeyedLanes(graph), {"0"}, find).schedule
    check_operators(found, graph)
    assert [stage.groups for stage in found.stages] == [(("5",),), (("0",),), (("1", "3"), ("2", "4"))]
    assert None not in [stage.predicted_us for stage in found.stages]


def test_models_run_side_by_side_between_shared_operators() -> None:
    """Two chains that meet in the operators 2 and 5: 0 2 3 4 5 6 and 1 2 7 8 5 9."""
    edges = [(0, 2), (1, 2), (2, 3), (3, 4), (2, 7), (7, 8)]
    graph = graph_of(12, [*edges, (4, 10), (8, 10), (10, 11)])
    graph = replace(graph, outputs=("5", "6", "9", "11"))
    assert regions(graph, {"2", "10"}) == (("0", "1", "5", "6", "9"), ("2",), ("3", "4", "7", "8"), ("10",), ("11",))
    found = search_regions(graph, KeyedLanes(graph), {"2", "10"}, find)
    assert (("3", "4"), ("7", "8")) in [stage.groups for stage in found.schedule.stages]


def test_a_graph_with_nothing_in_common_is_one_region() -> None:
    graph = graph_of(4, [(0, 1), (2, 3)])
    assert regions(graph, ()) == (("0", "1", "2", "3"),)
    assert regions(graph, graph.by_name) == (("0", "1", "2", "3"),)
