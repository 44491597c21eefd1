"""A ReLU, a depthwise and a pointwise convolution, and an optional batch normalization.

This is the Relu-SepConv unit of RandWire and NASNet.
"""

from __future__ import annotations

import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.fusion.queries import (
    Fusion,
    Fusions,
    constant_from,
    is_op,
    kernel,
    names_of,
    next_batch_norm,
    only_reader,
)
from iosched.models.node_attributes import integer, integers


def match(graph: EditableGraph, node: onnx.NodeProto, _: Fusions) -> Fusion | None:
    """The fusion with leading ReLU `node`."""
    if not is_op(node, "Relu"):
        return None
    depthwise = only_reader(graph, node)
    if depthwise is None or not _is_depthwise(graph, depthwise):
        return None
    pointwise = only_reader(graph, depthwise)
    if pointwise is None or not _is_pointwise(graph, pointwise):
        return None
    nodes = names_of(node, depthwise, pointwise, next_batch_norm(graph, pointwise))
    return Fusion("ReluSepConv", nodes, anchor=node_name(depthwise), takes_sums=True, merges=False)


def _is_pointwise(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    """Whether a node is a dense 1x1 convolution of stride 1 without padding, with constant weights."""
    if not is_op(node, "Conv") or not constant_from(graph, node, 1):
        return False
    is_dense = set(kernel(graph, node)[2:]) <= {1} and integer(node, "group", 1) == 1
    return is_dense and not any(integers(node, "pads")) and set(integers(node, "strides")) <= {1}


def _is_depthwise(graph: EditableGraph, node: onnx.NodeProto) -> bool:
    if not is_op(node, "Conv") or not constant_from(graph, node, 1):
        return False
    group, shape = integer(node, "group", 1), kernel(graph, node)
    return group > 1 and shape[:2] == (group, 1)
