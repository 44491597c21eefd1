"""Folds a sum into its only reader: a fusion that takes sums, a Concat (as in the thesis), or a sum."""

from __future__ import annotations

from dataclasses import replace

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.queries import Fusion, Fusions, is_op, only_reader, same_shape


def match(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> Fusion | None:
    """The fusion of `node` with the sums that only it reads, recursively."""
    name = node_name(node)
    takes_sums = is_op(node, "Concat") or _is_sum(graph, node)
    fusion = fusions.of(node) or Fusion(node.op_type, (name,), name, takes_sums=takes_sums)
    if fusion.nodes[0] != name or not fusion.takes_sums:
        return None
    sums = _foldable_sums(graph, node, fusions)
    return replace(fusion, nodes=(*sums, *fusion.nodes), sums=tuple(sums)) if sums else None


def _foldable_sums(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> list[str]:
    sums: list[str] = []
    for tensor in node.input:
        producer = graph.producer(tensor)
        if producer is None or not _is_sum(graph, producer) or only_reader(graph, producer) is not node:
            continue
        fusion, name = fusions.of(producer), node_name(producer)
        # A convolution keeps its residual.
        if fusion is None or fusion.anchor == name:
            sums.extend(fusion.nodes if fusion else (name,))
    return sums


def _is_sum(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if not is_op(node, "Add", "Sum") or len(node.input) < 2 or any(name in graph.weights for name in node.input):
        return False
    return same_shape(graph, (*node.input, *node.output))
