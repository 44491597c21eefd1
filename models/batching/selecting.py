"""Operators that choose, cut, fill or stretch along some axes: members are joined along another one.

A Gather chooses rows of one table for the indices of all members, or constant rows of computed tensors.
"""

from __future__ import annotations

from iosched.models.batching.layer import Axes, Layer, same
from iosched.models.node_attributes import integer, names

TYPES = frozenset({"Pad", "Resize", "Slice", "Upsample"})
_SIZES = 3  # the input of a Resize that has the result's sizes, which would be those of one member


def axes(layer: Layer) -> Axes:
    """The axes along which the result is as long as what is read, for the constants say nothing of them then.

    A Slice that goes backwards may keep an axis as long as it is, and a Pad may add on one side what it takes away on
    the other: the constants have to be such that nothing happens along the axis.
    """
    data = layer.joined()
    if len(data) != 1 or not layer.constants or (layer.node.op_type == "Resize" and layer.constant(_SIZES) is not None):
        return {}
    touched = _touched(layer, len(data[0].shape))
    return same(axis for axis in range(len(layer.shape)) if axis not in touched)


def _touched(layer: Layer, rank: int) -> set[int]:
    """The axes along which the node does anything; all where that is not known."""
    numbers = [list(each.first.reshape(-1)) if (each := layer.constant(i)) is not None else [] for i in range(5)]
    if layer.node.op_type == "Slice":
        return {int(axis) % rank for axis in numbers[3]} or set(range(len(numbers[1])))
    if layer.node.op_type == "Pad":
        if numbers[3] or len(numbers[1]) != 2 * rank:
            return set(range(rank))
        return {axis for axis in range(rank) if numbers[1][axis] or numbers[1][axis + rank]}
    scales = numbers[1] if layer.node.op_type == "Upsample" else numbers[2] or numbers[1]
    if len(scales) != rank or "axes" in names(layer.node):
        return set(range(rank))
    return {axis for axis in range(rank) if scales[axis] != 1}


def gathered_axes(layer: Layer) -> Axes:
    """All axes of the indices, where the members have one table; those of the tensor along which nothing is chosen.

    Tables that differ stay apart: an index may count from the end of its table.
    """
    table, rows = layer.constant(0), layer.constant(1)
    if table is not None and len(layer.joined()) == 1:
        start = integer(layer.node, "axis") % table.first.ndim
        return {axis: axis + start for axis in range(len(layer.joined()[0].shape))} if table.are_equal else {}
    if rows is None or len(layer.joined()) != 1:
        return {}
    rank = len(layer.joined()[0].shape)
    chosen, grown = integer(layer.node, "axis") % rank, rows.first.ndim - 1
    return {axis: axis + grown if axis > chosen else axis for axis in range(rank) if axis != chosen}
