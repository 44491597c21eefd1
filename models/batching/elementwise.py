"""Elementwise operators: joined along any axis."""

from __future__ import annotations

from iosched.models.batch_independence import BROADCAST, UNARY
from iosched.models.batching.layer import Axes, Constants, Joined, MemberLayer, Operand, Writer, same, varies

_UNARY = UNARY | {"Clip"}
_BROADCAST = BROADCAST - {"BitShift", "Clip"}
TYPES = _UNARY | _BROADCAST
_BROADCAST_OPSET = 7  # before, an attribute controls broadcasting


def axes(layer: MemberLayer) -> Axes:
    """All axes along which every operand is as long as the result."""
    if layer.opset < _BROADCAST_OPSET and layer.node.op_type in _BROADCAST:
        return {}
    if layer.node.op_type in _UNARY and not all(constants.are_equal for constants in layer.constants):
        return {}
    own = [operand.shape for operand in layer.operands if isinstance(operand, Joined)]
    whole = layer.shape
    return same(
        axis
        for axis in range(len(whole))
        if all(len(shape) == len(whole) and shape[axis] == whole[axis] for shape in own)
    )


def write(layer: MemberLayer, axis: int, writer: Writer) -> list[Joined]:
    """One node; constants that vary along the axis are repeated."""
    inputs = [_operand(layer, operand, axis, writer) for operand in layer.operands]
    return writer.one(layer, axis, inputs)


def _operand(layer: MemberLayer, operand: Operand, axis: int, writer: Writer) -> str:
    if not isinstance(operand, Constants):
        return operand.name if operand else ""
    is_bound = layer.node.op_type in _UNARY  # a Clip's bounds, which are numbers
    if operand.are_equal and (is_bound or not varies(operand, len(layer.shape), axis)):
        return operand.name
    return writer.spread(operand, len(layer.shape), axis, layer.shape[axis])
