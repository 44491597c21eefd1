"""Convolutions: equal weights take a larger batch, different ones groups over joined channels.

Output channels of convolutions of one tensor are stacked, without groups.
"""

from __future__ import annotations

from iosched.models.batching.layer import Axes, Joined, MemberLayer, Single, Writer, same
from iosched.models.node_attributes import assign, integer

TYPES = frozenset({"Conv", "ConvTranspose"})
_BATCH, _CHANNELS = 0, 1


def axes(layer: MemberLayer) -> Axes:
    """The batch for equal weights, else the channels."""
    data, weights = layer.computed(0), layer.constants
    if data is None or layer.constant(1) is None or len(weights) != len([each for each in layer.operands if each]) - 1:
        return {}
    if isinstance(data, Single):
        return same([_CHANNELS] if integer(layer.node, "group", 1) == 1 else [])
    return same([_BATCH if all(each.are_equal for each in weights) else _CHANNELS])


def write(layer: MemberLayer, axis: int, writer: Writer) -> list[Joined]:
    """One convolution, grouped by member if the weights differ."""
    data, own = layer.computed(0), layer.names()
    if axis == _BATCH:
        return writer.one(layer, axis, own)
    # Output channels are the first axis of a convolution's weights, and the second of a transposed one's.
    stacked = isinstance(data, Single) and layer.node.op_type == "ConvTranspose"
    own[1:] = [writer.along(each, int(stacked and index == 0)) for index, each in enumerate(layer.constants)]
    found = writer.one(layer, axis, own)
    if not isinstance(data, Single):
        assign(writer.nodes[-1], group=integer(layer.node, "group", 1) * layer.count)
    return found
