"""Normalizations: channel parameters are joined along channels, those of the last axes are applied afterwards."""

from __future__ import annotations

import numpy as np

from iosched.models.batching.layer import Axes, Joined, MemberLayer, Writer, same
from iosched.models.node_attributes import integer

PER_CHANNEL = frozenset({"BatchNormalization", "InstanceNormalization"})
TYPES = PER_CHANNEL | {"LRN", "LayerNormalization"}
_BATCH, _CHANNELS = 0, 1


def axes(layer: MemberLayer) -> Axes:
    """Batch and channels for channel parameters; else the axes that are not normalized."""
    node = layer.node
    is_alone = layer.computed(0) is not None and len(layer.joined()) == len(node.output) == 1
    if not is_alone or integer(node, "training_mode"):
        return {}
    if node.op_type == "LRN":
        return same([_BATCH])
    if node.op_type == "LayerNormalization":
        first = integer(node, "axis", -1)
        return same(range(first + len(layer.shape) if first < 0 else first))
    are_equal = all(each.are_equal for each in layer.constants)
    return same([_CHANNELS, _BATCH] if are_equal else [_CHANNELS])


def write(layer: MemberLayer, axis: int, writer: Writer) -> list[Joined]:
    """One normalization."""
    if layer.node.op_type == "LayerNormalization" and not all(each.are_equal for each in layer.constants):
        return [Joined(_scaled_after(layer, axis, writer), axis, layer.shape)]
    is_joined = axis == _CHANNELS and layer.node.op_type in PER_CHANNEL
    constants = [writer.along(each, 0) if is_joined else each.name for each in layer.constants]
    return writer.one(layer, axis, [layer.joined()[0].name, *constants])


def _scaled_after(layer: MemberLayer, axis: int, writer: Writer) -> str:
    """A normalization with scale one, then each member's scale and shift."""
    name = layer.node.output[0]
    scale, *shift = layer.constants
    ones = writer.constant(f"{name}/one", np.ones_like(scale.first), layer.count)
    found = writer.fresh(f"{name}/normalized", layer.count)
    writer.add(layer.node, [layer.joined()[0].name, ones], [found])
    for op_type, constants in zip(("Mul", "Add"), (scale, *shift), strict=False):
        met = writer.spread(constants, len(layer.shape), axis, layer.shape[axis])
        found = writer.make(op_type, [found, met], writer.fresh(name, layer.count))
    return found
