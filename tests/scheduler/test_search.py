"""The search finds the best of all schedules, and measures no more than it must."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

import pytest
from by_definition import TableCost, dags, endings_of, graph_of, schedules_of
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from small_models import loaded, proto_of, weight

from iosched.models.errors import ExecutionError
from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.blocks import partition
from iosched.scheduler.document import check_operators
from iosched.scheduler.effort import Effort
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import SearchStrategy, can_merge

PRUNINGS = [Pruning(3, 8), Pruning(1, 2), Pruning(2, 3), NO_PRUNING]


@cache
def fire(n: int, extra: bool) -> ComputationGraph:
    """A squeeze convolution, `n` convolutions of its output that may be merged, and a Concat; with `extra`, the first
    of them reads something else.
    """
    nodes, weights = [helper.make_node("Conv", ["x", "ws"], ["sq"])], {"ws": weight(8, 8, 1, 1)}
    for index in range(n):
        kernel = 1 + 2 * (index % 2)
        weights[f"w{index}"] = weight(4 + index, 8, kernel, kernel)
        inputs = ["x" if extra and index == 0 else "sq", f"w{index}"]
        nodes.append(helper.make_node("Conv", inputs, [f"e{index}"], pads=[kernel // 2] * 4))
    nodes.append(helper.make_node("Concat", [f"e{index}" for index in range(n)], ["out"], axis=1))
    return loaded(proto_of(nodes, {"x": (1, 8, 8, 8)}, ["out"], weights)).graph


def brute_force_us(graph: ComputationGraph, cost: TableCost, strategy: SearchStrategy, pruning: Pruning) -> float:
    def stage_us(names: frozenset[str]) -> float:
        merges = strategy != "concurrent" and can_merge(graph, names)
        runs = strategy != "merge" or len(names) == 1
        return min(
            cost.latency_us(names, "merge") if merges else float("inf"),
            cost.latency_us(names) if runs else float("inf"),
        )

    return sum(
        min(
            sum(stage_us(stage) for stage in schedule)
            for schedule in schedules_of(graph, frozenset(part.operators), pruning.r, pruning.s)
        )
        for part in partition(graph)
    )


@given(dags(6), st.integers(0, 10**6), st.sampled_from(PRUNINGS), st.sampled_from([0.0, 0.7, 1.0]))
def test_the_schedule_is_the_best_of_all(
    graph: ComputationGraph, seed: int, pruning: Pruning, bound_factor: float
) -> None:
    found = search(graph, TableCost(seed, bound_factor), strategy="concurrent", pruning=pruning)

    assert found.schedule.predicted_us == brute_force_us(graph, TableCost(seed), "concurrent", pruning)
    assert found.lower_bound_us == found.schedule.predicted_us
    check_operators(found.schedule, graph)


@settings(max_examples=8)
@given(dags(8), st.integers(0, 10**6))
def test_the_schedule_is_the_best_of_all_for_eight_operators(graph: ComputationGraph, seed: int) -> None:
    """Brute force without listing schedules twice: the best of a state, from its endings by definition."""
    cost, pruning = TableCost(seed, 0.8), Pruning(2, 3)
    best: dict[frozenset[str], float] = {frozenset(): 0.0}

    def least(state: frozenset[str]) -> float:
        if state not in best:
            best[state] = min(cost.latency_us(e) + least(state - e) for e in endings_of(graph, state, 2, 3))
        return best[state]

    expected = sum(least(frozenset(part.operators)) for part in partition(graph))
    found = search(graph, cost, strategy="concurrent", pruning=pruning)

    assert found.schedule.predicted_us == expected


@given(
    st.integers(2, 4), st.booleans(), st.integers(0, 10**6), st.sampled_from(PRUNINGS),
    st.sampled_from(["merge", "both", "concurrent"]), st.sampled_from([0.0, 0.9]),
)  # fmt: skip
def test_merging_is_weighed_against_running_side_by_side(
    n: int, extra: bool, seed: int, pruning: Pruning, strategy: SearchStrategy, bound_factor: float
) -> None:
    graph = fire(n, extra)
    found = search(graph, TableCost(seed, bound_factor), strategy=strategy, pruning=pruning)

    assert found.schedule.predicted_us == brute_force_us(graph, TableCost(seed), strategy, pruning)
    for stage in found.schedule.stages:
        assert stage.strategy is Strategy.CONCURRENT or can_merge(graph, stage.operators)
        assert strategy != "merge" or stage.strategy is Strategy.MERGE or len(stage.operators) == 1


class _EvenCost:
    """Expanding convolutions take as long merged as side by side, and the bounds say so."""

    def stage_latency_us(self, stage: Stage) -> float:
        return 1.0 if len(stage.operators) == 1 or all(name.startswith("e") for name in stage.operators) else 100.0

    lower_bound_us = stage_latency_us


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("exhaustive", [False, True])
def test_a_merged_stage_wins_a_tie(n: int, exhaustive: bool) -> None:
    """Thesis, algorithm 1: side by side only where that takes less."""
    found = search(fire(n, False), _EvenCost(), strategy="both", effort=Effort(exhaustive=exhaustive))

    merged = [stage for stage in found.schedule.stages if stage.strategy is Strategy.MERGE]
    assert [len(stage.operators) for stage in merged] == [n]


@given(dags(8), st.integers(0, 10**6), st.sampled_from(PRUNINGS))
def test_lazy_and_exhaustive_find_the_same_latency(graph: ComputationGraph, seed: int, pruning: Pruning) -> None:
    lazy_cost, full_cost = TableCost(seed, 0.9), TableCost(seed, 0.9)
    lazy = search(graph, lazy_cost, strategy="concurrent", pruning=pruning)
    full = search(graph, full_cost, strategy="concurrent", pruning=pruning, effort=Effort(exhaustive=True))

    assert lazy.schedule.predicted_us == full.schedule.predicted_us
    assert lazy.measured == len(lazy_cost.asked) <= full.measured == len(full_cost.asked)
    assert len(set(lazy_cost.asked)) == len(lazy_cost.asked)


@given(
    st.integers(2, 5), st.booleans(), st.integers(0, 10**6), st.sampled_from(PRUNINGS),
    st.sampled_from(["merge", "both", "concurrent"]), st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)  # fmt: skip
def test_lazy_and_exhaustive_agree_in_every_strategy(
    n: int, extra: bool, seed: int, pruning: Pruning, strategy: SearchStrategy, bound_factor: float
) -> None:
    graph = fire(n, extra)
    lazy, full = (
        search(
            graph,
            TableCost(seed, bound_factor),
            strategy=strategy,
            pruning=pruning,
            effort=Effort(exhaustive=exhaustive),
        )
        for exhaustive in (False, True)
    )

    assert lazy.schedule.predicted_us == full.schedule.predicted_us
    assert lazy.measured <= full.measured
    assert lazy.proven
    assert lazy.gap == full.gap == 0


class LaneCost:
    """Two lanes, groups side by side: keeps every promise of `OperatorBounds`."""

    lanes = 2

    def operator_work_us(self, name: str) -> float:
        return 5.0 + 7 * (int(name) % 4)

    def operator_latency_us(self, name: str) -> float:
        return self.operator_work_us(name) * 0.6

    def stage_latency_us(self, stage: Stage) -> float:
        groups = [sum(map(self.operator_work_us, group)) for group in stage.groups]
        if len(groups) == 1:
            return 3.0 + 0.6 * groups[0]
        ways = range(2 ** len(groups))
        halves = (sum(us for index, us in enumerate(groups) if way >> index & 1) for way in ways)
        return 2.0 + min(max(half, sum(groups) - half) for half in halves) + len(groups)

    def lower_bound_us(self, stage: Stage) -> float:
        raise AssertionError("concurrent stages are bounded from their operators")


@given(dags(8), st.sampled_from(PRUNINGS))
def test_bounds_from_single_operators_keep_the_optimum(graph: ComputationGraph, pruning: Pruning) -> None:
    lazy = search(graph, LaneCost(), strategy="concurrent", pruning=pruning)
    full = search(graph, LaneCost(), strategy="concurrent", pruning=pruning, effort=Effort(exhaustive=True))

    assert lazy.schedule.predicted_us == pytest.approx(full.schedule.predicted_us, rel=1e-12)


def test_good_bounds_save_most_measurements() -> None:
    wide = graph_of(9, [(index, 8) for index in range(8)])
    found = search(wide, TableCost(1, 0.95), strategy="concurrent")

    assert found.measured < found.stages / 2


@given(dags(7), st.integers(0, 10**6), st.integers(0, 30))
def test_a_deadline_leaves_a_schedule_no_worse_than_the_sequential_one(
    graph: ComputationGraph, seed: int, allowed: int
) -> None:
    cost = TableCost(seed, 0.5)
    found = search(graph, cost, strategy="concurrent", deadline=lambda: len(cost.asked) >= allowed)

    assert len(cost.asked) <= allowed
    check_operators(found.schedule, graph)
    predicted = found.schedule.predicted_us
    if predicted is not None:
        assert predicted <= sum(cost.latency_us(frozenset(stage.operators)) for stage in sequential(graph).stages)
        assert found.lower_bound_us <= predicted
    best = search(graph, TableCost(seed), strategy="concurrent").schedule.predicted_us
    assert not found.proven or predicted == best


def test_equal_costs_give_the_same_schedule_with_the_fewest_stages() -> None:
    class Free:
        def stage_latency_us(self, stage: Stage) -> float:
            return 0.0

        def lower_bound_us(self, stage: Stage) -> float:
            return 0.0

    graph = graph_of(5, [(0, 4), (1, 4), (2, 4), (3, 4)])
    first, again = (search(graph, Free(), strategy="concurrent", pruning=NO_PRUNING).schedule for _ in range(2))

    assert first == again
    assert len(list(first.stages)) == 1


def test_a_stage_that_cannot_run_is_not_chosen_and_a_graph_that_cannot_run_is_an_error() -> None:
    class OnlyAlone(TableCost):
        def stage_latency_us(self, stage: Stage) -> float:
            return 10.0 if len(stage.operators) == self.seed else float("inf")

    graph = graph_of(3, [(0, 2), (1, 2)])

    assert len(list(search(graph, OnlyAlone(1)).schedule.stages)) == 3
    with pytest.raises(ExecutionError, match="cannot run block 0"):
        search(graph, OnlyAlone(7))


@pytest.mark.parametrize("latency_us", [float("nan"), -1.0])
def test_a_cost_that_is_no_latency_is_refused(latency_us: float) -> None:
    class Broken(TableCost):
        def stage_latency_us(self, stage: Stage) -> float:
            return latency_us

    with pytest.raises(ValueError, match="cost model returned"):
        search(graph_of(2, []), Broken(0))


def test_progress_is_reported_for_every_block_and_measurement() -> None:
    told: list[tuple[object, ...]] = []

    class Listener:
        def block_started(self, *event: object) -> None:
            told.append(("started", *event))

        def stage_measured(self, *event: object) -> None:
            told.append(("measured", *event))

        def block_finished(self, index: int, n_blocks: int, block: object) -> None:
            told.append(("finished", index, n_blocks))

        def best_known(self, latency_us: float) -> None:
            told.append(("best", latency_us))

    found = search(graph_of(2, [(0, 1)]), TableCost(3), observer=Listener())

    assert told[0] == ("started", 0, 1, 3)
    assert [event[0] for event in told].count("measured") == found.measured == 3
    assert told[-1] == ("best", found.schedule.predicted_us) == told[-3]
    assert told[-2] == ("finished", 0, 1)


@pytest.mark.parametrize("deadline", [None, lambda: False])
def test_the_best_latency_known_is_reported_until_it_is_that_of_the_schedule(
    deadline: Callable[[], bool] | None,
) -> None:
    reported: list[float] = []
    diamonds = [(n + a, n + b) for n in (0, 3, 6) for a, b in ((0, 1), (0, 2), (1, 3), (2, 3))]
    graph = graph_of(10, diamonds)
    listener = SimpleNamespace(
        block_started=lambda *event: None,
        stage_measured=lambda *event: None,
        block_finished=lambda *event: None,
        best_known=reported.append,
    )
    found = search(graph, LaneCost(), strategy="concurrent", observer=listener, deadline=deadline)
    assert len(found.schedule.blocks) > 1
    assert len(reported) > 1
    assert reported == sorted(reported, reverse=True)
    assert reported[-1] == pytest.approx(found.schedule.predicted_us)


@given(dags(7), st.sampled_from(PRUNINGS))
def test_endings_are_those_of_the_definition(graph: ComputationGraph, pruning: Pruning) -> None:
    names = [operator.name for operator in graph.operators]
    lattice = lattices.build(lattices.relation(graph, names), pruning)

    def named(mask: int) -> frozenset[str]:
        return frozenset(names[index] for index in lattices.bits(mask))

    for target, state in enumerate(lattice.states.tolist()):
        edges = slice(int(lattice.offsets[target]), int(lattice.offsets[target + 1]))
        found = [named(mask) for mask in lattice.stages[lattice.endings[edges]].tolist()]
        sources = [named(mask) for mask in lattice.states[lattice.sources[edges]].tolist()]
        assert len(set(found)) == len(found)
        assert set(found) == set(endings_of(graph, named(state), pruning.r, pruning.s))
        assert [named(state) - ending for ending in found] == sources


def test_greedy_runs_everything_that_is_ready() -> None:
    graph = graph_of(5, [(0, 2), (1, 2), (1, 3), (2, 4)])

    assert [stage.operators for stage in greedy(graph).stages] == [("0", "1"), ("2", "3"), ("4",)]
    assert [stage.operators for stage in sequential(graph).stages] == [("0",), ("1",), ("2",), ("3",), ("4",)]
