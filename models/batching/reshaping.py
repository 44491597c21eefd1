"""Operators that only reshape or transpose."""

from __future__ import annotations

from iosched.models.batching.layer import Axes, Joined, MemberLayer, Writer, same, scaled
from iosched.models.node_attributes import integers

TYPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_RESHAPE_OPSET = 5  # before, the target is an attribute


def axes(layer: MemberLayer) -> Axes:
    """The axes before and at which both shapes agree.

    A member's elements stay contiguous if no axis before the members' is longer than 1, or those axes keep their sizes.
    """
    data = layer.joined()
    if len(data) != 1 or layer.opset < _RESHAPE_OPSET:
        return {}
    before, after = data[0].shape, layer.shape
    return same(axis for axis in range(min(len(before), len(after))) if before[:axis] == after[:axis])


def write(layer: MemberLayer, axis: int, writer: Writer) -> list[Joined]:
    """A Reshape to the joined shape."""
    data, shape = layer.joined()[0].name, scaled(layer.shape, axis, layer.count)
    return [Joined(writer.reshaped(data, shape, layer.node.output[0], layer.count), axis, layer.shape)]


def transposed_axes(layer: MemberLayer) -> Axes:
    """Every axis."""
    order = integers(layer.node, "perm", tuple(range(len(layer.shape)))[::-1])
    return {axis: order.index(axis) for axis in range(len(order))} if layer.joined() else {}
