"""What pictures of a schedule have in common: how an operator and a latency read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from iosched.cli.words import latency_text
from iosched.models.graph import ComputationGraph, Operator


@dataclass(frozen=True)
class Look:
    """How an operator is shown: its type decides the colour, `label` stands in the box."""

    type: str
    label: str


def looks_of(graph: ComputationGraph) -> dict[str, Look]:
    """A look for every operator of the graph."""
    return {operator.name: Look(operator.type, _label(operator)) for operator in graph.operators}


_SHORT = {"AveragePool": "AvgPool", "GlobalAveragePool": "GlobalAvgPool"}


def _label(operator: Operator) -> str:
    kernel = operator.integers("kernel_shape")
    kind = _SHORT.get(operator.type, operator.type)
    if kernel:
        return f"{kind} {'×'.join(map(str, kernel))}"  # noqa: RUF001 - a multiplication sign is meant
    return kind


def look_of(name: str, looks: Mapping[str, Look]) -> Look:
    """The look of an operator; where nothing is known but its name, the name's last part."""
    return looks.get(name) or Look("", name.rsplit("/", 1)[-1])


def latency_label(latency_us: float | None) -> str:
    """A latency as it stands in a picture, where there is room for two decimals of a millisecond."""
    return latency_text(latency_us, unknown="latency not known", digits=2)
