"""Pooling: joined along the batch or the channels."""

from __future__ import annotations

from iosched.models.batching.draft import Draft
from iosched.models.batching.layer import Axes, Joined, Layer, same

TYPES = frozenset({
    "AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool",
})  # fmt: skip


def axes(layer: Layer) -> Axes:
    """Channels and batch; none where the places of the maxima are asked for, which count over the whole tensor."""
    return same(() if len([name for name in layer.node.output if name]) > 1 else (1, 0))


def write(layer: Layer, axis: int, draft: Draft) -> list[Joined]:
    """The node over all members."""
    name = draft.fresh(layer.node.output[0], layer.count)
    draft.add(layer.node, layer.names(), [name])
    return [Joined(name, axis, layer.shape)]
