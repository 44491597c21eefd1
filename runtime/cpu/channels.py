"""Which tensors get more channels than the model gives them, and where their real channels then lie.

A tensor's *channel map* says at which of its channels the model's own stand; all others hold zeros. Convolutions choose
the map of what they compute; pooling, sums and their kin hand a map on from input to output; a Concat puts the maps of
its operands one after another. Everything else needs tensors as the model has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property
from math import inf

import numpy as np
import onnx

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer, number
from iosched.models.wiring import captures, is_standard, reads, writes
from iosched.runtime.cpu.windows import fills_with_zeros, padded_edges

# f(0) = 0, element by element or channel by channel.
_ZERO_TO_ZERO = frozenset({
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Erf", "Gelu", "HardSwish", "Mish",
    "Softsign", "Abs", "Neg", "Sqrt", "Identity", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool",
})  # fmt: skip
_ALL_OPERANDS = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min"})


class Role(Enum):
    """What a node does with channels."""

    DENSE = auto()
    """A convolution over all channels: reads any map and may write any."""
    CHANNELWISE = auto()
    """Computes each channel from the same channel of its operands; zeros give zeros, or can be made to."""
    CONCAT = auto()
    """Puts the channels of several operands one after another."""
    OPAQUE = auto()
    """Needs its operands as the model has them."""


@dataclass(frozen=True)
class ChannelMap:
    """Where the real channels of a tensor are.

    Attributes:
        width: channels that the tensor has.
        real: for each channel of the model's tensor, its place, in ascending order.
    """

    width: int
    real: tuple[int, ...]

    @property
    def is_identity(self) -> bool:
        """Whether the tensor is as the model has it."""
        return self.width == len(self.real)

    @classmethod
    def padded(cls, channels: int, block: int) -> ChannelMap:
        """Zeros at the end, up to a multiple of `block`."""
        return cls(-(-channels // block) * block, tuple(range(channels)))

    @classmethod
    def joined(cls, maps: Iterable[ChannelMap]) -> ChannelMap:
        """The map of tensors that stand one after another."""
        width, real = 0, list[int]()
        for item in maps:
            real.extend(width + place for place in item.real)
            width += item.width
        return cls(width, tuple(real))


@dataclass(frozen=True, eq=False)
class ChannelView:
    """A working graph as far as channels are concerned.

    Attributes:
        nodes: in topological order.
        weights: initializers by name.
        tensors: inputs and computed tensors by name.
        outputs: names of the graph outputs.
    """

    nodes: tuple[onnx.NodeProto, ...]
    weights: Mapping[str, np.ndarray]
    tensors: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """For each tensor, the nodes that read it, from inner graphs too."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(reads(node)):
                found.setdefault(name, []).append(index)
        return {name: tuple(indices) for name, indices in found.items()}

    @cached_property
    def public(self) -> frozenset[str]:
        """Tensors whose names are known outside: graph outputs, and what inner graphs read."""
        return frozenset(self.outputs).union(*(captures(node) for node in self.nodes))

    def is_image(self, name: str) -> bool:
        """Whether a tensor is a computed or given (N, C, H, W) float32 of known size."""
        spec = self.tensors.get(name)
        if spec is None or name in self.weights or spec.dtype != "float32" or spec.shape is None:
            return False
        return len(spec.shape) == 4 and all(size > 0 for size in spec.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor of known size."""
        return self.tensors[name].shape or ()

    def channels(self, name: str) -> int:
        """Size of the channel axis of an image in the model."""
        return self.shape(name)[1]


def operands(node: onnx.NodeProto) -> tuple[str, ...]:
    """The inputs of a node that carry channels; the others are its parameters."""
    return tuple(node.input) if node.op_type in _ALL_OPERANDS or node.op_type == "Concat" else tuple(node.input[:1])


def assign_roles(view: ChannelView, block: int) -> tuple[Role, ...]:
    """The role of each node; O(nodes + edges).

    A node hands maps on only where every operand's map is free to choose, that is, comes from convolutions.
    """
    found: list[Role] = []
    free: set[str] = set()
    for node in view.nodes:
        role = _own_role(view, node)
        if role is Role.CHANNELWISE and not free.issuperset(operands(node)):
            role = Role.OPAQUE
        if role is Role.CONCAT and not _is_worth_joining(view, node, free, block):
            role = Role.OPAQUE
        if role is not Role.OPAQUE:
            free.add(node.output[0])
        found.append(role)
    return tuple(found)


def _own_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    """The role that a node has where its operands allow it."""
    if not is_standard(node) or writes(node) != (node.output[0],) or captures(node):
        return Role.OPAQUE
    if not all(view.is_image(name) for name in (*operands(node), node.output[0])):
        return Role.OPAQUE
    if node.op_type in _ALL_OPERANDS:
        alike = {view.shape(name) for name in (*node.input, node.output[0])}
        return Role.CHANNELWISE if len(alike) == 1 else Role.OPAQUE
    if node.op_type in _ZERO_TO_ZERO:
        return Role.CHANNELWISE
    rule = _RULES.get(node.op_type)
    return rule(view, node) if rule else Role.OPAQUE


def _conv_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    parameters = [name for name in node.input[1:] if name]
    if not all(name in view.weights and view.weights[name].dtype == np.float32 for name in parameters):
        return Role.OPAQUE
    group = integer(node, "group", 1)
    if group == 1:
        return Role.DENSE
    is_depthwise = group == view.channels(node.input[0]) == view.channels(node.output[0])
    return Role.CHANNELWISE if is_depthwise else Role.OPAQUE


def _concat_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    if integer(node, "axis", 1) not in (1, -3):
        return Role.OPAQUE
    return Role.CONCAT if len(node.input) > 1 else Role.CHANNELWISE


def _norm_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    known = all(name in view.weights and view.weights[name].dtype == np.float32 for name in node.input[1:])
    return Role.CHANNELWISE if known and not integer(node, "training_mode") else Role.OPAQUE


def _clip_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    low = _clip_bound(view, node, 1, number(node, "min", -inf))
    high = _clip_bound(view, node, 2, number(node, "max", inf))
    return Role.CHANNELWISE if low <= 0 <= high else Role.OPAQUE


def _clip_bound(view: ChannelView, node: onnx.NodeProto, place: int, default: float) -> float:
    """A limit of a Clip; where only the run knows it, NaN, for which every comparison is false."""
    if len(node.input) > place and node.input[place]:
        weight = view.weights.get(node.input[place])
        return float("nan") if weight is None or weight.size != 1 else float(weight.item())
    return default


def _dropout_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    return Role.CHANNELWISE if len(node.input) < 3 or not node.input[2] else Role.OPAQUE


def _pad_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    is_spatial = padded_edges(node, view.weights) is not None and fills_with_zeros(node, view.weights)
    return Role.CHANNELWISE if is_spatial else Role.OPAQUE


def _slice_role(view: ChannelView, node: onnx.NodeProto) -> Role:
    axes = view.weights.get(node.input[3]) if any(node.input[3:4]) else None
    if axes is None or not all(name in view.weights for name in node.input[1:] if name):
        return Role.OPAQUE
    is_spatial = {int(axis) % 4 for axis in axes.reshape(-1)} <= {2, 3}
    return Role.CHANNELWISE if is_spatial else Role.OPAQUE


_RULES: Mapping[str, Callable[[ChannelView, onnx.NodeProto], Role]] = {
    "Conv": _conv_role,
    "Concat": _concat_role,
    "BatchNormalization": _norm_role,
    "Clip": _clip_role,
    "Dropout": _dropout_role,
    "Pad": _pad_role,
    "Slice": _slice_role,
}


def _is_worth_joining(view: ChannelView, node: onnx.NodeProto, free: set[str], block: int) -> bool:
    """Whether every operand of a Concat can be made whole blocks, and somebody reads the result as it then is."""
    if not all(name in free or view.channels(name) % block == 0 for name in node.input):
        return False
    readers = [view.nodes[index] for index in view.readers.get(node.output[0], ())]
    return any(_own_role(view, reader) is not Role.OPAQUE for reader in readers)


def channel_maps(view: ChannelView, roles: tuple[Role, ...], block: int) -> dict[str, ChannelMap]:
    """The maps of all tensors that change.

    Tensors that must share one map form a class. A class in which a depthwise convolution computes, or out of which a
    Concat reads, is padded to whole blocks; onnxruntime pads the others itself. The result of a Concat has the map that
    its operands make. As it has more channels than each of them, classes in the order of their channels know their
    operands' maps.
    """
    classes = _classes(view, roles)
    wanted = _unaligned_kernels(view, roles)
    made_by = {node.output[0]: node for node, role in zip(view.nodes, roles, strict=True) if role is Role.CONCAT}
    maps: dict[str, ChannelMap] = {}
    for members in sorted(classes, key=lambda names: view.channels(names[0])):
        channels = view.channels(members[0])
        joined = {ChannelMap.joined(_maps_of(view, made_by[t], maps)) for t in members if t in made_by}
        if not joined and not wanted.isdisjoint(members):
            joined = {ChannelMap.padded(channels, block)}
        if len(joined) == 1 and not (found := joined.pop()).is_identity:
            maps.update(dict.fromkeys(members, found))
    return maps


def _maps_of(view: ChannelView, node: onnx.NodeProto, maps: Mapping[str, ChannelMap]) -> list[ChannelMap]:
    return [maps.get(name) or ChannelMap.padded(view.channels(name), 1) for name in node.input]


def is_kept_whole(view: ChannelView, node: onnx.NodeProto, maps: Mapping[str, ChannelMap]) -> bool:
    """Whether the result of a Concat has the map that its operands make. Where several Concat disagree, none has."""
    result = maps.get(node.output[0]) or ChannelMap.padded(view.channels(node.output[0]), 1)
    return ChannelMap.joined(_maps_of(view, node, maps)) == result


def _classes(view: ChannelView, roles: tuple[Role, ...]) -> list[list[str]]:
    """Free tensors, grouped by the channelwise nodes between them (disjoint sets)."""
    root = {node.output[0]: node.output[0] for node, role in zip(view.nodes, roles, strict=True) if role != Role.OPAQUE}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = name = root[root[name]]
        return name

    for node, role in zip(view.nodes, roles, strict=True):
        if role is Role.CHANNELWISE:
            for name in operands(node):
                root[find(name)] = find(node.output[0])
    found: dict[str, list[str]] = {}
    for name in root:
        found.setdefault(find(name), []).append(name)
    return list(found.values())


def _unaligned_kernels(view: ChannelView, roles: tuple[Role, ...]) -> set[str]:
    """Tensors for whose sake their class is padded."""
    found: set[str] = set()
    for node, role in zip(view.nodes, roles, strict=True):
        if role is Role.CHANNELWISE and node.op_type == "Conv":
            found.add(node.output[0])
        if role is Role.CONCAT:
            found.update(node.input)
    return found
