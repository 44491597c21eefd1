"""Beam search finds valid schedules, better than greedy ones, for graphs that are too wide for a full search."""

from __future__ import annotations

import random

import pytest
from by_definition import dags, graph_of, groups_of
from hypothesis import given
from hypothesis import strategies as st
from lane_costs import KeyedLanes

from iosched.models.graph import ComputationGraph
from iosched.scheduler import wide_graphs as wide
from iosched.scheduler.baselines import greedy
from iosched.scheduler.document import check_operators
from iosched.scheduler.effort import Effort
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.search import search
from iosched.scheduler.wide_graphs import MAX_OPERATORS, beam


def threads(seed: int, n: int = 100, width: int = 16) -> ComputationGraph:
    """Each operator continues one of `width` threads and reads another: a random graph of that width."""
    rng = random.Random(seed)
    last, edges = list(range(width)), []
    for index in range(width, n):
        thread = rng.randrange(width)
        edges += [(before, index) for before in sorted({last[thread], last[rng.randrange(width)]})]
        last[thread] = index
    return graph_of(n, edges)


def names_of(graph: ComputationGraph) -> list[str]:
    return [operator.name for operator in graph.operators]


@given(dags(8), st.sampled_from([Pruning(3, 8), Pruning(1, 2), NO_PRUNING]))
def test_stages_are_legal_and_their_groups_are_weakly_connected(graph: ComputationGraph, pruning: Pruning) -> None:
    stages = beam(graph, names_of(graph), pruning, KeyedLanes(graph, 3, 0.2).latency_us)

    assert stages is not None
    check_operators(Schedule((Block(0, stages),)), graph)
    for stage in stages:
        assert sorted(map(sorted, stage.groups)) == sorted(
            map(sorted, groups_of(graph, frozenset(stage.operators)))
        )  # fmt: skip
        assert pruning.r is None or max(map(len, stage.groups)) <= pruning.r


def test_a_part_of_a_graph_is_scheduled_without_its_predecessors() -> None:
    graph = graph_of(6, [(0, 2), (1, 3), (2, 4), (3, 5)])
    stages = beam(graph, ["2", "3", "4", "5"], NO_PRUNING, lambda stage: 10.0 * len(stage.groups[0]) + 5)

    assert stages is not None
    assert sorted(name for stage in stages for name in stage.operators) == ["2", "3", "4", "5"]


def test_chains_are_kept_in_one_stage_where_that_saves_a_stage() -> None:
    graph = graph_of(6, [(0, 1), (2, 3), (4, 5)])
    stages = beam(graph, names_of(graph), NO_PRUNING, lambda stage: 100.0 + len(stage.operators))

    assert stages is not None
    assert [stage.groups for stage in stages] == [(("0", "1"), ("2", "3"), ("4", "5"))]


def test_a_graph_that_is_too_large_is_not_searched() -> None:
    graph = graph_of(MAX_OPERATORS + 1, [])

    assert beam(graph, names_of(graph), NO_PRUNING, lambda stage: 1.0) is None


class ManyLanes(KeyedLanes):
    """A device that runs eight groups at once; the longest group and the work set the pace."""

    lanes = 8

    def latency_us(self, stage: Stage) -> float:
        groups = [sum(map(self.operator_work_us, group)) for group in stage.groups]
        factor = 1 + self.noise * random.Random(self.signature(stage)).random()
        return 4.0 + max(*groups, sum(groups) / 8, 0.0) * factor

    def operator_latency_us(self, name: str) -> float:
        return self.operator_work_us(name)


def test_each_of_three_beams_improves_on_the_previous_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = threads(7, n=30, width=10)

    def predicted_us() -> float:
        cost = ManyLanes(graph, 7, 0.3)
        found = search(graph, cost, strategy="concurrent", max_states=100, effort=Effort(max_measurements=20))
        return cost.total_us(found.schedule)

    three = predicted_us()
    monkeypatch.setattr(wide, "_BEAMS", 2)
    two = predicted_us()
    monkeypatch.setattr(wide, "_BEAMS", 1)

    assert three < two < predicted_us()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_random_wide_graphs_are_scheduled_much_better_than_greedily(seed: int) -> None:
    graph = threads(seed)
    cost, again = ManyLanes(graph, 7, 0.1), ManyLanes(graph, 7, 0.1)
    found = search(graph, cost, strategy="concurrent", effort=Effort(tolerance=0.03, max_measurements=40))
    second = search(graph, again, strategy="concurrent", effort=Effort(tolerance=0.03, max_measurements=40))

    check_operators(found.schedule, graph)
    assert cost.total_us(found.schedule) == pytest.approx(found.schedule.predicted_us)
    assert cost.total_us(found.schedule) < 0.9 * cost.total_us(greedy(graph))
    assert not found.proven
    assert found.schedule == second.schedule
    assert cost.asked == again.asked
    assert len(cost.asked) == found.measured < 1000
