"""Folds a sum into the only unit that reads it: a unit that takes sums, a Concat (as in the thesis), or a sum."""

from __future__ import annotations

from dataclasses import replace

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.queries import Found, Unit, is_op, only_reader, same_shape


def match(graph: EditableGraph, node: onnx.NodeProto, found: Found) -> Unit | None:
    """The unit of `node`, together with the sums that it alone reads (and the sums that those alone read)."""
    name = node_name(node)
    takes_sums = is_op(node, "Concat") or _is_sum(graph, node)
    unit = found.unit(node) or Unit(node.op_type, (name,), name, takes_sums=takes_sums)
    if unit.nodes[0] != name or not unit.takes_sums:
        return None
    sums = _foldable(graph, node, found)
    return replace(unit, nodes=(*sums, *unit.nodes), sums=tuple(sums)) if sums else None


def _foldable(graph: EditableGraph, node: onnx.NodeProto, found: Found) -> list[str]:
    """The sums whose values `node` alone reads, each with the sums that it has folded into itself."""
    sums: list[str] = []
    for tensor in node.input:
        producer = graph.producer(tensor)
        if producer is None or not _is_sum(graph, producer) or only_reader(graph, producer) is not node:
            continue
        unit, name = found.unit(producer), node_name(producer)
        # A sum that is part of a convolution's unit, as its residual, stays there.
        if unit is None or unit.anchor == name:
            sums.extend(unit.nodes if unit else (name,))
    return sums


def _is_sum(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if not is_op(node, "Add", "Sum") or len(node.input) < 2 or any(name in graph.weights for name in node.input):
        return False
    return same_shape(graph, (*node.input, *node.output))
