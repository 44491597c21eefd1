"""Pooling: joined along the batch or the channels."""

from __future__ import annotations

from iosched.models.batching.layer import Axes, MemberLayer, same

TYPES = frozenset({"AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool"})


def axes(layer: MemberLayer) -> Axes:
    """Channels and batch; none with indices of maxima, which count over the whole tensor."""
    return same(() if len([name for name in layer.node.output if name]) > 1 else (1, 0))
