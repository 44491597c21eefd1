"""Operators that change a tensor's shape or the order of its axes, and nothing else."""

from __future__ import annotations

from iosched.models.batching.draft import Draft, scaled
from iosched.models.batching.layer import Axes, Joined, Layer
from iosched.models.node_attributes import integers

VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
TYPES = VIEWS | {"Transpose"}
_RESHAPE_OPSET = 5  # before, the target is an attribute


def axes(layer: Layer) -> Axes:
    """Every axis for a Transpose; for others the axes up to which, and at which, both shapes agree in what lies before.

    The elements of one member lie together where no axis before that of the members is longer than 1, or those before
    are the same in both shapes.
    """
    data = layer.joined()
    if len(data) != 1 or layer.opset < _RESHAPE_OPSET:
        return {}
    before, after = data[0].shape, layer.shape
    if layer.node.op_type == "Transpose":
        order = _order(layer)
        return {axis: order.index(axis) for axis in range(len(before))}
    return {
        axis: axis for axis in range(min(len(before), len(after))) if before[:axis] == after[:axis]
    }  # fmt: skip


def write(layer: Layer, axis: int, draft: Draft) -> list[Joined]:
    """A Reshape to the members' shape, joined; or the Transpose."""
    data, name = layer.joined()[0].name, layer.node.output[0]
    if layer.node.op_type != "Transpose":
        return [
            Joined(draft.reshaped(data, scaled(layer.shape, axis, layer.count), name, layer.count), axis, layer.shape)
        ]
    fresh = draft.fresh(name, layer.count)
    draft.add(layer.node, [data], [fresh])
    return [Joined(fresh, _order(layer).index(axis), layer.shape)]


def _order(layer: Layer) -> tuple[int, ...]:
    return integers(layer.node, "perm", tuple(range(len(layer.shape)))[::-1])
