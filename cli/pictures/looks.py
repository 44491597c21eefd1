"""What pictures of a schedule have in common: how an operator and a latency read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    kernel = operator.attribute("kernel_shape")
    kind = _SHORT.get(operator.type, operator.type)
    if isinstance(kernel, tuple) and kernel:
        return f"{kind} {'×'.join(map(str, kernel))}"  # noqa: RUF001 - a multiplication sign is meant
    return kind


def look_of(name: str, looks: Mapping[str, Look]) -> Look:
    """The look of an operator; where nothing is known but its name, the name's last part."""
    return looks.get(name) or Look("", name.rsplit("/", 1)[-1])


def latency_text(latency_us: float | None) -> str:
    """A latency in the unit that keeps it readable."""
    if latency_us is None:
        return "latency not known"
    if latency_us < 1000:
        return f"{latency_us:.1f} µs"
    return f"{latency_us / 1000:.2f} ms"


def count_text(count: int, word: str) -> str:
    """`1 stage`, `2 stages`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
