"""Operators that select, slice, pad or resize along some axes, joined along the other axes.

A Gather takes rows of one table by all members' indices, or constant rows of computed tensors.
"""

from __future__ import annotations

from iosched.models.batching.layer import Axes, MemberLayer, same
from iosched.models.node_attributes import integer, names

TYPES = frozenset({"Pad", "Resize", "Slice", "Upsample"})
_SIZES = 3  # the input of a Resize with the sizes of one member's result


def axes(layer: MemberLayer) -> Axes:
    """The axes that the node leaves unchanged.

    Equal sizes do not suffice: a Slice may reverse, and a Pad add on one side what it crops on the other.
    """
    data = layer.joined()
    if len(data) != 1 or not layer.constants or (layer.node.op_type == "Resize" and layer.constant(_SIZES) is not None):
        return {}
    affected = _affected_axes(layer, len(data[0].shape))
    return same(axis for axis in range(len(layer.shape)) if axis not in affected)


def _affected_axes(layer: MemberLayer, rank: int) -> set[int]:
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


def gathered_axes(layer: MemberLayer) -> Axes:
    """All axes of the indices for a common table; the axes of the data that are not indexed.

    Different tables are not joined, since an index may be negative.
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
