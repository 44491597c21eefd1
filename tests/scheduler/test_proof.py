"""A schedule called optimal is the best of all schedules of the whole graph, found by brute force."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from by_definition import TableCost, best_us, dags, graph_of, groups_of
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_costs import KeyedLanes
from scripted import fire

from iosched.models.graph import ComputationGraph
from iosched.scheduler.blocks import partition
from iosched.scheduler.cost import AdditiveGroups, CostModel
from iosched.scheduler.effort import Effort
from iosched.scheduler.proof import gap_text, loses_nothing, proof_text
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Stage
from iosched.scheduler.search import search
from iosched.scheduler.strategies import SearchStrategy, can_merge

PRUNINGS = [Pruning(3, 8), Pruning(2, 1), Pruning(1, 2), Pruning(2, 2), NO_PRUNING]


class Additive(TableCost):
    """Any number for any stage of several groups; a stage of one group takes as long as its operators, or longer."""

    groups_are_additive = True

    def __init__(self, seed: int, graph: ComputationGraph, bound_factor: float = 0.0) -> None:
        super().__init__(seed, bound_factor)
        self.graph = graph

    def latency_us(self, names: frozenset[str], way: str = "concurrent") -> float:
        any_us = super().latency_us(names, way)
        if way != "concurrent" or len(names) == 1 or not is_one_group(self.graph, names):
            return any_us
        return max(any_us, sum(super(Additive, self).latency_us(frozenset([name])) for name in names))


def is_one_group(graph: ComputationGraph, names: frozenset[str]) -> bool:
    return len(groups_of(graph, names)) == 1


def stage_us(graph: ComputationGraph, cost: TableCost, strategy: SearchStrategy) -> Callable[[frozenset[str]], float]:
    """Latency of a set of operators in the best way that the strategy allows."""

    def latency_us(names: frozenset[str]) -> float:
        ways = [cost.latency_us(names)] if strategy != "merge" or len(names) == 1 else []
        if strategy != "concurrent" and can_merge(graph, names):
            ways.append(cost.latency_us(names, "merge"))
        return min(ways, default=float("inf"))

    return latency_us


@given(dags(8), st.lists(st.integers(1, 7), max_size=3))
def test_a_cut_loses_nothing_if_all_before_it_leads_to_all_after_it(graph: ComputationGraph, at: list[int]) -> None:
    names = [operator.name for operator in graph.operators]
    ends = sorted({0, len(names), *(end for end in at if end < len(names))})
    ancestors: dict[str, set[str]] = {}
    for name in names:
        before = graph.predecessors[name]
        ancestors[name] = {*before}.union(*(ancestors[other] for other in before))
    expected = all(
        set(names[:end]) <= ancestors[name] | set(names[end:]) for end in ends[1:-1] for name in names[end:]
    )  # fmt: skip

    assert loses_nothing(graph, [names[first:last] for first, last in pairwise(ends)]) == expected


@given(dags(7), st.integers(0, 10**6), st.sampled_from(PRUNINGS), st.sampled_from([3, 5, 8, 8000]), st.booleans())
def test_an_optimal_schedule_is_the_best_of_the_whole_graph(
    graph: ComputationGraph, seed: int, pruning: Pruning, max_states: int, additive: bool
) -> None:
    """Blocks are small, with small and large losses; costs keep their declaration or make none."""
    cost = Additive(seed, graph, 0.6) if additive else TableCost(seed, 0.6)
    found = search(graph, cost, strategy="concurrent", pruning=pruning, max_states=max_states)
    best = best_us(graph, cost.latency_us, pruning.r, pruning.s)

    predicted = found.schedule.predicted_us
    assert predicted is not None
    assert found.proven != "whole" or predicted == best
    parts = [part.operators for part in partition(graph, max_states)]
    if len(found.schedule.blocks) < len(parts):
        assert found.proven is None, "greedy stages that reach across cuts were faster"
        return
    nothing_lost = loses_nothing(graph, parts) and (additive or pruning.r == 1)
    assert found.proven == ("whole" if len(parts) == 1 or nothing_lost else "blocks")
    assert predicted >= best


@pytest.mark.parametrize("strategy", ["merge", "both"])
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), pruning=st.sampled_from([Pruning(2, 2), Pruning(1, None), Pruning(3, 8)]))
def test_merged_stages_never_reach_across_a_cut(strategy: SearchStrategy, seed: int, pruning: Pruning) -> None:
    """Two squeezing convolutions, each read by two that merge, in separate blocks."""
    graph = fire().graph
    cost = TableCost(seed, 0.6) if strategy == "merge" else Additive(seed, graph, 0.6)
    found = search(graph, cost, strategy=strategy, pruning=pruning)

    assert len(found.schedule.blocks) > 1
    assert found.proven == "whole"
    assert found.schedule.predicted_us == best_us(graph, stage_us(graph, cost, strategy), pruning.r, pruning.s)


DIAMONDS = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)]


class CheapAcross(TableCost):
    """Operators take 10 each, but 3 and 4, two blocks' neighbours, take 12 together: a cut between them costs 8."""

    def latency_us(self, names: frozenset[str], way: str = "concurrent") -> float:
        return 12.0 if names == {"3", "4"} else 10.0 * len(names)


def test_a_cut_in_a_group_that_beats_its_operators_proves_only_blocks() -> None:
    graph = graph_of(7, DIAMONDS)
    cost = CheapAcross(0)
    found = search(graph, cost, strategy="concurrent")
    apart = search(graph, cost, strategy="concurrent", pruning=Pruning(1, 8))

    assert (found.schedule.predicted_us, best_us(graph, cost.latency_us, 3, 8)) == (70.0, 62.0)
    assert (found.proven, found.gap) == ("blocks", 0)
    assert all(block.optimal for block in found.schedule.blocks)
    assert apart.proven == "whole", "no stage holds 3 and 4"


def test_a_declaration_set_to_false_is_ignored() -> None:
    class Sometimes(CheapAcross):
        groups_are_additive = False

    cost: CostModel = Sometimes(0)

    assert isinstance(cost, AdditiveGroups)
    assert search(graph_of(7, DIAMONDS), cost, strategy="concurrent").proven == "blocks"


def ladder(n: int) -> ComputationGraph:
    return graph_of(n, [(i, i + 2) for i in range(n - 2)] + [(i, i + 3) for i in range(0, n - 3, 2)])


class AdditiveLanes(KeyedLanes):
    """Two lanes, where operators of one group take as long as in stages of their own."""

    groups_are_additive = True

    def latency_us(self, stage: Stage) -> float:
        if len(stage.groups) == 1:
            return sum(4.0 + self.operator_latency_us(name) for name in stage.operators)
        return super().latency_us(stage)


def test_a_cut_that_two_results_cross_is_no_proof() -> None:
    """A ladder: its blocks are proven, but a schedule whose stages reach across their cuts is better."""
    graph = ladder(12)
    cut = search(graph, AdditiveLanes(graph, 3), strategy="concurrent", max_states=16)
    whole = search(graph, AdditiveLanes(graph, 3), strategy="concurrent")

    assert len(cut.schedule.blocks) > 1 == len(whole.schedule.blocks)
    assert (cut.proven, whole.proven) == ("blocks", "whole")
    assert (cut.gap, whole.gap) == (0, 0)
    assert (whole.schedule.predicted_us or 0) < (cut.schedule.predicted_us or 0)


def test_an_output_without_readers_prevents_a_proof_of_the_whole_graph() -> None:
    """Operator 1 is a separate output: the operators behind 2 do not wait for it."""
    graph = graph_of(8, [(0, 1), (0, 2), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (6, 7)])
    cost = Additive(0, graph)
    parts = partition(graph)

    assert len(parts) > 1
    assert search(graph, cost, strategy="concurrent").proven == "blocks"


@given(
    dags(7), st.integers(0, 10**6), st.sampled_from([0.0, 0.02, 0.3]), st.sampled_from([0.7, 1.0]),
    st.sampled_from([None, 0, 3]), st.integers(0, 40),
)  # fmt: skip
def test_with_a_gap_nothing_is_proven(
    graph: ComputationGraph, seed: int, tolerance: float, slack: float, limit: int | None, allowed: int
) -> None:
    """Tolerance, slack, limits and deadlines: what ends the search early leaves a gap, or the best schedule."""
    cost = Additive(seed, graph, 0.9)
    effort = Effort(bound_slack=slack, tolerance=tolerance, max_measurements=limit)
    found = search(graph, cost, strategy="concurrent", effort=effort, deadline=lambda: len(cost.asked) > allowed)
    best = best_us(graph, cost.latency_us, 3, 8)

    assert (found.gap == 0) == (found.proven is not None)
    if found.proven == "whole":
        assert found.schedule.predicted_us == best
    if found.scope == "whole":
        assert found.lower_bound_us <= best
    assert all(block.optimal for block in found.schedule.blocks) == (found.proven is not None)


def test_a_schedule_that_leaves_its_blocks_has_no_bound() -> None:
    class Flat(TableCost):
        def latency_us(self, names: frozenset[str], way: str = "concurrent") -> float:
            return 10.0

    wide = graph_of(31, [(index, 30) for index in range(30)])
    found = search(wide, Flat(0, 1.0), strategy="concurrent", max_states=100)

    assert (found.proven, found.scope, found.gap) == (None, "blocks", 1.0)


def test_a_tolerance_that_is_used_leaves_a_gap() -> None:
    graph = graph_of(6, [(0, 5), (1, 5), (2, 5), (3, 5), (4, 5)])
    loose = search(graph, TableCost(7, 0.8), strategy="concurrent", effort=Effort(tolerance=0.3))
    exact = search(graph, TableCost(7, 0.8), strategy="concurrent")

    assert loose.gap == pytest.approx(0.2)
    assert (loose.proven, loose.schedule.predicted_us) == (None, 25)
    assert exact.schedule.predicted_us == 24
    assert (exact.gap, exact.proven) == (0, "whole")


def test_slack_that_would_raise_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 1"):
        Effort(bound_slack=1.1)


def test_each_proof_has_one_text() -> None:
    assert proof_text("whole", "under the model") == "optimal under the model"
    assert proof_text("blocks") == "each block optimal, the whole graph not proven"
    assert proof_text(None) == "not proven optimal"


def test_texts_about_measured_stages_promise_no_optimum_or_gap() -> None:
    """If latencies are measured again, another schedule may be best; stages need not keep their bounds."""
    texts = [proof_text(scope, "under the measured stages", measured=True) for scope in ("whole", "blocks")]
    texts += [gap_text(gap, "blocks", "", measured=True) for gap in (0.0, 0.01)]
    texts.append(gap_text(0.09, "whole", "", measured=True, predicted=0.018))
    assert texts[-1].endswith("by predicted stage latencies, at most 1.8% is left to gain")
    assert not any("optimal" in text or "within" in text for text in texts)
    assert gap_text(0.01, "whole", "") == "within 1.0% of the best possible under the stages' bounds"
