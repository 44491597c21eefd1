"""The latency of a stage that is too slow to matter may be rough: the search sets the limit and loses nothing."""

from __future__ import annotations

import random

import pytest
from by_definition import TableCost, dags
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_costs import KeyedLanes, NoisyLanes, cells

from iosched.models.graph import ComputationGraph
from iosched.scheduler.effort import Effort
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage
from iosched.scheduler.search import search

GRAPH = cells(2)


def curtailed_us(latency_us: float, worse_than_us: float) -> float:
    """As rough as allowed: hardly more than the limit."""
    return latency_us if latency_us <= worse_than_us else worse_than_us + (latency_us - worse_than_us) * 1e-6


class CurtailedTable(TableCost):
    """A table whose answers are as rough as allowed."""

    cut = 0

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        latency_us = self.stage_latency_us(stage)
        self.cut += latency_us > worse_than_us
        return curtailed_us(latency_us, worse_than_us)


class CurtailedLanes(KeyedLanes):
    """The same for two lanes, with equal operators and groups that bound stages."""

    cut = 0

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        latency_us = self.stage_latency_us(stage)
        self.cut += latency_us > worse_than_us
        return curtailed_us(latency_us, worse_than_us)


@given(
    dags(7), st.integers(0, 10**6), st.sampled_from([Pruning(3, 8), Pruning(2, 3)]), st.sampled_from([0.5, 0.8, 1.0])
)
def test_the_schedule_is_as_good_as_if_all_were_known(
    graph: ComputationGraph, seed: int, pruning: Pruning, bound_factor: float
) -> None:
    plain = search(graph, TableCost(seed, bound_factor), strategy="concurrent", pruning=pruning)
    found = search(graph, CurtailedTable(seed, bound_factor), strategy="concurrent", pruning=pruning)
    assert found.schedule.predicted_us == plain.schedule.predicted_us
    assert found.proven == plain.proven


@settings(max_examples=15)
@given(dags(7), st.integers(1, 4), st.sampled_from([0.0, 0.2]), st.sampled_from([0.8, 1.0]))
def test_rough_latencies_lead_to_an_equally_good_schedule_with_operator_bounds(
    graph: ComputationGraph, kinds: int, noise: float, slack: float
) -> None:
    effort = Effort(bound_slack=slack)
    plain = search(graph, KeyedLanes(graph, kinds, noise), strategy="concurrent", effort=effort)
    found = search(graph, CurtailedLanes(graph, kinds, noise), strategy="concurrent", effort=effort)
    assert found.schedule.predicted_us == pytest.approx(plain.schedule.predicted_us, rel=1e-12)
    assert found.lower_bound_us == pytest.approx(plain.lower_bound_us, rel=1e-6)


def test_many_latencies_may_be_rough() -> None:
    cost = CurtailedLanes(GRAPH, 8, 0.1)
    search(GRAPH, cost, strategy="concurrent", effort=Effort(bound_slack=0.8))
    assert cost.cut >= 10


def test_an_exhaustive_search_gets_no_rough_latencies() -> None:
    cost = CurtailedLanes(GRAPH, 8, 0.1)
    search(GRAPH, cost, strategy="concurrent", effort=Effort(exhaustive=True))
    assert cost.cut == 0


class CurtailedNoise(NoisyLanes):
    """Rough latencies are cut off by noise too, and differ each time."""

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        latency_us = self.stage_latency_us(stage)
        if latency_us <= worse_than_us:
            return latency_us
        return worse_than_us + (latency_us - worse_than_us) * random.Random(str(worse_than_us)).random()


@pytest.mark.parametrize("seed", range(6))
def test_under_noise_the_schedule_is_made_of_stages_that_were_measured_twice(seed: int) -> None:
    effort = Effort(bound_slack=0.8, tolerance=0.02)
    cost, plain = CurtailedNoise(GRAPH, seed), NoisyLanes(GRAPH, seed)
    found, known = (search(GRAPH, each, strategy="concurrent", effort=effort) for each in (cost, plain))
    assert {cost.signature(stage) for stage in found.schedule.stages} <= set(cost.again)
    assert cost.total_us(found.schedule) <= plain.total_us(known.schedule) * 1.03
