"""Channel alignment: exact zero channels up to whole vector blocks, so that no kernel leaves the blocked layout.

onnxruntime's NCHWc layout has blocks of 8 or 16 channels. Depthwise convolutions of other channel counts, and a
Concat of such tensors, fall back to the plain layout with conversions. Here convolutions get zero filters and biases
up to a whole block, and readers get zero weights for the new channels: results differ at most by the order of
summation.
"""

from __future__ import annotations

from itertools import zip_longest

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.node_attributes import assign
from iosched.runtime.cpu.rewrite.channels import ChannelMap, Maps, Role, Roles, padded_channels, with_roles

_NORM_FILLS = (0.0, 0.0, 0.0, 1.0)  # scale, bias, mean and variance that turn zero into zero


def align_channels(graph: EditableGraph, block: int, *, max_growth: float = 1.25) -> None:
    """Pad the channels of convolutions with zeros to multiples of `block`; O(nodes + edges + weights).

    Inputs and outputs keep their shapes. A Gather extracts the real channels where an operator needs them. Tensors
    keep their names unless users of the graph see them.

    Args:
        graph: unchanged if there is nothing to gain.
        block: channels in a block; 1 changes nothing.
        max_growth: maximum work of the convolutions relative to that without padding.
    """
    roles, maps = padded_channels(graph, block, max_growth)
    for node, role in with_roles(graph, roles):
        _fit_parameters(graph, node, role, maps)
        if node.output[0] in maps:
            _widen(graph, node.output[0], roles, maps)


def _fit_parameters(graph: EditableGraph, node: NodeProto, role: Role, maps: Maps) -> None:
    read, written = maps.get(node.input[0]), maps.get(node.output[0])
    if node.op_type == "BatchNormalization":
        fills = zip(node.input[1:], _NORM_FILLS, strict=True)
        parameters = [_scattered(graph, name, written, fill=fill) for name, fill in fills]
    elif node.op_type == "Conv":
        weight = _scattered(graph, node.input[1], written, read if role is Role.DENSE else None)
        parameters = [weight, *(_scattered(graph, name, written) for name in node.input[2:])]
    else:
        return
    graph.set_inputs(node.output[0], [node.input[0], *parameters])
    if node.op_type == "Conv" and role is Role.CHANNELWISE and written is not None:
        assign(node, group=written.width)


def _scattered(graph: EditableGraph, name: str, *maps: ChannelMap | None, fill: float = 0.0) -> str:
    """The name of a weight whose first axes follow new maps, with `fill` in the new channels."""
    if not name or not any(maps):
        return name
    array = graph.weights[name]
    axes = [each or ChannelMap.padded(size, 1) for each, size in zip_longest(maps, array.shape)]
    made = np.full([axis.width for axis in axes], fill, array.dtype)
    made[np.ix_(*(axis.real for axis in axes))] = array
    return graph.add_fresh_weight(f"{name}/aligned", made)


def _widen(graph: EditableGraph, tensor: str, roles: Roles, maps: Maps) -> None:
    """Give a tensor its new channels, and the real ones to readers that need them.

    If the tensor's name is public, the real channels keep it, and the padded tensor gets another one.
    """
    closed = [node for node in graph.consumers(tensor) if node_name(node) not in roles]
    is_public = tensor in graph.outputs or graph.is_captured(tensor)
    spec, channels = graph.tensors[tensor], maps[tensor]
    padded, real = tensor, tensor
    if is_public:
        padded = graph.fresh(f"{tensor}/aligned")
        graph.rename(tensor, padded)
        maps[padded] = channels
        graph.tensors[real] = spec
    elif closed:
        real = graph.add_tensor(f"{tensor}/real", tensor)
    batch, _, *size = graph.shape(padded)
    graph.set_shape(padded, (batch, channels.width, *size))
    if real == padded:
        return
    indices = graph.add_integers(f"{tensor}/channels", channels.real)
    # The name assigns the Gather to the operator that computes the tensor.
    name = graph.fresh(f"{tensor}/gather")
    graph.insert_after(padded, make_node("Gather", [padded, indices], [real], name=name, axis=1))
    for node in closed:
        graph.set_inputs(node_name(node), [real if each == padded else each for each in node.input])
