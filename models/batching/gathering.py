"""Gather: rows of one table for the indices of all members, and constant rows of computed tensors."""

from __future__ import annotations

from iosched.models.batching.layer import Axes, Layer
from iosched.models.node_attributes import integer

TYPES = frozenset({"Gather"})


def axes(layer: Layer) -> Axes:
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
