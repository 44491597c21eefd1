"""Asks a cost model questions that are values: one by one, or all ahead where it can answer them side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from iosched.scheduler.cost import CostModel, Curtailable, OperatorBounds, Prefetchable, Remeasurable
from iosched.scheduler.questions import Question


def ask(cost: CostModel, question: Question) -> float:
    """The answer in microseconds, asked for just as the search does.

    A cost model that is not `Curtailable` is asked for the whole latency.

    Raises:
        TypeError: the cost model has no part that answers questions of this kind.
    """
    stage = question.stage
    if question.kind == "latency":
        if question.worse_than_us < math.inf and isinstance(cost, Curtailable):
            return cost.latency_unless_worse_us(stage, question.worse_than_us)
        return cost.stage_latency_us(stage)
    if question.kind == "again" and isinstance(cost, Remeasurable):
        return cost.remeasure(stage)
    if question.kind == "operator" and isinstance(cost, OperatorBounds):
        return cost.operator_latency_us(stage.operators[0])
    if question.kind == "work" and isinstance(cost, OperatorBounds):
        return cost.operator_work_us(stage.operators[0])
    raise TypeError(f"{type(cost).__name__} does not answer questions of the kind {question.kind!r}")


def who_answers(cost: object, ahead: Prefetchable | None) -> Prefetchable | None:
    """Whom to hand questions over to: whoever is named, else the cost model if it is `Prefetchable`."""
    return cost if ahead is None and isinstance(cost, Prefetchable) else ahead


def ask_ahead(cost: object, questions: Sequence[Question]) -> None:
    """Hands over questions that will be asked next, where the cost model is `Prefetchable`; else does nothing."""
    if questions and isinstance(cost, Prefetchable):
        cost.prefetch(questions)
