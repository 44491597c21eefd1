"""A latency that was measured while something else ran has a wide interval: it is asked for again if that may change
the schedule."""

from __future__ import annotations

import random

import pytest
from lane_costs import KeyedLanes, alone, cells

from iosched.scheduler.cost import Disturbable
from iosched.scheduler.effort import Effort
from iosched.scheduler.schedule import Stage
from iosched.scheduler.search import SearchResult, search

GRAPH = cells(2)
TRIES = 3
EFFORTS = (Effort(bound_slack=0.9, tolerance=0.01), Effort(exhaustive=True))


class Trusting(KeyedLanes):
    """Answers are wrong while the machine is disturbed: between 0.4 and 2.5 times the true latency."""

    def __init__(self, seed: int, disturbed: range) -> None:
        super().__init__(GRAPH, 8, 0.1)
        self.seed, self.disturbed, self.tries = seed, disturbed, 1
        self.known: dict[str, float] = {}
        self.doubted: set[str] = set()
        self.measured: list[str] = []

    def stage_latency_us(self, stage: Stage) -> float:
        key = self.signature(stage)
        if key not in self.known or (key in self.doubted and self.measured.count(key) < self.tries):
            lies = len(self.measured) in self.disturbed
            off = 2 ** random.Random(f"{self.seed} {len(self.measured)}").uniform(-1.3, 1.3) if lies else 1.0
            self.measured.append(key)
            self.known[key] = self.latency_us(stage) * off
            (self.doubted.add if lies else self.doubted.discard)(key)
        return self.known[key]

    def operator_latency_us(self, name: str) -> float:
        return self.stage_latency_us(alone(name))

    def operator_work_us(self, name: str) -> float:
        return min(2 * self.operator_latency_us(name), super().operator_work_us(name))

    def latency_us(self, stage: Stage) -> float:
        groups = [sum(map(super(Trusting, self).operator_work_us, group)) for group in stage.groups]
        noise = 1 + self.noise * random.Random(self.signature(stage)).random()
        return 4.0 + (max(max(groups), sum(groups) / 2) if len(groups) > 1 else groups[0] * 0.7) * noise

    def remeasure(self, stage: Stage) -> float:
        return self.latency_us(stage)


class Noticing(Trusting):
    """The same, but reports disturbances and the lowest possible latency of a stage."""

    low = 0.4

    def disturbed_low_us(self, stage: Stage) -> float | None:
        key = self.signature(stage)
        return self.low * self.known[key] if key in self.doubted and self.measured.count(key) < TRIES else None

    def try_again(self) -> None:
        self.tries = min(self.tries + 1, TRIES)


def searched(cost: Trusting, effort: Effort) -> SearchResult:
    return search(GRAPH, cost, strategy="concurrent", effort=effort)


def best_us(effort: Effort) -> float:
    return searched(Trusting(0, range(0)), effort).schedule.predicted_us or 0.0


@pytest.mark.slow
@pytest.mark.parametrize("effort", EFFORTS, ids=["lazy", "exhaustive"])
def test_a_disturbance_that_ends_costs_measurements_and_no_latency(effort: Effort) -> None:
    lost: dict[type[Trusting], list[float]] = {Trusting: [], Noticing: []}
    quiet = Trusting(0, range(0))
    searched(quiet, effort)
    for seed in range(10):
        for kind, losses in lost.items():
            cost = kind(seed, range(4, 16))
            found = searched(cost, effort)
            losses.append(cost.total_us(found.schedule) / best_us(effort) - 1)
            assert len(cost.measured) <= len(quiet.measured) * 1.5 + TRIES * 12
    assert isinstance(Noticing(0, range(0)), Disturbable)
    assert max(lost[Noticing]) <= 1e-9
    assert max(lost[Trusting]) > 0.01, "without noticing, schedules are worse"


@pytest.mark.parametrize("effort", EFFORTS, ids=["lazy", "exhaustive"])
def test_a_search_on_a_machine_that_is_never_quiet_ends(effort: Effort) -> None:
    cost = Noticing(1, range(10**6))
    found = searched(cost, effort)
    assert found.schedule.predicted_us is not None
    assert max(cost.measured.count(key) for key in cost.measured) == TRIES


def test_narrower_intervals_cause_fewer_repeats() -> None:
    asked = []
    for low in (0.4, 0.95):
        cost = Noticing(1, range(10**6))
        cost.low = low
        searched(cost, EFFORTS[0])
        asked.append({key for key in cost.measured if cost.measured.count(key) > 1})
    assert asked[1] < asked[0]


def test_repeats_do_not_count_towards_the_limit_of_measurements() -> None:
    limited = Effort(bound_slack=0.9, tolerance=0.01, max_measurements=8)
    for seed in range(1, 9):
        noticing, trusting = (kind(seed, range(10**6)) for kind in (Noticing, Trusting))
        for cost in (noticing, trusting):
            searched(cost, limited)
        assert len(noticing.measured) > len(set(noticing.measured))
        assert abs(len(set(noticing.measured)) - len(set(trusting.measured))) <= 2, "a round may exceed the limit"


@pytest.mark.slow
def test_a_deadline_amid_repeats_loses_no_latency() -> None:
    whole = Noticing(1, range(10**6))
    searched(whole, EFFORTS[0])
    for last in range(20, len(whole.measured)):
        cost = Noticing(1, range(10**6))
        found = search(
            *(GRAPH, cost),
            strategy="concurrent",
            effort=EFFORTS[0],
            deadline=lambda cost=cost, last=last: len(cost.measured) >= last,  # type: ignore[misc]
        )
        assert found.schedule.predicted_us is not None


def test_other_blocks_come_before_a_stage_is_measured_again() -> None:
    """The disturbance ends with the first block: its wrong answers are asked for again after the second block."""
    graph = cells(2, 4)
    first, last = ({str(index) for index in range(start, start + 8)} for start in (0, 8))
    asked: list[frozenset[str]] = []

    class Watched(KeyedLanes):
        def operator_key(self, name: str) -> str:
            return name  # no two operators are alike, so each block is searched

        def stage_latency_us(self, stage: Stage) -> float:
            asked.append(frozenset(stage.operators))
            return self.latency_us(stage)

        def disturbed_low_us(self, stage: Stage) -> float | None:
            is_first = asked.count(frozenset(stage.operators)) == 1 and first >= set(stage.operators)
            return 0.4 * self.latency_us(stage) if is_first else None

        def try_again(self) -> None:
            pass

    search(graph, Watched(graph), strategy="concurrent")
    again = [place for place, names in enumerate(asked) if names in asked[:place]]
    assert again
    assert min(again) > max(place for place, names in enumerate(asked) if last >= names)


def test_nothing_is_asked_twice_without_disturbances() -> None:
    for effort in EFFORTS:
        noticing, trusting = Noticing(0, range(0)), Trusting(0, range(0))
        assert searched(noticing, effort) == searched(trusting, effort)
        assert noticing.measured == trusting.measured
        assert len(set(noticing.measured)) == len(noticing.measured)
