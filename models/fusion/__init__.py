"""Fusion patterns: which ONNX nodes make one operator. One pattern per file.

A pattern is a function `match(view, index, units) -> Unit | None`. It is asked for every node in topological order, one
pattern after the other, and sees the units found before. It may answer with nodes that are free and with whole units,
which the new one replaces. A value inside a unit must have exactly one reader and be no graph output; then a unit can
never wait for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iosched.models.fusion import conv, matmul, relu_conv, sep_conv, sums
from iosched.models.fusion.view import GraphView, Unit

Pattern = Callable[[GraphView, int, Mapping[int, Unit]], Unit | None]

PATTERNS: tuple[Pattern, ...] = (sep_conv.match, conv.match, relu_conv.match, matmul.match, sums.match)
"""In order of precedence: the earlier pattern takes a node."""


def find_units(view: GraphView) -> tuple[Unit, ...]:
    """Group the nodes of a graph into operators; the units are in topological order and cover each node once.

    Complexity: O(patterns * (nodes + edges)).
    """
    units: dict[int, Unit] = {}
    for match in PATTERNS:
        for index in range(len(view.nodes)):
            unit = match(view, index, units)
            if unit is not None and _may_take(unit, units):
                units.update(dict.fromkeys(unit.nodes, unit))
    alone = (Unit(node.op_type, (index,), index) for index, node in enumerate(view.nodes) if index not in units)
    # All of a unit's results leave its last node, so the order of last nodes is topological.
    return tuple(sorted((*dict.fromkeys(units.values()), *alone), key=lambda unit: unit.nodes[-1]))


def _may_take(unit: Unit, units: Mapping[int, Unit]) -> bool:
    """Whether the unit takes other units whole or not at all."""
    members = set(unit.nodes)
    taken = {units[index].anchor: units[index] for index in unit.nodes if index in units}
    return all(members.issuperset(other.nodes) for other in taken.values())
