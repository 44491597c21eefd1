"""A quantized operator: its nodes, the DequantizeLinear nodes before them, and a QuantizeLinear after them.

Runtimes make one kernel of these. A DequantizeLinear after the QuantizeLinear belongs to the operator too if all
consumers read its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.queries import (
    Fusion,
    Fusions,
    constant_from,
    is_dequantize,
    is_quantize,
    name_of,
    names_of,
    only_reader,
)
from iosched.models.wiring import reads


def match(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> Fusion | None:
    """The fusion with anchor `node`, and the nodes around it that quantize and dequantize."""
    name = node_name(node)
    fusion = fusions.of(node) or Fusion(node.op_type, (name,), name)
    if fusion.anchor != name or constant_from(graph, node, 0):
        return None
    before, after = _before(graph, fusion, fusions), _after(graph, graph.node(fusion.nodes[-1]))
    if not before and not after:
        return None
    quantizes = name_of(next((each for each in (*after, node) if is_quantize(each)), None))
    nodes = (*before, *fusion.nodes, *(each for each in names_of(*after) if each not in fusion.nodes))
    return replace(fusion, nodes=nodes, quantizes=quantizes, merges=False)


def _after(graph: EditableGraph, last: onnx.NodeProto) -> tuple[onnx.NodeProto, ...]:
    """The QuantizeLinear that alone reads node `last`, and the DequantizeLinear that alone reads that."""
    if is_quantize(last):
        return _next(graph, last, is_dequantize)
    found = _next(graph, last, is_quantize)
    return (*found, *_next(graph, found[0], is_dequantize)) if found else ()


def _next(
    graph: EditableGraph, node: onnx.NodeProto, is_wanted: Callable[[onnx.NodeProto], bool]
) -> tuple[onnx.NodeProto, ...]:
    reader = only_reader(graph, node)
    fits = reader is not None and is_wanted(reader) and constant_from(graph, reader, 1)
    return (reader,) if reader is not None and fits else ()


def _before(graph: EditableGraph, fusion: Fusion, fusions: Fusions) -> list[str]:
    """The DequantizeLinear nodes that only the fusion reads, and the QuantizeLinear nodes of weights before them."""
    names: list[str] = []
    waiting = list(fusion.nodes)
    while waiting:
        for tensor in reads(graph.node(waiting.pop())):
            node = graph.producer(tensor)
            if node is not None and _belongs(graph, node, fusions, (*fusion.nodes, *names)):
                names.append(node_name(node))
                waiting.append(node_name(node))
    return names


def _belongs(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions, members: Sequence[str]) -> bool:
    if node_name(node) in members or fusions.of(node) or name_of(only_reader(graph, node)) not in members:
        return False
    if not constant_from(graph, node, 1):
        return False
    return is_dequantize(node) or (is_quantize(node) and constant_from(graph, node, 0))
