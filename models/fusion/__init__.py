"""Fusion patterns: they decide which ONNX nodes make one operator. Each pattern has a file of its own.

A pattern is a function `match(view, index, units) -> Unit | None`. The patterns are asked one after the other, each
of them for every node in topological order. `units` has the units that were found before, by each of their nodes. A
pattern may return a unit of nodes that belong to no unit yet and of whole units, which the new unit replaces. A
tensor inside a unit must have exactly one reader and be no graph output: then no unit waits for a node that waits for
the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iosched.models.fusion import conv, integer_product, matmul, quantized, relu_conv, sep_conv, sums
from iosched.models.fusion.view import GraphView, Unit

Pattern = Callable[[GraphView, int, Mapping[int, Unit]], Unit | None]

PATTERNS: tuple[Pattern, ...] = (
    sep_conv.match, conv.match, relu_conv.match, matmul.match, integer_product.match, sums.match,
    quantized.match,
)  # fmt: skip
"""The patterns in order of precedence: where two of them match a node, the earlier one takes it."""


def find_units(view: GraphView) -> tuple[Unit, ...]:
    """Group the nodes of a graph into operators; the units are in topological order and cover each node once.

    Complexity: O(patterns * (nodes + edges)); a chain of n sums that are folded into one operator takes O(n^2).
    """
    units: dict[int, Unit] = {}
    for match in PATTERNS:
        for index in range(len(view.nodes)):
            unit = match(view, index, units)
            if unit is not None and _may_take(unit, units):
                units.update(dict.fromkeys(unit.nodes, unit))
    alone = (Unit(node.op_type, (index,), index) for index, node in enumerate(view.nodes) if index not in units)
    # What others read of a unit is computed by its last node; so units are sorted where their last nodes are.
    return tuple(sorted((*dict.fromkeys(units.values()), *alone), key=lambda unit: unit.nodes[-1]))


def _may_take(unit: Unit, units: Mapping[int, Unit]) -> bool:
    """Whether the unit has all or none of the nodes of every other unit."""
    members = set(unit.nodes)
    taken = {units[index].anchor: units[index] for index in unit.nodes if index in units}
    return all(members.issuperset(other.nodes) for other in taken.values())
