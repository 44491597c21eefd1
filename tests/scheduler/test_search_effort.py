"""The effort of a search: equal stages once, equal blocks once, fair shares before a deadline, and limits."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

import pytest
from by_definition import TableCost, dags, graph_of
from hypothesis import given
from hypothesis import strategies as st
from lane_costs import KeyedLanes, Lanes, cells

from iosched.models.graph import ComputationGraph
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import check_operators
from iosched.scheduler.effort import Effort
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.search import search


@given(dags(8), st.sampled_from([Pruning(3, 8), NO_PRUNING]), st.integers(1, 3))
def test_operator_keys_avoid_repeated_questions_and_keep_the_optimum(
    graph: ComputationGraph, pruning: Pruning, kinds: int
) -> None:
    keyed, plain = KeyedLanes(graph, kinds, 0.3), Lanes(graph, kinds, 0.3)
    found = search(graph, keyed, strategy="concurrent", pruning=pruning)
    full = search(graph, plain, strategy="concurrent", pruning=pruning, effort=Effort(exhaustive=True))

    assert found.schedule.predicted_us == pytest.approx(full.schedule.predicted_us, rel=1e-12)
    assert found.schedule.predicted_us == pytest.approx(plain.total_us(found.schedule), rel=1e-12)
    assert len(keyed.asked) == found.measured
    if len(found.schedule.blocks) == 1:
        assert len(keyed.asked) == len(set(keyed.asked))


def test_cells_that_repeat_are_searched_once() -> None:
    once, often = cells(3), cells(9)
    few, many = (search(graph, KeyedLanes(graph, 8, 0.2), strategy="concurrent") for graph in (once, often))

    assert len(many.schedule.blocks) > 2 * len(few.schedule.blocks) - 2
    assert many.measured == few.measured
    check_operators(many.schedule, often)
    assert many.schedule.predicted_us == pytest.approx(KeyedLanes(often, 8, 0.2).total_us(many.schedule))
    assert many.stages > 2 * few.stages


def test_before_a_deadline_every_block_gets_its_turn() -> None:
    """The operators alone use the first measurements; a few more rounds must reach the last blocks too."""
    graph = cells(6)
    cost = Lanes(graph, 4, 0.2)
    allowed = len(graph.operators) + 30
    found = search(graph, cost, strategy="concurrent", deadline=lambda: len(cost.asked) >= allowed)

    assert len(cost.asked) <= allowed
    for block in found.schedule.blocks:
        assert sum(len(stage.operators) for stage in block.stages) < 6 or len(block.stages) < 8
        assert max(len(stage.groups) for stage in block.stages) > 1 or len(block.stages) < 3
    assert cost.total_us(found.schedule) < cost.total_us(sequential(graph))


class Suggested(TableCost):
    """A device with a known schedule that is likely good."""

    def __init__(self, seed: int, noise: float, schedule: Schedule) -> None:
        super().__init__(seed, noise)
        self.schedule = schedule

    def suggested_stages(self) -> list[Stage]:
        nowhere = Stage(Strategy.CONCURRENT, (("no such operator",),))
        return [nowhere, *self.schedule.stages]


@given(dags(8), st.integers(0, 10**6), st.integers(0, 3), st.booleans())
def test_a_deadline_leaves_a_schedule_no_worse_than_the_one_suggested(
    graph: ComputationGraph, seed: int, more: int, by_the_caller: bool
) -> None:
    """With any costs, including those that favour another schedule."""
    suggested = search(graph, TableCost(seed + 1), strategy="concurrent").schedule
    stages = {frozenset(stage.operators) for stage in suggested.stages}
    allowed = len({frozenset([each.name]) for each in graph.operators} | stages) + more
    cost = TableCost(seed, 0.5) if by_the_caller else Suggested(seed, 0.5, suggested)
    first = suggested.stages if by_the_caller else ()
    found = search(graph, cost, strategy="concurrent", deadline=lambda: len(cost.asked) >= allowed, first=first)

    assert len(cost.asked) <= allowed
    check_operators(found.schedule, graph)
    assert found.schedule.predicted_us is not None
    assert found.schedule.predicted_us <= sum(map(cost.latency_us, stages)) * (1 + 1e-12)


@given(dags(8), st.integers(0, 10**6))
def test_a_suggestion_changes_no_optimum(graph: ComputationGraph, seed: int) -> None:
    cost = Suggested(seed, 0.5, greedy(graph))
    found, plain = (search(graph, each, strategy="concurrent") for each in (cost, TableCost(seed, 0.5)))
    assert found.schedule.predicted_us == pytest.approx(plain.schedule.predicted_us, rel=1e-12)


@given(dags(8), st.integers(0, 10**6), st.integers(0, 12))
def test_a_limit_leaves_a_true_bound_and_nothing_worse_than_greedy_or_sequential(
    graph: ComputationGraph, seed: int, limit: int
) -> None:
    cost, table = TableCost(seed, 0.6), TableCost(seed)
    found = search(
        graph, cost, strategy="concurrent", pruning=NO_PRUNING, max_states=10**6, effort=Effort(max_measurements=limit)
    )
    best = search(graph, TableCost(seed), strategy="concurrent", pruning=NO_PRUNING).schedule.predicted_us

    def total(schedule: Schedule) -> float:
        return sum(table.latency_us(frozenset(stage.operators)) for stage in schedule.stages)

    assert best is not None
    assert found.lower_bound_us <= best <= total(found.schedule)
    assert total(found.schedule) == found.schedule.predicted_us
    assert total(found.schedule) <= total(sequential(graph))
    if len(found.schedule.blocks) == 1:
        assert total(found.schedule) <= total(greedy(graph))
    assert not found.proven or total(found.schedule) == best
    most_a_round = 2 * len(graph.operators)
    assert len(cost.asked) <= len(graph.operators) + (limit + most_a_round) * len(found.schedule.blocks)


@pytest.mark.slow
def test_a_limit_ends_a_long_search() -> None:
    graph = graph_of(14, [(0, index) for index in range(1, 13)] + [(index, 13) for index in range(1, 13)])
    free = search(graph, Lanes(graph, 13, 0.3), strategy="concurrent")
    limited = search(graph, Lanes(graph, 13, 0.3), strategy="concurrent", effort=Effort(max_measurements=10))

    assert limited.measured < 14 + 10 + 14 < free.measured
    assert free.proven
    assert not limited.proven
    assert limited.lower_bound_us <= (free.schedule.predicted_us or 0) <= (limited.schedule.predicted_us or 0)
    assert (limited.schedule.predicted_us or 0) < 1.1 * (free.schedule.predicted_us or 0)


@pytest.mark.slow
def test_a_long_search_may_leave_a_gap_and_a_shorter_one_ends_with_a_proof() -> None:
    graph = graph_of(11, [(0, index) for index in range(1, 10)] + [(index, 10) for index in range(1, 10)])
    free, shorter, long, rough = (
        search(graph, Lanes(graph, 13, 0.3), strategy="concurrent", effort=effort)
        for effort in (
            Effort(),
            Effort(long_after=1_000, long_tolerance=0.1),
            Effort(long_after=50, long_tolerance=0.1),
            Effort(tolerance=0.1),
        )
    )

    assert free == shorter
    assert free.proven
    assert rough.measured < 50 <= long.measured < 60 < free.measured
    assert 0 < long.gap <= 0.1
    assert not long.proven
    assert (free.schedule.predicted_us or 0) >= (1 - long.gap) * (long.schedule.predicted_us or 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_wide_graph_is_scheduled_no_worse_than_greedily(seed: int) -> None:
    rng = random.Random(seed)
    layers = [list(range(start, start + 20)) for start in range(0, 200, 20)]
    edges = [(before, after) for above, below in pairwise(layers) for after in below for before in rng.sample(above, 2)]
    graph = graph_of(200, edges)
    cost = KeyedLanes(graph, 5, 0.05)
    found = search(
        graph, cost, strategy="concurrent", effort=Effort(bound_slack=0.95, tolerance=0.03, max_measurements=80)
    )

    check_operators(found.schedule, graph)
    assert cost.total_us(found.schedule) <= cost.total_us(greedy(graph)) * (1 + 1e-12)
    assert cost.total_us(found.schedule) == pytest.approx(found.schedule.predicted_us)
    assert not found.proven
    assert [block.index for block in found.schedule.blocks] == list(range(len(found.schedule.blocks)))


def test_greedy_stages_replace_cut_blocks_if_they_are_faster() -> None:
    """All stages take the same time, so that the fewest stages are best, and cuts only add stages."""

    class Flat(TableCost):
        def latency_us(self, names: frozenset[str], way: str = "concurrent") -> float:
            return 10.0

    wide = graph_of(31, [(index, 30) for index in range(30)])
    found = search(wide, Flat(0, 1.0), strategy="concurrent", max_states=100)

    assert [len(stage.groups) for stage in found.schedule.stages] == [30, 1]
    assert not found.proven
    assert found.lower_bound_us <= 20.0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "edges"),
    [
        (100, []),
        (101, [(index, 100) for index in range(100)]),
        (100, [(index, index + 2) for index in range(98)] + [(index, index + 3) for index in range(0, 97, 2)]),
        (60, [(20 * layer + a, 20 * layer + 20 + b) for layer in range(2) for a in range(20) for b in range(20)]),
    ],
    ids=["independent", "star", "ladder", "bipartite"],
)
def test_memory_stays_small_whatever_the_graph(n: int, edges: list[tuple[int, int]]) -> None:
    graph = graph_of(n, edges)
    cost = TableCost(1, 0.8)
    tracemalloc.start()
    try:
        found = search(graph, cost, strategy="concurrent", effort=Effort(tolerance=0.03, max_measurements=5))
        peak_nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    check_operators(found.schedule, graph)
    assert peak_nbytes < 128 << 20


def test_an_exhausted_effort_is_exhaustive_and_keeps_its_slack() -> None:
    effort = Effort(bound_slack=0.9, tolerance=0.03, max_measurements=5, remeasure_rounds=2)
    assert effort.exhausted() == Effort(exhaustive=True, bound_slack=0.9, remeasure_rounds=2)


@pytest.mark.parametrize("slack", [0.0, -1.0, float("nan")])
def test_a_bound_slack_that_is_not_positive_is_refused(slack: float) -> None:
    with pytest.raises(ValueError, match="bound_slack must be positive"):
        Effort(bound_slack=slack)
