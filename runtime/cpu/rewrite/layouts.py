"""The layouts of tensors while a graph is brought into the blocked one; the rules are in `blocked`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import assign, integer
from iosched.models.wiring import is_standard, reads, writes

NCHWC = "com.microsoft.nchwc"
_CONVERSIONS = ("ReorderInput", "ReorderOutput")
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")

Rule = Callable[["Layouts", onnx.NodeProto], bool]
"""Writes a node in the blocked layout; False, and nothing written, where it cannot be. The node is a copy."""


def is_conversion(node: onnx.NodeProto, kind: str) -> bool:
    """Whether a node converts between the two layouts with channels before rows and columns."""
    return node.domain == NCHWC and node.op_type == kind and not integer(node, "channels_last")


@dataclass(eq=False)
class Layouts:
    """A copy of a graph that is rewritten node by node, and where its tensors are in which layout.

    Attributes:
        original: the graph as it was.
        block: channels in a block.
        graph: the copy.
        blocked: for tensors in the plain layout, the tensor that holds the same in the blocked one.
        alias: for tensors, an earlier one of the same shape and bytes.
        seen_as: for the result of a Reshape and its kin, the tensors of which it is a view.
        changed: for each tensor that a rule has written, the images that its node reads.
        convolutions: for tensors, the convolution made here that computes them in blocks, without an activation so far.
        written: the nodes that stand for the present one.
    """

    original: EditableGraph
    block: int
    graph: EditableGraph = field(init=False)
    blocked: dict[str, str] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    seen_as: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changed: dict[str, list[str]] = field(default_factory=dict)
    convolutions: dict[str, onnx.NodeProto] = field(default_factory=dict)
    written: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = self.original.copy()

    def take(self, present: onnx.NodeProto, rule: Rule | None) -> None:
        """Rewrites a node, in the blocked layout where `rule` says how; conversions still compute plain tensors."""
        node = onnx.NodeProto()
        node.CopyFrom(present)
        node.input[:] = [self.alias.get(name, name) for name in node.input]
        if is_conversion(node, "ReorderOutput"):
            self.blocked[node.output[0]] = node.input[0]
        elif is_conversion(node, "ReorderInput"):
            self._undo(node)
        elif is_standard(node) and node.op_type in _VIEWS:
            self._look_through(node)
        elif rule is not None and self._is_image_node(node) and self._change(node, rule):
            return
        if node.input != present.input:
            self.graph.replace(node_name(node), node)

    def _change(self, node: onnx.NodeProto, rule: Rule) -> bool:
        result = node.output[0]
        images = [name for name in node.input if name in self.blocked and prod(self.shape(name)[2:]) > 1]
        self.written = []
        if not rule(self, node):
            return False
        self.graph.replace(result, *self.written)
        if images:  # to convert single numbers for each channel costs nothing
            self.changed[result] = images
        return True

    def _undo(self, node: onnx.NodeProto) -> None:
        """A conversion of what was just converted back is what it was before."""
        before = self.blocked.get(node.input[0])
        if before is not None and self.shape(before) == self.shape(node.output[0]):
            self.alias[node.output[0]] = before

    def _look_through(self, node: onnx.NodeProto) -> None:
        """A view of a view that has the shape of an earlier one is that one."""
        source, result = node.input[0], node.output[0]
        specs = [self.graph.tensors.get(name) for name in (source, result)]
        if result in self.graph.outputs or not all(spec is not None and spec.is_static for spec in specs):
            return
        self.seen_as[result] = (source, *self.seen_as.get(source, ()))
        same = [name for name in self.seen_as[result] if self.shape(name) == self.shape(result)]
        if same:
            self.alias[result] = same[-1]

    def _is_image_node(self, node: onnx.NodeProto) -> bool:
        """Whether the node computes one (N, C, H, W) float32 of known size."""
        if writes(node) != (node.output[0],) or set(reads(node)) != {name for name in node.input if name}:
            return False
        spec = self.graph.tensors[node.output[0]]
        return spec.dtype == "float32" and spec.is_static and len(spec.shape or ()) == 4 and spec.nbytes > 0

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a computed tensor of known size, or of a constant."""
        return self.graph.shape(name)

    def computed(self, node: onnx.NodeProto) -> list[str]:
        """The operands that are no constants."""
        return [name for name in node.input if name in self.graph.tensors]

    def in_blocks(self, names: Sequence[str]) -> list[str] | None:
        """The tensors in the blocked layout; None where one of them is not there in it."""
        found = [self.blocked.get(name) for name in names]
        return None if not found or None in found else [name for name in found if name is not None]

    def emit(self, node: onnx.NodeProto, result: str, width: int) -> None:
        """Adds a node that computes `result` in blocks, of `width` channels, and the conversion to the plain layout."""
        batch, _, *size = self.shape(result)
        name = self.add_tensor(f"{result}/blocked", (batch, width, *size))
        node.output[0], node.name = name, name
        self.written.append(node)
        self._hold(result, name)

    def _hold(self, result: str, in_blocks: str) -> None:
        """Notes where the blocks of `result` are, and adds the conversion to the plain layout."""
        self.blocked[result] = in_blocks
        made = make_node("ReorderOutput", [in_blocks], [result], name=f"{result}/plain", domain=NCHWC)
        assign(made, channels=self.shape(result)[1])
        self.written.append(made)

    def view(self, source: str, shape: Sequence[int], label: str) -> str:
        """The bytes of `source` as a tensor of another shape."""
        target = self.add_weight(f"{label}/shape", np.array(shape, np.int64))
        result = self.add_tensor(f"{label}/view", shape)
        self.written.append(make_node("Reshape", [source, target], [result], name=result))
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
        if made is None or self.original.uses(source) > 1:
            return False
        assign(made, activation=activation)
        self._hold(result, made.output[0])
        return True

    def add_tensor(self, name: str, shape: Sequence[int]) -> str:
        """A new name for a float32 tensor of that shape."""
        name = self.graph.fresh(name)
        self.graph.tensors[name] = TensorSpec(name, "float32", tuple(shape))
        return name

    def add_weight(self, name: str, array: np.ndarray) -> str:
        """The name of a new constant."""
        return self.graph.add_weight(self.graph.fresh(name), array)

    def finish(self) -> None:
        """Takes out the conversions and views that nobody reads any more."""
        self.graph.drop_unread(
            lambda node: (node.domain == NCHWC and node.op_type in _CONVERSIONS) or node.op_type in _VIEWS
        )

    def idle(self) -> set[str]:
        """Results of nodes that were changed in vain: nobody wants them in blocks, and all that the nodes read is
        converted anyway.
        """
        found: set[str] = set()
        for name in self.changed:
            if [node_name(reader) for reader in self.graph.consumers(self.blocked[name])] == [name]:
                found |= self._idle_from(name)
        return found

    def _idle_from(self, name: str) -> set[str]:
        """The changed nodes that compute `name` from tensors that are there in the plain layout; none where not all."""
        found = {name}
        for image in self.changed[name]:
            if self.graph.producer(image) is not None:
                continue
            if image not in self.changed or len(self.graph.consumers(self.blocked[image])) != 1:
                return set()
            before = self._idle_from(image)
            if not before:
                return set()
            found |= before
        return found
