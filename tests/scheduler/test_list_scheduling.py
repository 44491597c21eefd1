"""List scheduling makes schedules that can start and that take the expected time."""

from __future__ import annotations

import random
from collections.abc import Mapping
from itertools import permutations, product

import pytest
from by_definition import TableCost, dags, graph_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.graph import ComputationGraph
from iosched.scheduler import list_scheduling
from iosched.scheduler.document import check_operators
from iosched.scheduler.list_scheduling import HANDOVER_US, LaneTimes, in_lanes, lane_times, listed
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.start_order import start_order

Groups = tuple[tuple[str, ...], ...]


def drawn_us(graph: ComputationGraph, seed: int) -> dict[str, float]:
    draw = random.Random(seed)
    return {name: draw.choice([0.0, 1.0, 2.0, 5.0, 20.0]) for name in graph.by_name}


def length_us(graph: ComputationGraph, groups: Groups, latency_us: Mapping[str, float]) -> float:
    """The end of the last operator if each starts as soon as its lane and its inputs are available."""
    lane_of = {name: lane for lane, group in enumerate(groups) for name in group}
    free_us, end_us = dict.fromkeys(lane_of.values(), 0.0), dict[str, float]()
    for name in start_order(graph, Stage(Strategy.LANES, groups)):
        lane = lane_of[name]
        inputs_us = [
            end_us[other] + (HANDOVER_US if lane_of[other] != lane else 0.0) for other in graph.predecessors[name]
        ]
        end_us[name] = free_us[lane] = max([free_us[lane], *inputs_us]) + latency_us[name]
    return max(end_us.values(), default=0.0)


@given(dags(), st.integers(1, 4), st.integers(0, 999))
def test_a_schedule_takes_the_expected_time(graph: ComputationGraph, lanes: int, seed: int) -> None:
    latency_us = drawn_us(graph, seed)
    groups, expected_us = listed(graph, latency_us, lanes)
    assert 1 <= len(groups) <= lanes
    assert sorted(name for group in groups for name in group) == sorted(graph.by_name)
    assert length_us(graph, groups, latency_us) == pytest.approx(expected_us)
    assert expected_us <= sum(latency_us.values()) + HANDOVER_US * len(graph.by_name)


@given(dags(4), st.integers(0, 999))
def test_list_scheduling_is_never_better_than_brute_force(graph: ComputationGraph, seed: int) -> None:
    """List scheduling is a heuristic: it never beats the best of all schedules, and one lane has the sum."""
    latency_us = drawn_us(graph, seed)
    names = list(graph.by_name)

    def every() -> list[Groups]:
        orders = [
            o for o in permutations(names) if all(o.index(p) < o.index(n) for n in o for p in graph.predecessors[n])
        ]
        return [
            tuple(tuple(n for n in order if chosen[names.index(n)] == lane) for lane in range(2) if lane in chosen)
            for order, chosen in product(orders, product(range(2), repeat=len(names)))
        ]

    best_us = min(length_us(graph, groups, latency_us) for groups in every())
    assert listed(graph, latency_us, 2)[1] >= best_us - 1e-9
    assert listed(graph, latency_us, 1)[1] == pytest.approx(sum(latency_us.values()))


def test_the_longest_path_comes_first_and_gaps_are_filled() -> None:
    """0 -> 1 -> 4 takes long; 2 and 3 fit beside it, 3 into the gap while lane 1 would wait for 4."""
    graph = graph_of(5, [(0, 1), (0, 2), (1, 4), (2, 4)])
    groups, expected_us = listed(graph, {"0": 1.0, "1": 10.0, "2": 2.0, "3": 2.0, "4": 1.0}, 2)
    assert groups == (("0", "1", "4"), ("3", "2"))
    assert expected_us == 12.0


@given(dags(), st.integers(2, 9), st.integers(0, 99))
def test_no_block_takes_longer_than_one_operator_after_another(graph: ComputationGraph, lanes: int, seed: int) -> None:
    latency_us = drawn_us(graph, seed)
    times = LaneTimes(lanes, lambda name: latency_us[name] * 1.5, latency_us.__getitem__)
    found = in_lanes(graph, times)
    check_operators(found, graph)
    assert [block.index for block in found.blocks] == list(range(len(found.blocks)))
    assert (found.predicted_us or 0.0) <= sum(latency_us.values()) + 1e-9


def test_a_chain_stays_one_operator_after_another() -> None:
    graph = graph_of(3, [(0, 1), (1, 2)])
    found = in_lanes(graph, LaneTimes(2, lambda _: 2.0, lambda _: 1.0))
    assert {stage.strategy for stage in found.stages} == {Strategy.CONCURRENT}
    assert found.predicted_us == 3.0


def test_the_number_of_lanes_has_the_least_computed_latency() -> None:
    graph = graph_of(4, [])
    times = LaneTimes(4, lambda _: 1.0, lambda _: 9.0, lambda stage: {2: 5.0, 3: 4.0, 4: 6.0}[len(stage.groups)])
    (stage,) = in_lanes(graph, times).stages
    assert (len(stage.groups), stage.predicted_us) == (3, 4.0)


class Bounded(TableCost):
    """A device that bounds stages by operators, as those do that measure."""

    def __init__(self, lanes: int) -> None:
        super().__init__(1)
        self.lanes = lanes

    def operator_latency_us(self, name: str) -> float:
        return 2.0 + len(name)

    def operator_work_us(self, name: str) -> float:
        return 3.0 + len(name)


def test_only_the_analytic_model_computes_stages_of_lanes() -> None:
    """Expected latencies ignore that lanes slow each other: they do not compete with computed ones."""
    computed, gpu, cpu = map(lane_times, (TableCost(1), Bounded(1), Bounded(4)))
    assert computed.stage_us is not None
    assert (computed.lanes, gpu.lanes, cpu.lanes) == (list_scheduling._STREAMS, list_scheduling._STREAMS, 4)
    assert gpu.stage_us is cpu.stage_us is None
    assert (cpu.on_lane_us("a"), cpu.alone_us("a")) == (4.0, 3.0)
    assert gpu.on_lane_us("a") == gpu.alone_us("a") != 4.0
