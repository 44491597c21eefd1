"""A MatMul or Gemm, then a constant bias and an activation, of which one may be missing."""

from __future__ import annotations

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.queries import (
    Fusion,
    Fusions,
    is_op,
    name_of,
    names_of,
    next_activation,
    only_reader,
    same_shape,
)


def match(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> Fusion | None:
    """The fusion that begins with the product `node`."""
    if not is_op(node, "MatMul", "Gemm"):
        return None
    bias = _bias(graph, node)
    activation = next_activation(graph, bias or node, fusions)
    if bias is None and activation is None:
        return None
    return Fusion(node.op_type, names_of(node, bias, activation), node_name(node), name_of(activation))


def _bias(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, "Add"):
        return None
    product = node.output[0]
    other = next(name for name in reader.input if name != product)
    return reader if other in graph.weights and same_shape(graph, (product, reader.output[0])) else None
