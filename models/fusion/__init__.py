"""Fusion patterns: they decide which ONNX nodes make one operator. Each pattern has a file of its own.

A pattern is a function `match(graph, node, found) -> Unit | None`. The patterns are asked one after the other, each of
them for every node in topological order. `found` has the units that were found before. A pattern may return a unit of
nodes that belong to no unit yet and of whole units, which the new unit replaces. A tensor inside a unit must have
exactly one reader and be no graph output: then no unit waits for a node that waits for the unit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion import conv, integer_product, matmul, quantized, relu_conv, sep_conv, sums
from iosched.models.fusion.queries import Found, Unit, depths

Pattern = Callable[[EditableGraph, onnx.NodeProto, Found], Unit | None]

PATTERNS: tuple[Pattern, ...] = (
    sep_conv.match, conv.match, relu_conv.match, matmul.match, integer_product.match, sums.match,
    quantized.match,
)  # fmt: skip
"""The patterns in order of precedence: where two of them match a node, the earlier one takes it."""


def find_units(graph: EditableGraph) -> tuple[Unit, ...]:
    """Group the nodes of a graph into operators; the units are in topological order and cover each node once.

    Complexity: O(patterns * (nodes + edges)); a chain of n sums that are folded into one operator takes O(n^2).
    """
    nodes = graph.nodes
    place = {node_name(node): index for index, node in enumerate(nodes)}
    found = Found(depths(graph))
    for match in PATTERNS:
        for node in nodes:
            unit = match(graph, node, found)
            if unit is not None and _may_take(unit, found):
                inside, added = (tuple(sorted(names, key=place.__getitem__)) for names in (unit.nodes, unit.sums))
                unit = replace(unit, nodes=inside, sums=added)
                found.units.update(dict.fromkeys(unit.nodes, unit))
    units = [found.unit(node) or Unit(node.op_type, (node_name(node),), node_name(node)) for node in nodes]
    # What others read of a unit is computed by its last node; so units are sorted where their last nodes are.
    return tuple(sorted(dict.fromkeys(units), key=lambda unit: place[unit.nodes[-1]]))


def _may_take(unit: Unit, found: Found) -> bool:
    """Whether the unit has all or none of the nodes of every other unit."""
    members = set(unit.nodes)
    return all(members.issuperset(found.units[name].nodes) for name in unit.nodes if name in found.units)
