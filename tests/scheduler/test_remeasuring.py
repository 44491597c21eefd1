"""Decisive stages are measured twice, so that noise does not make predictions too good to be true."""

from __future__ import annotations

from statistics import mean

import numpy as np
import pytest
from by_definition import TableCost, graph_of
from lane_costs import KeyedLanes, NoisyLanes, cells

from iosched.scheduler.document import check_operators
from iosched.scheduler.effort import Effort
from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import build, popcount, relation
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import SearchResult, search
from iosched.scheduler.strategies import masks_of

GRAPH = cells(2)
SEEDS = range(12)


def searched(seed: int, rounds: int) -> tuple[NoisyLanes, SearchResult]:
    cost = NoisyLanes(GRAPH, seed)
    found = search(
        GRAPH, cost, strategy="concurrent", effort=Effort(bound_slack=0.8, tolerance=0.02, remeasure_rounds=rounds)
    )
    check_operators(found.schedule, GRAPH)
    return cost, found


def error(cost: NoisyLanes, found: SearchResult) -> float:
    """The error of the predicted latency, as a fraction of the true one."""
    return (found.schedule.predicted_us or 0.0) / cost.total_us(found.schedule) - 1


@pytest.mark.slow
def test_measuring_twice_removes_bias_and_halves_the_loss() -> None:
    best = search(GRAPH, KeyedLanes(GRAPH, 8, 0.1), strategy="concurrent").schedule.predicted_us or 0.0
    once, twice = ([searched(seed, rounds) for seed in SEEDS] for rounds in (0, 8))

    assert mean(error(*pair) for pair in once) < -0.08
    assert abs(mean(error(*pair) for pair in twice)) < 0.02
    lost_once, lost_twice = (
        mean(cost.total_us(found.schedule) / best - 1 for cost, found in runs) for runs in (once, twice)
    )
    assert 0 <= lost_twice < lost_once / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_the_schedule_is_made_of_stages_that_were_measured_twice(seed: int) -> None:
    cost, found = searched(seed, 8)

    assert {cost.signature(stage) for stage in found.schedule.stages} <= set(cost.again)
    assert found.remeasured == len(cost.again)
    assert found.measured == len(cost.asked)
    assert max(cost.again.count(key) for key in cost.again) <= 2, "once in each of the two kinds of blocks"


def test_the_same_answers_give_the_same_schedule() -> None:
    (one, first), (two, second) = searched(3, 8), searched(3, 8)

    assert first == second
    assert (one.asked, one.again) == (two.asked, two.again)


def test_without_rounds_every_latency_is_trusted() -> None:
    cost, found = searched(0, 0)
    full = search(
        GRAPH, NoisyLanes(GRAPH, 0), strategy="concurrent", effort=Effort(exhaustive=True, remeasure_rounds=0)
    )

    assert cost.again == []
    assert found.remeasured == 0
    assert found.schedule.predicted_us == pytest.approx(full.schedule.predicted_us, rel=0.02)


class Corrected(TableCost):
    """A table whose stages take `slower` times as long when measured again, some of them not."""

    def __init__(self, seed: int, slower: float, exempt: frozenset[str] = frozenset()) -> None:
        super().__init__(seed, 0.5)
        self.slower, self.exempt = slower, exempt
        self.again: list[Stage] = []

    def remeasure(self, stage: Stage) -> float:
        self.again.append(stage)
        known = self.latency_us(frozenset(stage.operators), stage.strategy.value)
        return known if self.exempt.intersection(stage.operators) else known * self.slower


def test_if_rounds_run_out_the_schedule_has_only_stages_measured_twice() -> None:
    graph = graph_of(7, [(0, 6), (1, 6), (2, 6), (3, 6), (4, 6), (5, 6)])
    cost = Corrected(5, 10.0)
    found = search(graph, cost, strategy="concurrent", effort=Effort(remeasure_rounds=1))
    once = search(graph, TableCost(5), strategy="concurrent").schedule

    assert [stage.groups for stage in found.schedule.stages] == [stage.groups for stage in once.stages]
    assert found.schedule.predicted_us == pytest.approx(10 * (once.predicted_us or 0.0))
    assert not found.proven
    assert found.lower_bound_us < (found.schedule.predicted_us or 0.0)
    assert found.gap == pytest.approx(1 - found.lower_bound_us / (found.schedule.predicted_us or 1.0))


def test_stages_that_only_looked_fast_are_replaced() -> None:
    """Without a limit on rounds, every stage that could be on the best schedule is measured again."""
    graph = graph_of(5, [(0, 4), (1, 4), (2, 4), (3, 4)])
    cost = Corrected(2, 3.0, exempt=frozenset("0"))
    found = search(graph, cost, strategy="concurrent", effort=Effort(remeasure_rounds=100))

    assert {stage.operators for stage in found.schedule.stages} <= {stage.operators for stage in cost.again}
    assert found.schedule.predicted_us == sum(
        TableCost(2).latency_us(frozenset(stage.operators)) * (1 if "0" in stage.operators else 3)
        for stage in found.schedule.stages
    )
    assert found.proven
    assert found.gap == 0


def test_remeasuring_a_too_slow_operator_lowers_the_bounds_of_its_stages() -> None:
    """Operator 3 seems slow until it is measured again; then bounds follow its true latency."""

    class Hiccup(KeyedLanes):
        def operator_latency_us(self, name: str) -> float:
            return 500.0 if name == "3" else super().operator_latency_us(name)

        def operator_work_us(self, name: str) -> float:
            return 800.0 if name == "3" and "3" not in self.again else super().operator_work_us(name)

        def stage_latency_us(self, stage: Stage) -> float:
            return 500.0 if stage.operators == ("3",) else self.latency_us(stage)

        def remeasure(self, stage: Stage) -> float:
            self.again.extend(stage.operators)
            return 40.0

    graph = graph_of(4, [])
    names = tuple(operator.name for operator in graph.operators)
    lattice = build(relation(graph, names), NO_PRUNING)
    cost = Hiccup(graph)
    masks = masks_of(graph, names, (Strategy.CONCURRENT,))
    known = KnownLatencies.start(cost, names, lattice, masks)
    known.fill_bounds(lambda: False)
    alone = known.single_operators()
    known.measure(alone[3])
    with_3 = (lattice.stages & np.uint64(8) != 0) & (popcount(lattice.stages) > 1)
    before = known.bounds_us()[with_3]
    known.remeasure(alone[3])
    known.refresh_bounds()

    assert before.min() >= 500.0
    assert known.bounds_us()[with_3].max() <= (20 + 37 + 54 + 2 * 40) / 2 + 54
    assert known.bounds_us()[alone[3]] == 40.0
    assert known.is_settled().tolist() == [position == alone[3] for position in range(len(lattice.stages))]


def test_stages_within_the_tolerance_are_measured_twice_too() -> None:
    graph = graph_of(5, [(0, 4), (1, 4), (2, 4), (3, 4)])
    exact, close = Corrected(4, 1.0), Corrected(4, 1.0)
    first = search(graph, exact, strategy="concurrent")
    second = search(graph, close, strategy="concurrent", effort=Effort(tolerance=0.5, exhaustive=True))

    assert {stage.operators for stage in exact.again} == {stage.operators for stage in first.schedule.stages}
    assert {stage.operators for stage in close.again} > {stage.operators for stage in second.schedule.stages}


def test_of_stages_that_are_alike_one_is_measured_twice() -> None:
    graph = graph_of(8, [])
    cost = NoisyLanes(graph, 1)
    cost.kinds = 2
    found = search(
        graph, cost, strategy="concurrent", pruning=Pruning(1, 2), effort=Effort(bound_slack=0.8, tolerance=0.05)
    )

    assert len(found.schedule.blocks) == 1
    assert len(cost.again) == len(set(cost.again)) == found.remeasured


def test_greedy_stages_have_to_win_twice() -> None:
    class Flat(Corrected):
        def latency_us(self, names: frozenset[str], way: str = "concurrent") -> float:
            return 10.0

    wide = graph_of(31, [(index, 30) for index in range(30)])

    class SlowWhenWide(Flat):
        def remeasure(self, stage: Stage) -> float:
            return super().remeasure(stage) if len(stage.groups) > 8 else 10.0

    won = search(wide, Flat(0, 1.0), strategy="concurrent", max_states=100)
    lost = search(wide, SlowWhenWide(0, 30.0), strategy="concurrent", max_states=100)

    assert [len(stage.groups) for stage in won.schedule.stages] == [30, 1]
    assert max(len(stage.groups) for stage in lost.schedule.stages) <= 8
    assert lost.remeasured > 0


def test_an_answer_that_is_no_latency_is_refused() -> None:
    with pytest.raises(ValueError, match="cost model returned"):
        search(graph_of(2, []), Corrected(0, float("nan")))
