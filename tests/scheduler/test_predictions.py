"""A search that predicts stages: its results, its measurements and the limits of its claims."""

from __future__ import annotations

import random

import numpy as np
import pytest
from by_definition import dags, graph_of
from hypothesis import given
from hypothesis import strategies as st
from lane_costs import KeyedLanes, Lanes, Noted, cells, makespans_of

from iosched.models.graph import ComputationGraph
from iosched.scheduler.effort import Effort
from iosched.scheduler.exploration import LIKELY, OPTIMISTIC, factors
from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import build, popcount, relation
from iosched.scheduler.pruning import NO_PRUNING
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import SearchResult, search
from iosched.scheduler.strategies import masks_of

PLAIN = Effort(bound_slack=0.95, tolerance=0.015, max_measurements=80)
PREDICTS = PLAIN.with_gap(None)


class Predicted(KeyedLanes):
    """Stages take up to a given share more than predicted from their operators, by their signature."""

    def latency_us(self, stage: Stage) -> float:
        groups = [sum(map(self.operator_work_us, group)) for group in stage.groups]
        predicted = float(makespans_of(groups)) if len(groups) > 1 else groups[0] * 0.7
        exact = len(stage.operators) == 1
        return predicted * (1 if exact else 1 + self.noise * random.Random(self.signature(stage)).random())


class Stored(Predicted):
    """First answers depend on their order and are stored; so are repeated measurements."""

    def __init__(self, graph: ComputationGraph, kept: dict[tuple[str, str], float]) -> None:
        super().__init__(graph, kinds=5, noise=0.1)
        self.kept = kept

    def stage_latency_us(self, stage: Stage) -> float:
        return self._kept_us("first", stage, 0.06)

    def remeasure(self, stage: Stage) -> float:
        return self._kept_us("again", stage, 0.02)

    def _kept_us(self, which: str, stage: Stage, spread: float) -> float:
        key = (which, self.signature(stage))
        if key not in self.kept:
            self.asked.append(key[1])
            self.kept[key] = self.latency_us(stage) * random.Random(len(self.kept)).gauss(1, spread)
        return self.kept[key]


def searched(graph: ComputationGraph, cost: Lanes, effort: Effort = PREDICTS) -> SearchResult:
    return search(graph, cost, strategy="concurrent", pruning=NO_PRUNING, effort=effort)


@given(dags(8), st.integers(1, 8), st.sampled_from([0.0, 0.1, 0.3]))
def test_the_loss_is_at_most_the_prediction_error_and_the_gap(
    graph: ComputationGraph, kinds: int, noise: float
) -> None:
    found = searched(graph, Predicted(graph, kinds, noise), Effort(bound_slack=0.95, gap=0.02)).schedule.predicted_us
    best = searched(graph, Predicted(graph, kinds, noise), Effort(exhaustive=True)).schedule.predicted_us

    assert found is not None
    assert best is not None
    assert best * (1 - 1e-9) <= found <= best * max(1 + noise, 1.01) / 0.98 * (1 + 1e-9)


@pytest.mark.slow
def test_on_average_little_is_lost_with_half_the_measurements() -> None:
    """Every stage takes up to 12 % more than predicted, so bounds rule out little."""
    losses, measured = [], {0: 0, 2: 0}
    for seed in range(12):
        rng = random.Random(seed)
        edges = [(first, last) for last in range(1, 10) for first in range(last) if rng.random() < 0.25]
        graph = graph_of(10, edges)
        plain, predicting = (searched(graph, Predicted(graph, 7, 0.12), PLAIN.with_gap(gap)) for gap in (0, 2))
        measured[0] += plain.measured
        measured[2] += predicting.measured
        losses.append((predicting.schedule.predicted_us or 0.0) / (plain.schedule.predicted_us or 1.0) - 1)

    assert measured[2] < measured[0] / 2
    assert np.mean(losses) < 0.015


@given(dags(8), st.integers(0, 99))
def test_factors_depend_on_the_measurements_and_not_on_their_order(graph: ComputationGraph, seed: int) -> None:
    def known(order: list[int]) -> KnownLatencies:
        names = tuple(operator.name for operator in graph.operators)
        lattice = build(relation(graph, names), NO_PRUNING)
        cost = Predicted(graph, 4, 0.3)
        found = KnownLatencies.start(cost, names, lattice, masks_of(graph, names, (Strategy.CONCURRENT,)))
        found.fill_bounds(lambda: False)
        for place in order:
            found.measure(place % len(lattice.stages))
        return found

    order = random.Random(seed).choices(range(1000), k=12)
    one, other = known(order), known(order[::-1])
    for share in (LIKELY, OPTIMISTIC):
        assert (factors(one, share, 0.95) == factors(other, share, 0.95)).all()
        assert factors(one, share, 0.95).min() >= 0.95
    several = popcount(one.lattice.stages) > 1
    assert (factors(one, OPTIMISTIC, 0.95)[~several] == 0.95).all()


@given(dags(7), st.booleans())
def test_a_second_search_finds_the_same_without_measurements(graph: ComputationGraph, holds_more: bool) -> None:
    """Other entries of the database change nothing."""
    kept: dict[tuple[str, str], float] = {}
    first = searched(graph, Stored(graph, kept))
    if holds_more:
        searched(graph, Stored(graph, kept), PREDICTS.exhausted())
    cost = Stored(graph, kept)

    assert searched(graph, cost) == first
    assert not cost.asked


@given(dags(6), st.integers(2, 8))
def test_prefetched_rounds_change_nothing(graph: ComputationGraph, kinds: int) -> None:
    plain, cost = (Predicted(graph, kinds, 0.3) for _ in range(2))
    ahead = Noted(())

    expected = search(graph, plain, effort=PREDICTS, strategy="concurrent")
    assert search(graph, cost, effort=PREDICTS, strategy="concurrent", ahead=ahead) == expected
    assert sorted(cost.asked) == sorted(plain.asked)
    assert ahead.rounds


@given(dags(8))
def test_no_latency_of_the_schedule_is_a_prediction(graph: ComputationGraph) -> None:
    kept: dict[tuple[str, str], float] = {}
    cost = Stored(graph, kept)
    found = searched(graph, cost)

    for stage in found.schedule.stages:
        assert stage.predicted_us == kept["again", cost.signature(stage)]


def test_a_search_with_predictions_proves_nothing() -> None:
    graph = graph_of(8, [])
    cost = Predicted(graph, 5, 0.3)
    found = searched(graph, cost)

    assert found.proven is None
    assert not any(block.optimal for block in found.schedule.blocks)
    assert found.predicted_gap is not None
    assert found.predicted_gap <= 0.02 < found.gap
    predicted = found.schedule.predicted_us or 0.0
    assert found.lower_bound_us < (found.predicted_least_us or 0.0) <= predicted
    exact = searched(graph, Predicted(graph, 5, 0.3), Effort(exhaustive=True)).schedule.predicted_us or 0.0
    assert found.lower_bound_us <= exact


def test_without_a_gap_nothing_is_predicted() -> None:
    found = searched(cells(1), Predicted(cells(1), 5, 0.3), PLAIN)
    assert found.predicted_gap is None


def test_a_chain_is_proven_by_bounds() -> None:
    """Operators one after another gain nothing in one stage, so only the tolerance is open."""
    found = search(graph_of(1, []), Predicted(graph_of(1, [])), effort=PREDICTS)
    assert (found.proven, found.gap, found.predicted_gap) == ("whole", 0, 0)


def test_several_groups_are_not_predicted_if_the_work_of_operators_is_unknown() -> None:
    class Gpu(Predicted):
        def operator_work_us(self, name: str) -> float:
            return 0.0

    graph = graph_of(5, [(0, 1), (2, 3)])
    names = tuple(operator.name for operator in graph.operators)
    lattice = build(relation(graph, names), NO_PRUNING)
    known = KnownLatencies.start(Gpu(graph), names, lattice, masks_of(graph, names, (Strategy.CONCURRENT,)))
    known.fill_bounds(lambda: False)
    predicted = factors(known, LIKELY, 0.9) != 0.9

    assert {tuple(map(len, known.stage(int(each)).groups)) for each in np.flatnonzero(predicted)} == {(2,)}


@pytest.mark.parametrize(("percent", "gap"), [(None, 0.02), (0, 0.0), (5.0, 0.05)])
def test_a_gap_changes_nothing_else_of_an_effort(percent: float | None, gap: float) -> None:
    effort = PLAIN.with_gap(percent)
    assert effort == Effort(bound_slack=0.95, tolerance=0.015, gap=gap, max_measurements=80)
    assert effort.exhausted() == PLAIN.exhausted()
    assert (effort == PLAIN) == (gap == 0)
