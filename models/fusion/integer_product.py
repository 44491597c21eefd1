"""An integer convolution or product, its conversion to floats, a constant bias, and an activation.

Quantizers write these for dynamically quantized inputs (DynamicQuantizeLinear). The node that computes the result's
scale belongs to the operator if nothing else reads it.
"""

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
    """The fusion of the integer product `node`."""
    if not is_op(node, "ConvInteger", "MatMulInteger"):
        return None
    cast = _only_reader(graph, node, "Cast")
    scaled = None if cast is None else _only_reader(graph, cast, "Mul")
    if cast is None or scaled is None:
        return None
    bias = _bias(graph, scaled)
    activation = next_activation(graph, bias or scaled, fusions)
    nodes = names_of(_scale(graph, cast, scaled, fusions), node, cast, scaled, bias, activation)
    return Fusion(node.op_type, nodes, node_name(node), name_of(activation), merges=False)


def _only_reader(graph: EditableGraph, node: onnx.NodeProto, kind: str) -> onnx.NodeProto | None:
    reader = only_reader(graph, node)
    return reader if is_op(reader, kind) else None


def _scale(
    graph: EditableGraph, cast: onnx.NodeProto, scaled: onnx.NodeProto, fusions: Fusions
) -> onnx.NodeProto | None:
    """The product that computes the scale of the result; None if others read it."""
    sums = cast.output[0]
    node = graph.producer(next((name for name in scaled.input if name != sums), sums))
    if node is None or fusions.of(node) or not is_op(node, "Mul") or only_reader(graph, node) is not scaled:
        return None
    return node if any(name in graph.weights for name in node.input) else None


def _bias(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    reader = _only_reader(graph, node, "Add")
    if reader is None or not any(name in graph.weights for name in reader.input):
        return None
    return reader if same_shape(graph, (node.output[0], reader.output[0])) else None
