"""Reductions and softmax: joined along axes that they do not reduce."""

from __future__ import annotations

from collections.abc import Sequence

from iosched.models.batch_independence import REDUCTIONS, SOFTMAXES
from iosched.models.batching.layer import Axes, MemberLayer
from iosched.models.node_attributes import integer, integers

_PLACES = frozenset({"ArgMax", "ArgMin"})
TYPES = SOFTMAXES | _PLACES | REDUCTIONS
_ONE_AXIS_OPSET = 13  # before, a softmax spans all axes from the given one


def axes(layer: MemberLayer) -> Axes:
    """The axes that are not reduced, and their positions after removal of the reduced ones."""
    data = layer.joined()
    if len(data) != 1:
        return {}
    rank = len(data[0].shape)
    reduced = {axis % rank for axis in _reduced_axes(layer, rank)} if rank else set()
    if not reduced:
        return {}
    vanish = layer.node.op_type not in SOFTMAXES and not integer(layer.node, "keepdims", 1)
    return {
        axis: axis - sum(other < axis for other in reduced) if vanish else axis
        for axis in range(rank)
        if axis not in reduced
    }


def _reduced_axes(layer: MemberLayer, rank: int) -> Sequence[int]:
    node = layer.node
    if node.op_type in _PLACES:
        return [integer(node, "axis", 0)]
    if node.op_type in SOFTMAXES:
        if layer.opset >= _ONE_AXIS_OPSET:
            return [integer(node, "axis", -1)]
        return range(integer(node, "axis", 1) % rank, rank)
    given = layer.constant(1)
    return integers(node, "axes") if given is None else [int(axis) for axis in given.first.reshape(-1)]
