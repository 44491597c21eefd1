"""A convolution, then constant scales and shifts of channels (such as batch normalization), the sum with another
operator's result (the residual), and an activation; all but the convolution are optional.
"""

from __future__ import annotations

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.affine import is_per_channel
from iosched.models.fusion.queries import (
    Fusion,
    Fusions,
    constant_from,
    is_op,
    name_of,
    names_of,
    next_activation,
    next_batch_norm,
    next_gate,
    only_reader,
    same_shape,
)
from iosched.models.fusion.relu_conv import leading_relu
from iosched.models.wiring import writes


def match(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> Fusion | None:
    """The fusion that begins with the convolution `node`."""
    if not is_op(node, "Conv") or not constant_from(graph, node, 1):
        return None
    nodes = [node]
    while (norm := _next_affine(graph, nodes[-1])) is not None:
        nodes.append(norm)
    # A convolution after a leading ReLU becomes a Relu-Conv, which has no residual.
    residual = None if leading_relu(graph, node, fusions) is not None else _residual(graph, nodes[-1], fusions)
    if residual is not None:
        nodes.append(residual)
    sigmoid, activation = next_gate(graph, nodes[-1]) or (None, next_activation(graph, nodes[-1], fusions))
    names = names_of(*nodes, sigmoid, activation)
    return Fusion("Conv", names, node_name(node), name_of(activation), name_of(residual))


def _residual(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> onnx.NodeProto | None:
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, "Add", "Sum") or len(reader.input) != 2:
        return None
    mine = node.output[0]
    other = next(name for name in reader.input if name != mine)
    if other in graph.weights or not same_shape(graph, (mine, other)):
        return None
    other_node = graph.producer(other)
    if other_node is None or not _could_take(graph, other_node):
        return reader
    # The deeper of two convolutions probably ends last, so it computes the sum. Of equally deep ones, the second
    # operand does, so that the order of nodes in the file does not matter.
    depth, others = fusions.depth[node_name(node)], fusions.depth[node_name(other_node)]
    if depth != others:
        return reader if depth > others else None
    return reader if reader.input[1] == mine else None


def _could_take(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    """Whether a node computes the result of another convolution, which could add the residual too."""
    if only_reader(graph, node) is None:
        return False
    if is_op(node, "Conv"):
        return constant_from(graph, node, 1)
    before = next((other for name in node.input if (other := graph.producer(name)) is not None), None)
    return before is not None and _next_affine(graph, before) is node and _could_take(graph, before)


def _next_affine(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    norm = next_batch_norm(graph, node)
    if norm is not None:
        return norm
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, "Mul", "Add"):
        return None
    constants = [graph.weights[name] for name in reader.input if name in graph.weights]
    result = writes(reader)[0]
    if len(constants) != 1 or not same_shape(graph, (*writes(node), result)):
        return None
    return reader if is_per_channel(constants[0].shape, len(graph.shape(result))) else None
