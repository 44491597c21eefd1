"""A ReLU, a depthwise and a pointwise convolution, and a batch normalization if there is one.

This is the Relu-SepConv unit of RandWire and NASNet.
"""

from __future__ import annotations

from collections.abc import Mapping

from iosched.models.fusion.view import GraphView, Unit
from iosched.models.node_attributes import integer, integers


def match(view: GraphView, index: int, units: Mapping[int, Unit]) -> Unit | None:
    """The unit whose leading ReLU is node `index`."""
    if not view.is_op(index, ("Relu",)):
        return None
    depthwise = view.only_reader(index)
    if depthwise is None or not _is_depthwise(view, depthwise):
        return None
    pointwise = view.only_reader(depthwise)
    if pointwise is None or not _is_pointwise(view, pointwise):
        return None
    norm = view.next_batch_norm(pointwise)
    nodes = (index, depthwise, pointwise) if norm is None else (index, depthwise, pointwise, norm)
    return Unit("ReluSepConv", nodes, anchor=depthwise, takes_sums=True, merges=False)


def _is_pointwise(view: GraphView, index: int) -> bool:
    """Whether a node is a dense 1x1 convolution of stride 1 without padding, with constant weights."""
    if not view.is_op(index, ("Conv",)) or not view.constant_from(index, 1):
        return False
    node = view.nodes[index]
    is_dense = set(view.kernel(index)[2:]) <= {1} and integer(node, "group", 1) == 1
    return is_dense and not any(integers(node, "pads")) and set(integers(node, "strides")) <= {1}


def _is_depthwise(view: GraphView, index: int) -> bool:
    if not view.is_op(index, ("Conv",)) or not view.constant_from(index, 1):
        return False
    group, shape = integer(view.nodes[index], "group", 1), view.kernel(index)
    return group > 1 and shape[:2] == (group, 1)
