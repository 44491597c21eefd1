"""The best schedule for another placement of an operator is the best of all with that placement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
from by_definition import TableCost, dags, graph_of, schedules_of
from hypothesis import given
from hypothesis import strategies as st

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.scheduler.alternatives import OtherPlacement, StagePlacement, operator_placement
from iosched.scheduler.baselines import greedy, one_session, sequential
from iosched.scheduler.blocks import partition
from iosched.scheduler.effort import Effort
from iosched.scheduler.pruning import NO_PRUNING, Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import search

PRUNINGS = [Pruning(3, 8), Pruning(1, 2), Pruning(2, 3), NO_PRUNING]
Stages = tuple[frozenset[str], ...]


class PartlyKnown(TableCost):
    """Knows the latencies of only some stages."""

    def __init__(self, seed: int, bound_factor: float, known_share: float = 1.0) -> None:
        super().__init__(seed, bound_factor)
        self.known_share = known_share

    def known_us(self, stage: Stage) -> float | None:
        one_of_hundred = self.latency_us(frozenset(stage.operators), "known") * 7 % 100
        return self.stage_latency_us(stage) if one_of_hundred < 100 * self.known_share else None


def explained_all(graph: ComputationGraph, schedule: Schedule, operator: str, cost: PartlyKnown) -> StagePlacement:
    return operator_placement(graph, schedule, operator, cost, cost.known_us, strategy="concurrent", pruning=NO_PRUNING)


def holding(schedule: Stages, operator: str) -> frozenset[str]:
    return next(stage for stage in schedule if operator in stage)


def is_there(placement: OtherPlacement, block: Block, number: int, operator: str) -> Callable[[frozenset[str]], bool]:
    """Whether the stage of the operator matches the placement, by definition."""
    now = frozenset(block.stages[number].operators)
    if placement.kind == "alone":
        return lambda stage: stage == {operator}
    if placement.kind == "fewer":
        return lambda stage: {operator} < stage < now
    assert placement.stage is not None
    other = frozenset(block.stages[placement.stage].operators)
    return lambda stage: bool(stage & other)


def every(graph: ComputationGraph, seed: int, pruning: Pruning, operator: str) -> Iterator[tuple[Stages, float]]:
    """Every schedule of the operator's block with its latency, by brute force."""
    names = next(frozenset(part.operators) for part in partition(graph) if operator in part.operators)
    cost = TableCost(seed)
    for schedule in schedules_of(graph, names, pruning.r, pruning.s):
        yield schedule[::-1], sum(map(cost.latency_us, schedule))


def explained(
    graph: ComputationGraph, schedule: Schedule, cost: PartlyKnown, pruning: Pruning, operator: str
) -> tuple[StagePlacement, Block]:
    found = operator_placement(graph, schedule, operator, cost, cost.known_us, strategy="concurrent", pruning=pruning)
    block = next(block for block in schedule.blocks if block.index == found.block)
    return found, block


@given(dags(6), st.integers(0, 10**6), st.sampled_from(PRUNINGS), st.sampled_from([0.0, 0.7, 1.0]), st.data())
def test_every_placement_is_the_best_of_all_schedules_that_have_it(
    graph: ComputationGraph, seed: int, pruning: Pruning, bound_factor: float, data: st.DataObject
) -> None:
    operator = data.draw(st.sampled_from([each.name for each in graph.operators]))
    cost = PartlyKnown(seed, bound_factor)
    schedule = search(graph, cost, strategy="concurrent", pruning=pruning).schedule
    found, block = explained(graph, schedule, cost, pruning, operator)
    schedules = list(every(graph, seed, pruning, operator))
    assert found.present_us == min(latency for _, latency in schedules)
    for placement in found.others:
        there = is_there(placement, block, found.stage, operator)
        least = min((us for stages, us in schedules if there(holding(stages, operator))), default=math.inf)
        assert placement.at_least_us == placement.at_most_us == least
        assert placement.possible == math.isfinite(least)
        if placement.possible:
            stages = tuple(frozenset(stage.operators) for stage in placement.stages)
            assert (stages, least) in schedules
            assert there(holding(stages, operator))
            assert sum(stage.predicted_us or 0.0 for stage in placement.stages) == least


@given(dags(6), st.integers(0, 10**6), st.sampled_from([0.0, 0.7, 1.0]), st.sampled_from([0.0, 0.3, 0.8]), st.data())
def test_partly_known_latencies_give_two_bounds(
    graph: ComputationGraph, seed: int, bound_factor: float, known_share: float, data: st.DataObject
) -> None:
    operator = data.draw(st.sampled_from([each.name for each in graph.operators]))
    cost, pruning = PartlyKnown(seed, bound_factor, known_share), Pruning(2, 3)
    schedule = greedy(graph)
    found, block = explained(graph, schedule, cost, pruning, operator)
    names = frozenset(name for stage in found.stages for name in stage.operators)
    table = TableCost(seed)
    schedules = [(way[::-1], sum(map(table.latency_us, way))) for way in schedules_of(graph, names, 2, 3)]
    known = {stages: us for stages, us in schedules if all(cost_knows(cost, stage) for stage in stages)}
    for placement in found.others:
        there = is_there(placement, block, found.stage, operator)
        least = min((us for stages, us in schedules if there(holding(stages, operator))), default=math.inf)
        most = min((us for stages, us in known.items() if there(holding(stages, operator))), default=math.inf)
        assert placement.at_least_us <= least <= placement.at_most_us
        assert placement.at_most_us == most


def cost_knows(cost: PartlyKnown, names: frozenset[str]) -> bool:
    return cost.known_us(Stage(Strategy.CONCURRENT, tuple((name,) for name in sorted(names)))) is not None


def test_the_placements_cover_every_other_stage_that_the_operator_could_be_in() -> None:
    graph = graph_of(5, [])
    schedule = greedy(graph)  # all five in one stage
    found = explained_all(graph, schedule, "2", PartlyKnown(1, 0.5))
    assert [placement.kind for placement in found.others] == ["alone", "fewer"]
    found = explained_all(graph, sequential(graph), "2", PartlyKnown(1, 0.5))
    assert [(placement.kind, placement.stage) for placement in found.others] == [
        ("with_stage", 0), ("with_stage", 1), ("with_stage", 3), ("with_stage", 4),
    ]  # fmt: skip


def test_less_than_half_of_the_stages_are_asked_for() -> None:
    graph = graph_of(8, [(0, 4), (1, 5), (2, 6), (3, 7)])
    cost = PartlyKnown(3, 1.0)
    explained_all(graph, greedy(graph), "5", cost)
    everything = search(
        graph, TableCost(3), strategy="concurrent", pruning=NO_PRUNING, effort=Effort(exhaustive=True)
    ).stages
    assert len(cost.asked) < everything / 2


def test_stages_of_a_baseline_are_weighed_within_the_block_that_a_search_would_make() -> None:
    graph = graph_of(7, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)])
    parts = [part.operators for part in partition(graph)]
    assert len(parts) > 1
    for part in parts:
        found = explained_all(graph, sequential(graph), part[-1], PartlyKnown(1, 0.5))
        assert tuple(name for stage in found.stages for name in stage.operators) == part


def test_a_block_that_is_too_wide_is_weighed_around_the_operators_stage() -> None:
    graph, cost = graph_of(12, []), PartlyKnown(1, 0.5)
    found = operator_placement(graph, sequential(graph), "6", cost, cost.known_us, strategy="concurrent", max_states=64)
    assert found.last_stage - found.first_stage + 1 == 6
    assert found.first_stage <= found.stage <= found.last_stage
    assert all(found.first_stage <= (placement.stage or 6) <= found.last_stage for placement in found.others)


def test_no_other_placement_is_searched_if_the_stage_has_too_many_states() -> None:
    graph, cost = graph_of(12, []), PartlyKnown(1, 0.5)
    found = operator_placement(graph, greedy(graph), "6", cost, cost.known_us, strategy="concurrent", max_states=64)
    assert (found.others, found.verdict(0.05)) == ((), "too_wide")
    assert found.present_us == cost.latency_us(frozenset(found.present.operators))


def test_an_operator_that_is_not_scheduled_is_refused() -> None:
    graph = graph_of(2, [])
    with pytest.raises(UsageError, match="no operator '9'"):
        explained_all(graph, greedy(graph), "9", PartlyKnown(1, 0.5))


def beside(*others: tuple[float, float], present_us: float | None = 100.0) -> StagePlacement:
    """A placement that takes `present_us`, and others with their least and greatest latency."""
    stage = Stage(Strategy.CONCURRENT, (("a",),))
    placements = tuple(OtherPlacement("with_stage", 0, True, low, high, (stage,)) for low, high in others)
    barred = OtherPlacement("alone", None, False, 1.0, 1.0, ())
    return StagePlacement("a", 0, 0, 0, 0, (stage,), present_us, (barred, *placements))


@pytest.mark.parametrize(
    ("explanation", "verdict"),
    [
        (beside(), "only_place"),
        (beside((110.0, 110.0), present_us=None), "unknown"),
        (beside((106.0, 120.0), (107.0, 107.0)), "best"),
        (beside((104.0, 120.0), (107.0, 107.0)), "as_good"),
        (beside((100.0, 100.0)), "as_good"),
        (beside((90.0, 94.0)), "worse"),
        (beside((90.0, 96.0)), "within_tolerance"),
        (beside((90.0, 100.0)), "undecided"),
        (beside((90.0, math.inf), (91.0, 91.0)), "undecided"),
    ],
)
def test_a_placement_is_compared_with_the_best_possible_other(explanation: StagePlacement, verdict: str) -> None:
    assert explanation.verdict(0.05) == verdict


def test_all_present_stages_are_asked_for_even_if_the_first_is_unknown() -> None:
    graph = graph_of(3, [(0, 1), (1, 2)])
    asked: list[tuple[str, ...]] = []

    def unknown(stage: Stage) -> None:
        asked.append(stage.operators)

    found = operator_placement(graph, sequential(graph), "1", PartlyKnown(1, 0.0), unknown)
    assert found.present_us is None
    assert asked[:3] == [("0",), ("1",), ("2",)]


@given(dags(6), st.integers(0, 10**6), st.sampled_from(PRUNINGS), st.sampled_from([0.0, 0.7, 1.0]), st.data())
def test_a_session_is_compared_as_a_whole_with_the_best_stages(
    graph: ComputationGraph, seed: int, pruning: Pruning, bound_factor: float, data: st.DataObject
) -> None:
    operator = data.draw(st.sampled_from([each.name for each in graph.operators]))
    cost = PartlyKnown(seed, bound_factor)
    (session,) = one_session(graph).stages
    found, _ = explained(graph, Schedule((Block(0, (session,)),)), cost, pruning, operator)
    assert (found.present, found.present_us) == (session, cost.stage_latency_us(session))
    (instead,) = found.others
    least = sum(min(us for _, us in every(graph, seed, pruning, part.operators[0])) for part in partition(graph))
    assert (instead.kind, instead.at_least_us, instead.at_most_us) == ("by_stages", least, least)
    assert sum(stage.predicted_us or 0.0 for stage in instead.stages) == least
    assert sorted(name for stage in instead.stages for name in stage.operators) == sorted(session.operators)


def test_a_session_of_some_blocks_is_weighed_without_the_others() -> None:
    graph = graph_of(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    session = Stage(Strategy.SESSION, (("1", "2"),))
    around = [Block(index, (Stage(Strategy.CONCURRENT, ((name,),)),)) for index, name in ((0, "0"), (2, "3"), (3, "4"))]
    schedule = Schedule((around[0], Block(1, (session,)), *around[1:]))
    found = explained_all(graph, schedule, "2", PartlyKnown(1, 0.5))
    assert [name for stage in found.others[0].stages for name in stage.operators] == ["1", "2"]


def test_unknown_stages_of_a_session_leave_bounds() -> None:
    graph, cost = graph_of(3, [(0, 1), (1, 2)]), PartlyKnown(1, 1.0, 0.0)
    schedule = one_session(graph)
    (instead,) = explained_all(graph, schedule, "1", cost).others
    assert (instead.at_most_us, instead.stages) == (math.inf, ())
    assert 0 < instead.at_least_us < math.inf
