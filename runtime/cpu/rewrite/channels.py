"""Decides which tensors are padded with channels, and where their real channels are.

A tensor's channel map says which of its channels are the model's; all others hold zeros. Convolutions choose the map of
their results; pooling, sums and similar operators pass a map on; a Concat concatenates the maps of its operands. All
other nodes need the tensors of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import inf, nan, prod

import numpy as np
from onnx import NodeProto

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.node_attributes import integer, number
from iosched.models.wiring import captures, is_standard, writes
from iosched.runtime.cpu.rewrite.images import fills_with_zeros, is_image, padded_edges

# f(0) = 0, element by element or channel by channel.
_ZERO_TO_ZERO = frozenset({
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Erf", "Gelu", "HardSwish", "Mish",
    "Softsign", "Abs", "Neg", "Sqrt", "Identity", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
})  # fmt: skip
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min"})
_ALL_OPERANDS = _ELEMENTWISE | {"Concat"}


class Role(Enum):
    """A node's effect on channels. A node without a role needs unpadded operands."""

    DENSE = auto()
    """A convolution over all channels: reads any map and may write any."""
    CHANNELWISE = auto()
    """Computes each channel from the same channel of its operands; zeros give zeros, or can be made to."""
    CONCAT = auto()
    """Concatenates the channels of several operands."""


Roles = dict[str, Role]
"""Roles of nodes by the name of their result; in topological order."""


@dataclass(frozen=True)
class ChannelMap:
    """Where the real channels of a tensor are.

    Attributes:
        width: number of channels of the tensor.
        real: position of each channel of the model's tensor, in ascending order.
    """

    width: int
    real: tuple[int, ...]

    @classmethod
    def padded(cls, channels: int, block: int) -> ChannelMap:
        """Zeros at the end, up to a multiple of `block`."""
        return cls(_whole_blocks(channels, block), tuple(range(channels)))


Maps = dict[str, ChannelMap]
"""Maps of the padded tensors by name."""


def _whole_blocks(channels: int, block: int) -> int:
    return -(-channels // block) * block


def with_roles(graph: EditableGraph, roles: Roles) -> Iterator[tuple[NodeProto, Role]]:
    """The nodes with roles, in topological order."""
    return ((node, roles[name]) for node in graph.nodes if (name := node_name(node)) in roles)


def _map_of(graph: EditableGraph, maps: Maps, tensor: str) -> ChannelMap:
    return maps.get(tensor) or ChannelMap.padded(graph.shape(tensor)[1], 1)


def _joined_map(graph: EditableGraph, maps: Maps, node: NodeProto) -> ChannelMap:
    width, real = 0, list[int]()
    for item in (_map_of(graph, maps, name) for name in node.input):
        real.extend(width + place for place in item.real)
        width += item.width
    return ChannelMap(width, tuple(real))


def padded_channels(graph: EditableGraph, block: int, max_growth: float) -> tuple[Roles, Maps]:
    """The nodes that may access padded tensors, and those tensors; empty if nothing is gained. O(nodes + edges)."""
    roles = _assign_roles(graph, block) if block > 1 else {}
    maps = _channel_maps(graph, roles, block)
    if not maps or _flops(graph, roles, maps, block) > max_growth * _flops(graph, roles, {}, block):
        return {}, {}
    # If Concat nodes disagree about the map of their sum, the sum has none, and each needs unpadded operands.
    return {name: role for name, role in roles.items() if role is not Role.CONCAT or name in maps}, maps


def _flops(graph: EditableGraph, roles: Roles, maps: Maps, block: int) -> int:
    """Work of the convolutions; onnxruntime itself rounds the channels of dense ones up to whole blocks."""
    total = 0
    for node, role in with_roles(graph, roles):
        if node.op_type == "Conv":
            read = _map_of(graph, maps, node.input[0]).width
            pairs = written = _map_of(graph, maps, node.output[0]).width
            if role is Role.DENSE:
                pairs = _whole_blocks(read, block) * _whole_blocks(written, block)
            total += pairs * prod(graph.shape(node.output[0])[2:]) * prod(graph.shape(node.input[1])[2:])
    return total


def _assign_roles(graph: EditableGraph, block: int) -> Roles:
    """The roles of all nodes that have one; O(nodes + edges).

    A node passes maps on only if all its operands come from convolutions, whose maps are free to choose.
    """
    found: Roles = {}
    for node in graph.nodes:
        role = _own_role(graph, node)
        if role is Role.CHANNELWISE and not found.keys() >= {*_operands(node)}:
            continue
        if role is Role.CONCAT and not _is_worth_joining(graph, node, found, block):
            continue
        if role is not None:
            found[node_name(node)] = role
    return found


def _operands(node: NodeProto) -> tuple[str, ...]:
    return tuple(node.input if node.op_type in _ALL_OPERANDS else node.input[:1])


def _own_role(graph: EditableGraph, node: NodeProto) -> Role | None:
    if not is_standard(node) or writes(node) != (node.output[0],) or captures(node):
        return None
    if not all(is_image(graph, name) for name in (*_operands(node), node.output[0])):
        return None
    if node.op_type == "Conv":
        return _conv_role(graph, node)
    if node.op_type == "Concat":
        return _concat_role(node)
    if node.op_type in _ZERO_TO_ZERO:
        return Role.CHANNELWISE
    rule = _RULES.get(node.op_type)
    return Role.CHANNELWISE if rule is not None and rule(graph, node) else None


def _conv_role(graph: EditableGraph, node: NodeProto) -> Role | None:
    if not _has_known_parameters(graph, node):
        return None
    group = integer(node, "group", 1)
    if group == 1:
        return Role.DENSE
    is_depthwise = group == graph.shape(node.input[0])[1] == graph.shape(node.output[0])[1]
    return Role.CHANNELWISE if is_depthwise else None


def _concat_role(node: NodeProto) -> Role | None:
    if integer(node, "axis", 1) not in (1, -3):
        return None
    return Role.CONCAT if len(node.input) > 1 else Role.CHANNELWISE


def _has_known_parameters(graph: EditableGraph, node: NodeProto) -> bool:
    parameters = [graph.weights.get(name) for name in node.input[1:] if name]
    return all(array is not None and array.dtype == np.float32 for array in parameters)


def _has_one_shape(graph: EditableGraph, node: NodeProto) -> bool:
    return len({graph.shape(name) for name in (*node.input, node.output[0])}) == 1


def _norm_keeps_zeros(graph: EditableGraph, node: NodeProto) -> bool:
    return _has_known_parameters(graph, node) and not integer(node, "training_mode")


def _clip_keeps_zeros(graph: EditableGraph, node: NodeProto) -> bool:
    low = _clip_bound(graph, node, 1, number(node, "min", -inf))
    high = _clip_bound(graph, node, 2, number(node, "max", inf))
    return low <= 0 <= high


def _clip_bound(graph: EditableGraph, node: NodeProto, place: int, default: float) -> float:
    """A limit of a Clip; NaN, which fails every comparison, if it is not constant."""
    if not any(node.input[place : place + 1]):
        return default
    weight = graph.weights.get(node.input[place])
    return nan if weight is None or weight.size != 1 else float(weight.item())


def _dropout_keeps_zeros(graph: EditableGraph, node: NodeProto) -> bool:
    return not any(node.input[2:3])


def _pad_keeps_zeros(graph: EditableGraph, node: NodeProto) -> bool:
    return padded_edges(node, graph.weights) is not None and fills_with_zeros(node, graph.weights)


def _slice_keeps_zeros(graph: EditableGraph, node: NodeProto) -> bool:
    axes = graph.weights.get(node.input[3]) if any(node.input[3:4]) else None
    if axes is None or not all(name in graph.weights for name in node.input[1:] if name):
        return False
    return {int(axis) % 4 for axis in axes.reshape(-1)} <= {2, 3}


_RULES: Mapping[str, Callable[[EditableGraph, NodeProto], bool]] = {
    **dict.fromkeys(_ELEMENTWISE, _has_one_shape),
    "BatchNormalization": _norm_keeps_zeros,
    "Clip": _clip_keeps_zeros,
    "Dropout": _dropout_keeps_zeros,
    "Pad": _pad_keeps_zeros,
    "Slice": _slice_keeps_zeros,
}
"""Whether a node computes zero channels from zero channels."""


def _is_worth_joining(graph: EditableGraph, node: NodeProto, roles: Roles, block: int) -> bool:
    """Whether every operand of a Concat can have whole blocks, and some node reads the padded result."""
    if not all(name in roles or graph.shape(name)[1] % block == 0 for name in node.input):
        return False
    return any(_own_role(graph, reader) is not None for reader in graph.consumers(node.output[0]))


def _channel_maps(graph: EditableGraph, roles: Roles, block: int) -> Maps:
    """The maps of all padded tensors.

    Tensors that must share a map form a class. Classes with results of depthwise convolutions or operands of a
    Concat are padded to whole blocks; onnxruntime pads the others itself. A Concat's map follows from its operands.
    It has more channels than any of them, so sorting by channels finds the operands' maps first.
    """
    wanted = _unaligned_kernels(graph, roles)
    concats = {node.output[0]: node for node, role in with_roles(graph, roles) if role is Role.CONCAT}
    maps: Maps = {}
    sized = [(graph.shape(members[0])[1], members) for members in _classes(graph, roles)]
    for channels, members in sorted(sized):
        joined = {_joined_map(graph, maps, concats[name]) for name in members if name in concats}
        if not joined and not wanted.isdisjoint(members):
            joined = {ChannelMap.padded(channels, block)}
        if len(joined) == 1 and (found := joined.pop()).width > channels:
            maps.update(dict.fromkeys(members, found))
    return maps


def _classes(graph: EditableGraph, roles: Roles) -> list[list[str]]:
    """The results of nodes with roles, grouped by the channelwise nodes between them; O(edges log nodes)."""
    groups = {name: [name] for name in roles}
    for node, role in with_roles(graph, roles):
        for name in _operands(node) if role is Role.CHANNELWISE else ():
            smaller, larger = sorted((groups[name], groups[node.output[0]]), key=len)
            if smaller is not larger:
                larger.extend(smaller)
                groups.update(dict.fromkeys(smaller, larger))
    return list({id(group): group for group in groups.values()}.values())


def _unaligned_kernels(graph: EditableGraph, roles: Roles) -> set[str]:
    found: set[str] = set()
    for node, role in with_roles(graph, roles):
        if role is Role.CHANNELWISE and node.op_type == "Conv":
            found.add(node.output[0])
        if role is Role.CONCAT:
            found.update(node.input)
    return found
