"""A kernel graph while its tensors are kept in the blocked layout; the rules are in `blocked`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import assign, integer
from iosched.models.wiring import is_standard, reads, writes
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.working import fresh_name

NCHWC = "com.microsoft.nchwc"
_CONVERSIONS = ("ReorderInput", "ReorderOutput")
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")

Rule = Callable[["LayoutDraft", onnx.NodeProto], bool]
"""Adds a node to the draft in the blocked layout; False, and nothing added, where it cannot be."""


def is_conversion(node: onnx.NodeProto, kind: str) -> bool:
    """Whether a node converts between the two layouts with channels before rows and columns."""
    return node.domain == NCHWC and node.op_type == kind and not integer(node, "channels_last")


@dataclass(eq=False)
class LayoutDraft:
    """The graph as it is rewritten, node by node.

    Attributes:
        blocked: for tensors in the plain layout, the tensor that holds the same in the blocked one.
        alias: for tensors, an earlier one of the same shape and bytes.
        seen_as: for the result of a Reshape and its kin, the tensors of which it is a view.
        changed: for each tensor that a rule has made, the index of its node and the images that the node reads.
        convolutions: for tensors, the convolution made here that computes them in blocks, without an activation so far.
    """

    kernels: KernelGraph
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorSpec] = field(init=False)
    weights: dict[str, np.ndarray] = field(init=False)
    blocked: dict[str, str] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    seen_as: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changed: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    convolutions: dict[str, onnx.NodeProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = dict(self.kernels.tensors)
        self.weights = dict(self.kernels.weights)

    def take(self, index: int, rule: Rule | None) -> None:
        """Adds a node, in the blocked layout where `rule` says how; plain tensors stay to be had by conversions."""
        source, node = self.kernels.nodes[index], onnx.NodeProto()
        node.CopyFrom(source)
        node.input[:] = [self.alias.get(name, name) for name in node.input]
        if is_conversion(node, "ReorderOutput"):
            self.blocked[node.output[0]] = node.input[0]
        elif is_conversion(node, "ReorderInput"):
            self._undo(node)
        elif is_standard(node) and node.op_type in _VIEWS:
            self._look_through(node)
        elif rule is not None and self._is_image_node(node) and self._change(index, node, rule):
            return
        self.nodes.append(node)

    def _change(self, index: int, node: onnx.NodeProto, rule: Rule) -> bool:
        images = [name for name in node.input if name in self.blocked and prod(self.shape(name)[2:]) > 1]
        if not rule(self, node):
            return False
        if images:  # to convert single numbers for each channel costs nothing
            self.changed[self.kernels.nodes[index].output[0]] = (index, images)
        return True

    def _undo(self, node: onnx.NodeProto) -> None:
        """A conversion of what was just converted back is what it was before."""
        before = self.blocked.get(node.input[0])
        if before is not None and self.shape(before) == self.shape(node.output[0]):
            self.alias[node.output[0]] = before

    def _look_through(self, node: onnx.NodeProto) -> None:
        """A view of a view that has the shape of an earlier one is that one."""
        source, result = node.input[0], node.output[0]
        known = all(name in self.tensors and self.tensors[name].is_static for name in (source, result))
        if not known or result in self.kernels.outputs:
            return
        self.seen_as[result] = (source, *self.seen_as.get(source, ()))
        same = [name for name in self.seen_as[result] if self.shape(name) == self.shape(result)]
        if same:
            self.alias[result] = same[-1]

    def _is_image_node(self, node: onnx.NodeProto) -> bool:
        """Whether the node computes one (N, C, H, W) float32 of known size."""
        if writes(node) != (node.output[0],) or set(reads(node)) != {name for name in node.input if name}:
            return False
        spec = self.tensors[node.output[0]]
        return spec.dtype == "float32" and spec.is_static and len(spec.shape or ()) == 4 and spec.nbytes > 0

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a computed tensor of known size, or of a constant."""
        return self.weights[name].shape if name in self.weights else self.tensors[name].shape or ()

    def computed(self, node: onnx.NodeProto) -> list[str]:
        """The operands that are no constants."""
        return [name for name in node.input if name in self.tensors]

    def in_blocks(self, names: Sequence[str]) -> list[str] | None:
        """The tensors in the blocked layout; None where one of them is not there in it."""
        found = [self.blocked.get(name) for name in names]
        return None if not found or None in found else [name for name in found if name is not None]

    def emit(self, node: onnx.NodeProto, result: str, width: int) -> None:
        """Adds a node that computes `result` in blocks, of `width` channels, and the conversion to the plain layout."""
        batch, _, *size = self.shape(result)
        name = self.add_tensor(f"{result}/blocked", (batch, width, *size))
        node.output[0], node.name = name, name
        self.nodes.append(node)
        self._hold(result, name)

    def _hold(self, result: str, in_blocks: str) -> None:
        """Notes where the blocks of `result` are, and adds the conversion to the plain layout."""
        self.blocked[result] = in_blocks
        made = make_node("ReorderOutput", [in_blocks], [result], name=f"{result}/plain", domain=NCHWC)
        assign(made, channels=self.shape(result)[1])
        self.nodes.append(made)

    def view(self, source: str, shape: Sequence[int], label: str) -> str:
        """The bytes of `source` as a tensor of another shape."""
        target = self.add_weight(f"{label}/shape", np.array(shape, np.int64))
        result = self.add_tensor(f"{label}/view", shape)
        self.nodes.append(make_node("Reshape", [source, target], [result], name=result))
        return result

    def convolve(self, image: str, parameters: Sequence[str], result: str) -> None:
        """Adds a depthwise convolution of one by one of the blocks of `image`."""
        source = self.blocked[image]
        width = self.shape(source)[1]
        made = make_node("Conv", [source, *parameters], [result], domain=NCHWC, group=width, kernel_shape=[1, 1])
        self.emit(made, result, width)
        self.convolutions[result] = made

    def activate(self, source: str, activation: str, result: str) -> bool:
        """Lets the convolution that computes `source` apply an activation; not if it has one, or others read it."""
        made = self.convolutions.get(source)
        if made is None or len(self.kernels.readers[source]) > 1 or source in self.kernels.outputs:
            return False
        assign(made, activation=activation)
        self._hold(result, made.output[0])
        return True

    def add_tensor(self, name: str, shape: Sequence[int]) -> str:
        """A new name for a float32 tensor of that shape."""
        name = fresh_name(name, self.tensors, self.weights)
        self.tensors[name] = TensorSpec(name, "float32", tuple(shape))
        return name

    def add_weight(self, name: str, array: np.ndarray) -> str:
        """The name of a new constant."""
        name = fresh_name(name, self.tensors, self.weights)
        self.weights[name] = array
        return name

    def graph(self) -> KernelGraph:
        """What was drafted, without the conversions and views that nobody reads any more."""
        needed, kept = set(self.kernels.outputs), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            may_go = (node.domain == NCHWC and node.op_type in _CONVERSIONS) or node.op_type in _VIEWS
            if not may_go or not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(reads(node))
        there = needed.union(self.kernels.inputs, *(node.output for node in kept))
        tensors = {name: spec for name, spec in self.tensors.items() if name in there}
        weights = {name: array for name, array in self.weights.items() if name in there}
        return replace(self.kernels, nodes=tuple(reversed(kept)), tensors=tensors, weights=weights)

    def idle(self, result: KernelGraph) -> set[int]:
        """Nodes that were changed in vain: nobody wants what they compute in blocks, and all that they read is
        converted anyway.

        Args:
            result: the graph that this draft has become.
        """
        found: set[int] = set()
        for name in self.changed:
            if name in result.tensors and result.readers[self.blocked[name]] == (result.producer[name],):
                found |= self._idle_from(result, name)
        return found

    def _idle_from(self, result: KernelGraph, name: str) -> set[int]:
        """The changed nodes that compute `name` from tensors that are there in the plain layout; none where not all."""
        index, images = self.changed[name]
        found = {index}
        for image in images:
            if image in result.tensors:
                continue
            if image not in self.changed or len(result.readers[self.blocked[image]]) != 1:
                return set()
            before = self._idle_from(result, image)
            if not before:
                return set()
            found |= before
        return found
