"""Exact channel alignment: zero channels up to whole vector blocks, so that no kernel leaves the blocked layout.

onnxruntime's NCHWc layout holds channels in blocks of 8 or 16. A depthwise convolution of other channel counts and a
Concat of such tensors fall back to the plain layout, with conversions around them. Here convolutions get zero filters
and zero biases up to a whole block, and whatever reads the new channels reads them with zero weights: sums gain zeros,
so results differ by the order of summation at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import onnx

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import assign
from iosched.models.wiring import reads
from iosched.runtime.cpu.channels import (
    ChannelMap,
    ChannelView,
    Role,
    assign_roles,
    channel_maps,
    is_kept_whole,
)
from iosched.runtime.cpu.working import WorkingGraph, fresh_name

_NORM_FILL = {1: 0.0, 2: 0.0, 3: 0.0, 4: 1.0}  # scale, bias, mean and variance that turn zero into zero


def align_channels(graph: WorkingGraph, block: int, *, max_growth: float = 1.25) -> WorkingGraph:
    """Pads the channels of convolutions with zeros to multiples of `block`; O(nodes + edges + weights).

    Inputs and outputs keep their shapes. Where an operator needs the real channels alone, a Gather takes them out.
    Tensors keep their names unless the graph's users see them.

    Args:
        graph: not changed.
        block: channels in a block; 1 changes nothing.
        max_growth: the most that convolutions may compute, relative to what they compute for onnxruntime as it is.

    Returns:
        The aligned graph; `graph` itself where there is nothing to gain.
    """
    outputs = tuple(value.name for value in graph.proto.graph.output)
    view = ChannelView(tuple(graph.proto.graph.node), graph.weights, graph.tensors, outputs)
    roles = assign_roles(view, block) if block > 1 else ()
    maps = channel_maps(view, roles, block) if roles else {}
    if not maps or _flops(view, roles, maps, block) > max_growth * _flops(view, roles, {}, block):
        return graph
    writer = _Writer(view, roles, maps)
    nodes = [written for index in range(len(view.nodes)) for written in writer.write(index)]
    return graph.rewritten(nodes, writer.weights, writer.specs())


def _flops(view: ChannelView, roles: tuple[Role, ...], maps: Mapping[str, ChannelMap], block: int) -> int:
    """Work of the convolutions; of dense ones, onnxruntime itself rounds both channel counts up to whole blocks."""
    total = 0
    for node, role in zip(view.nodes, roles, strict=True):
        if node.op_type != "Conv" or role is Role.OPAQUE:
            continue
        read, written = (_width(view, name, maps) for name in (node.input[0], node.output[0]))
        pairs = _rounded(read, block) * _rounded(written, block) if role is Role.DENSE else written
        total += pairs * prod(view.shape(node.output[0])[2:]) * prod(view.weights[node.input[1]].shape[2:])
    return total


def _rounded(channels: int, block: int) -> int:
    return -(-channels // block) * block


def _width(view: ChannelView, name: str, maps: Mapping[str, ChannelMap]) -> int:
    return maps[name].width if name in maps else view.channels(name)


def _scatter(array: np.ndarray, axis: int, channels: ChannelMap | None, fill: float = 0.0) -> np.ndarray:
    """The channels of `array` along `axis` at their new places, and `fill` in between."""
    if channels is None:
        return array
    shape = (*array.shape[:axis], channels.width, *array.shape[axis + 1 :])
    result = np.full(shape, fill, array.dtype)
    result[(slice(None),) * axis + (list(channels.real),)] = array
    return result


@dataclass(eq=False)
class _Writer:
    """Writes nodes over to the new maps, one after another.

    Tensors keep their names. The real channels of a changed tensor, where somebody needs them, get a new name, unless
    outsiders know the tensor by its name: then it is theirs.
    """

    view: ChannelView
    roles: tuple[Role, ...]
    maps: Mapping[str, ChannelMap]
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    taken: set[str] = field(init=False)
    padded: dict[str, str] = field(init=False)
    real: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = {*self.view.tensors, *self.view.weights, *(n for node in self.view.nodes for n in node.output)}
        self.padded = {t: self._fresh(f"{t}/aligned") if t in self.view.public else t for t in self.maps}
        needed = {t for i in range(len(self.roles)) if self._is_opaque(i) for t in reads(self.view.nodes[i])}
        self.real = {t: t for t in self.maps if t in self.view.public}
        self.real.update({t: self._fresh(f"{t}/real") for t in self.maps if t in needed and t not in self.real})

    def write(self, index: int) -> list[onnx.NodeProto]:
        """The node at `index` under the new maps, and after it the Gather of real channels where one is needed."""
        node = onnx.NodeProto()
        node.CopyFrom(self.view.nodes[index])
        names = self.real if self._is_opaque(index) else self.padded
        node.input[:] = [names.get(name, name) for name in node.input]
        if not self._is_opaque(index):
            self._rewrite(node, self.view.nodes[index], self.roles[index])
        result = node.output[0] if node.output else ""
        if result not in self.maps:
            return [node]
        node.output[0] = self.padded[result]
        return [node, self._gather(result)] if result in self.real else [node]

    def _is_opaque(self, index: int) -> bool:
        if self.roles[index] is Role.CONCAT:
            return not is_kept_whole(self.view, self.view.nodes[index], self.maps)
        return self.roles[index] is Role.OPAQUE

    def _rewrite(self, node: onnx.NodeProto, old: onnx.NodeProto, role: Role) -> None:
        """Gives `node` parameters for the channels that it now has."""
        read, written = self.maps.get(old.input[0]), self.maps.get(old.output[0])
        if node.op_type == "BatchNormalization":
            for place, fill in _NORM_FILL.items():
                node.input[place] = self._parameter(old.input[place], written, fill=fill)
        if node.op_type != "Conv":
            return
        node.input[1] = self._parameter(old.input[1], written, read if role is Role.DENSE else None)
        if len(old.input) > 2 and old.input[2]:
            node.input[2] = self._parameter(old.input[2], written)
        if role is Role.CHANNELWISE and written is not None:
            assign(node, group=written.width)

    def _parameter(
        self, name: str, first: ChannelMap | None, second: ChannelMap | None = None, *, fill: float = 0.0
    ) -> str:
        """The name of a weight with its first and second axis under new maps."""
        if first is None and second is None:
            return name
        array = _scatter(_scatter(self.view.weights[name], 1, second), 0, first, fill)
        return self._add(f"{name}/aligned", array)

    def _gather(self, tensor: str) -> onnx.NodeProto:
        """A node that takes the real channels out; by its name it belongs to the operator that computes the tensor."""
        indices = self._add(f"{tensor}/channels", np.array(self.maps[tensor].real, np.int64))
        name, inputs = self._fresh(f"{tensor}/gather"), [self.padded[tensor], indices]
        return onnx.helper.make_node("Gather", inputs, [self.real[tensor]], name=name, axis=1)

    def _add(self, name: str, array: np.ndarray) -> str:
        name = self._fresh(name)
        self.weights[name] = array
        return name

    def _fresh(self, name: str) -> str:
        name = fresh_name(name, self.taken)
        self.taken.add(name)
        return name

    def specs(self) -> dict[str, TensorSpec]:
        """Types and shapes of the tensors, with as many channels as the new maps give them."""
        found = dict(self.view.tensors)
        for tensor, channels in self.maps.items():
            spec = self.view.tensors[tensor]
            batch, _, *size = self.view.shape(tensor)
            padded = TensorSpec(self.padded[tensor], spec.dtype, (batch, channels.width, *size))
            real = replace(spec, name=self.real.get(tensor, tensor))
            found.update({real.name: real, padded.name: padded})
        return found
