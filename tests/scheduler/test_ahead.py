"""A search announces whole rounds of questions before it asks them; prefetched answers change nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import onnx
import pytest
from by_definition import TableCost, dags, graph_of
from hypothesis import given
from hypothesis import strategies as st
from lane_costs import CurtailedLanes, FixedLanes, KeptLanes, Key, NoisyLanes, Noted, alone, cells
from small_models import loaded, models

from iosched.models.graph import ComputationGraph
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.gpus import gpu_named
from iosched.scheduler.cost import CostQuestion, Prefetchable, announce, ask, operator_question
from iosched.scheduler.effort import Effort
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.search import search

EFFORTS = [
    Effort(),
    Effort(bound_slack=0.8, tolerance=0.02),
    Effort(bound_slack=0.9, max_measurements=4, remeasure_rounds=2),
    Effort(exhaustive=True, tolerance=0.05),
    Effort(bound_slack=0.95, tolerance=0.015, gap=0.02, max_measurements=12),
]
FEW_STATES = [8000, 12]
"""The smallest makes random graphs wide, so that their blocks are compared with stages across their cuts."""


def of_models(proto: onnx.ModelProto) -> ComputationGraph:
    return loaded(proto).graph


CHAINS = graph_of(9, [(first, first + 1) for first in (0, 2, 4, 6)] + [(last, 8) for last in (1, 3, 5, 7)])
"""Four equal groups."""

graphs = st.one_of(dags(8), models(9).map(of_models), st.sampled_from([cells(1), cells(3), CHAINS]))
costs = st.sampled_from([FixedLanes, CurtailedLanes])


@pytest.mark.slow
@given(graphs, costs, st.integers(0, 99), st.sampled_from(EFFORTS), st.sampled_from(FEW_STATES))
def test_announcing_changes_neither_questions_nor_result(
    graph: ComputationGraph, kind: type[FixedLanes], seed: int, effort: Effort, max_states: int
) -> None:
    plain, cost = kind(graph, seed), kind(graph, seed)
    expected = search(graph, plain, effort=effort, max_states=max_states)
    found = search(graph, cost, effort=effort, max_states=max_states, ahead=Noted(cost.asked))

    assert found == expected
    assert Counter(cost.asked) == Counter(plain.asked)


@pytest.mark.slow
@given(graphs, costs, st.integers(0, 99), st.sampled_from(EFFORTS), st.sampled_from(FEW_STATES))
def test_announced_questions_are_asked_unless_an_answer_rules_them_out(
    graph: ComputationGraph, kind: type[FixedLanes], seed: int, effort: Effort, max_states: int
) -> None:
    cost = kind(graph, seed)
    ahead = Noted(cost.asked)
    search(graph, cost, effort=effort, max_states=max_states, ahead=ahead)

    assert ahead.starts[0] == 0
    known: set[Key] = set()
    for handed, asked in zip(ahead.rounds, ahead.asked_after(), strict=True):
        left = {(each.stage, each.kind): each.worse_than_us for each in handed}
        assert len(left) == len(handed)
        for question in asked:
            limit_us = left.pop((question.stage, question.kind), None)
            if limit_us is None:  # bounds across cuts ask for operators once more
                assert cost.key(question) in known
            else:
                assert question.worse_than_us <= limit_us
        known.update(map(cost.key, handed))
        answered = {frozenset(question.stage.operators) for question in asked}
        by_another_strategy = all(frozenset(stage.operators) in answered for stage, _ in left)
        assert by_another_strategy or (max_states < 100 and asked)  # a whole schedule across cuts


@pytest.mark.slow
@given(models(9).map(of_models), st.integers(0, 99), st.sampled_from(EFFORTS), st.sampled_from(FEW_STATES))
def test_prefetched_answers_change_neither_questions_nor_result(
    graph: ComputationGraph, seed: int, effort: Effort, max_states: int
) -> None:
    """A cost model that can prefetch is sent questions without a separate argument."""
    plain, cost = FixedLanes(graph, seed), KeptLanes(graph, seed)
    expected = search(graph, plain, effort=effort, max_states=max_states)

    assert search(graph, cost, effort=effort, max_states=max_states) == expected
    assert Counter(cost.asked) == Counter(plain.asked)


@given(models(9).map(of_models), st.sampled_from([Pruning(3, 8), Pruning(1, 2)]))
def test_announcing_keeps_the_schedule_of_the_analytic_model(graph: ComputationGraph, pruning: Pruning) -> None:
    v100 = gpu_named("v100")
    assert v100 is not None
    cost = AnalyticCost(graph, v100)
    ahead = Noted(())
    assert search(graph, cost, pruning=pruning, ahead=ahead) == search(graph, cost, pruning=pruning)
    assert ahead.rounds


@pytest.mark.parametrize("bound_factor", [0.0, 0.9])
def test_a_cost_model_without_optional_parts_is_asked_only_for_stages(bound_factor: float) -> None:
    graph = graph_of(7, [(0, 3), (1, 3), (2, 4), (3, 5), (4, 5), (4, 6)])
    plain, cost = TableCost(3, bound_factor), TableCost(3, bound_factor)
    ahead = Noted(())
    assert search(graph, cost, ahead=ahead) == search(graph, plain)
    assert [question.kind for handed in ahead.rounds for question in handed] == ["latency"] * len(plain.asked)


class Distinct(FixedLanes):
    """No two operators are equal."""

    def operator_key(self, name: str) -> str:
        return name


def test_blocks_are_searched_side_by_side() -> None:
    """Four blocks take as many rounds as the longest search of them, and the first round has all operators."""
    lengths = []
    for graph in (cells(1), cells(4)):
        cost = Distinct(graph)
        ahead = Noted(cost.asked)
        assert search(graph, cost, ahead=ahead) == search(graph, Distinct(graph))
        lengths.append(len(ahead.rounds))
        assert {name for question in ahead.rounds[0] for name in question.stage.operators} == set(graph.by_name)
        assert Counter(question.kind for question in ahead.rounds[0]) == dict.fromkeys(
            ("latency", "operator", "work"), len(graph.operators)
        )
    names = [set(question.stage.operators) for question in ahead.rounds[1]]
    assert {int(min(each)) // 8 for each in names} == {0, 1, 2, 3}
    assert lengths[1] < 2 * lengths[0]


@given(graphs, st.integers(0, 99), st.integers(0, 60), st.sampled_from(FEW_STATES))
def test_nothing_is_announced_after_the_deadline(
    graph: ComputationGraph, seed: int, allowed: int, max_states: int
) -> None:
    cost = FixedLanes(graph, seed)
    ahead = Noted(cost.asked)
    search(graph, cost, ahead=ahead, max_states=max_states, deadline=lambda: len(cost.asked) >= allowed)

    assert all(start < allowed for start in ahead.starts)


@given(graphs, st.integers(0, 99), st.integers(0, 12), st.sampled_from(FEW_STATES))
def test_announced_stages_are_not_measured_after_the_deadline(
    graph: ComputationGraph, seed: int, allowed: int, max_states: int
) -> None:
    """The deadline passes while others answer, who may not have reached all announced questions."""
    cost = FixedLanes(graph, seed)
    ahead = Noted(cost.asked)
    search(graph, cost, ahead=ahead, max_states=max_states, deadline=lambda: len(ahead.rounds) >= allowed)

    assert len(ahead.rounds) <= allowed
    if len(ahead.rounds) == allowed:
        late = cost.asked[max(ahead.starts, default=0) :]
        assert {question.kind for question in late} <= {"operator", "work"}


def test_an_error_of_prefetching_ends_the_search() -> None:
    class Lost(FixedLanes):
        def prefetch(self, questions: Sequence[CostQuestion]) -> None:
            raise ConnectionError(f"{len(questions)} questions")

    cost = Lost(cells(1))
    with pytest.raises(ConnectionError, match="19 questions"):
        search(cells(1), cost)
    assert not cost.asked


def test_a_disturbed_block_waits_until_the_others_are_done() -> None:
    """Busy machines get the time of the other blocks to recover, as if blocks were searched in sequence."""
    graph = cells(2)
    first, last = ({str(index) for index in range(start, start + 8)} for start in (0, 8))

    class Watched(Distinct):
        def disturbed_low_us(self, stage: Stage) -> float | None:
            is_first = self.asked.count(CostQuestion(stage)) == 1 and first >= set(stage.operators)
            return 1.0 if is_first else None

        def try_again(self) -> None:
            pass

    cost = Watched(graph)
    search(graph, cost, strategy="concurrent", ahead=Noted(cost.asked))
    names = [set(question.stage.operators) for question in cost.asked if question.kind == "latency"]
    again = [place for place, each in enumerate(names) if each in names[:place]]
    assert again
    assert min(again) > max(place for place, each in enumerate(names) if last >= each)


class Curt(TableCost):
    """A table that answers roughly where that is allowed."""

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        return min(self.stage_latency_us(stage), worse_than_us + 1)


STAGE = Stage(Strategy.CONCURRENT, (("1",), ("2",)))


def test_each_kind_of_question_goes_to_its_part_of_the_cost_model() -> None:
    cost = NoisyLanes(cells(1), 1)
    assert ask(cost, CostQuestion(STAGE)) == cost.stage_latency_us(STAGE)
    assert ask(cost, CostQuestion(STAGE, "again")) == cost.remeasure(STAGE) != cost.stage_latency_us(STAGE)
    assert ask(cost, operator_question("3", "operator")) == cost.operator_latency_us("3")
    assert ask(cost, operator_question("3", "work")) == cost.operator_work_us("3") != cost.operator_latency_us("3")


def test_irrelevant_latencies_are_answered_roughly_if_supported() -> None:
    exact = TableCost(1).stage_latency_us(STAGE)
    below = CostQuestion(STAGE, worse_than_us=exact / 2)
    assert ask(Curt(1), below) == exact / 2 + 1
    assert ask(TableCost(1), below) == exact
    assert ask(Curt(1), CostQuestion(STAGE, worse_than_us=math.inf)) == exact


@pytest.mark.parametrize(
    "question",
    [CostQuestion(STAGE, "again"), operator_question("0", "operator"), operator_question("0", "work")],
    ids=lambda q: q.kind,
)
def test_an_unsupported_kind_of_question_is_an_error(question: CostQuestion) -> None:
    with pytest.raises(TypeError, match=f"TableCost does not support questions of kind '{question.kind}'"):
        ask(TableCost(1), question)


def test_questions_are_announced_only_to_cost_models_that_prefetch() -> None:
    handed: list[list[CostQuestion]] = []

    class Ahead(TableCost):
        def prefetch(self, questions: list[CostQuestion]) -> None:
            handed.append(questions)

    assert isinstance(Ahead(1), Prefetchable)
    assert not isinstance(NoisyLanes(graph_of(1, []), 1), Prefetchable)
    for cost in (Ahead(1), TableCost(1)):
        announce(cost, [CostQuestion(alone("0"))])
        announce(cost, [])
    assert handed == [[CostQuestion(alone("0"))]]
