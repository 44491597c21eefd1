"""Questions that are values are asked just as a search asks them."""

from __future__ import annotations

import math

import pytest
from by_definition import TableCost, graph_of
from lane_costs import NoisyLanes, alone, cells

from iosched.scheduler.cost import Prefetchable, Question, announce, ask, operator_question
from iosched.scheduler.schedule import Stage, Strategy


class Curt(TableCost):
    """A table that says what it was asked to tell roughly."""

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        return min(self.stage_latency_us(stage), worse_than_us + 1)


STAGE = Stage(Strategy.CONCURRENT, (("1",), ("2",)))


def test_each_kind_is_asked_of_its_part_of_the_cost_model() -> None:
    cost = NoisyLanes(cells(1), 1)
    assert ask(cost, Question(STAGE)) == cost.stage_latency_us(STAGE)
    assert ask(cost, Question(STAGE, "again")) == cost.remeasure(STAGE) != cost.stage_latency_us(STAGE)
    assert ask(cost, operator_question("3", "operator")) == cost.operator_latency_us("3")
    assert ask(cost, operator_question("3", "work")) == cost.operator_work_us("3") != cost.operator_latency_us("3")


def test_what_is_too_slow_to_matter_is_told_roughly_by_those_who_can() -> None:
    exact = TableCost(1).stage_latency_us(STAGE)
    below = Question(STAGE, worse_than_us=exact / 2)
    assert ask(Curt(1), below) == exact / 2 + 1
    assert ask(TableCost(1), below) == exact
    assert ask(Curt(1), Question(STAGE, worse_than_us=math.inf)) == exact


@pytest.mark.parametrize(
    "question",
    [Question(STAGE, "again"), operator_question("0", "operator"), operator_question("0", "work")],
    ids=lambda q: q.kind,
)
def test_a_cost_model_without_the_part_is_not_asked(question: Question) -> None:
    with pytest.raises(TypeError, match=f"TableCost does not support questions of kind '{question.kind}'"):
        ask(TableCost(1), question)


def test_questions_are_handed_to_those_who_answer_ahead_and_to_nobody_else() -> None:
    handed: list[list[Question]] = []

    class Ahead(TableCost):
        def prefetch(self, questions: list[Question]) -> None:
            handed.append(questions)

    assert isinstance(Ahead(1), Prefetchable)
    assert not isinstance(NoisyLanes(graph_of(1, []), 1), Prefetchable)
    for cost in (Ahead(1), TableCost(1)):
        announce(cost, [Question(alone("0"))])
        announce(cost, [])
    assert handed == [[Question(alone("0"))]]
