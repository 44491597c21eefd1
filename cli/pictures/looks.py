"""What all pictures of a schedule have in common: how operators and latencies are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iosched.cli.words import latency_text
from iosched.models.graph import ComputationGraph, Operator
from iosched.scheduler.schedule import Stage
from iosched.scheduler.strategies import STAGES


@dataclass(frozen=True)
class Look:
    """How an operator is shown: `label` is the text in its box, and `kind` decides the colour.

    Attributes:
        type: the operator's type.
        label: says it in short.
        models: the models that it works for, where the file has several.
    """

    type: str
    label: str
    models: str = ""

    @property
    def kind(self) -> str:
        """What operators of one colour have in common: the models, or where there is one model, the type."""
        return self.models or self.type


def looks_of(graph: ComputationGraph, models: Mapping[str, str] = {}) -> dict[str, Look]:
    """How each operator of the graph is shown, by its name.

    Args:
        models: the models that operators work for, in words, where the file has several.
    """
    return {each.name: Look(each.type, _label(each), models.get(each.name, "")) for each in graph.operators}


def shown(stage: Stage, group: Sequence[str]) -> Sequence[str]:
    """The boxes of a group: its operators, or of a long session the first, how many more, and the last."""
    if not STAGES[stage.strategy].is_in_order or len(group) <= _MOST_OF_A_SESSION:
        return group
    return (group[0], f"{len(group) - 2} more", group[-1])


_MOST_OF_A_SESSION = 4
_SHORT = {"AveragePool": "AvgPool", "GlobalAveragePool": "GlobalAvgPool"}


def _label(operator: Operator) -> str:
    kernel = operator.integers("kernel_shape")
    kind = _SHORT.get(operator.type, operator.type)
    if kernel:
        return f"{kind} {'×'.join(map(str, kernel))}"  # noqa: RUF001 - a multiplication sign is meant
    return kind


def look_of(name: str, looks: Mapping[str, Look]) -> Look:
    """How the operator `name` is shown: as `looks` says, or else by the last part of its name."""
    return looks.get(name) or Look("", name.rsplit("/", 1)[-1])


def latency_label(latency_us: float | None) -> str:
    """A latency as pictures show it: there is room for two decimals of a millisecond."""
    return latency_text(latency_us, unknown="latency not known", digits=2)
