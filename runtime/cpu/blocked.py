"""Keeps tensors in the blocked layout where onnxruntime would go back to the plain one in between.

onnxruntime carries the layout through convolutions, pooling and sums; at everything else it converts, and converts back
behind it. Most such operators compute the same in either layout, or can be written so that they do: elementwise ones as
they are, a product with a number for each channel as a depthwise convolution, Pad and Slice on another view of the same
bytes. Where channels end inside a block, the rest of the block may then hold any finite numbers, as it does after
onnxruntime's own Sigmoid: whatever reads blocks meets it with zero weights, and conversions leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np
import onnx
from onnx.helper import make_node

from iosched.models.affine import is_per_channel
from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer, text
from iosched.models.wiring import is_standard, reads, writes
from iosched.runtime.cpu.kernel_graph import KernelGraph

NCHWC = "com.microsoft.nchwc"
_CONVERSIONS = ("ReorderInput", "ReorderOutput")
_VIEWS = ("Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity")

# Finite at zero, element by element.
_UNARY = frozenset({
    "Relu", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Tanh", "Erf", "Gelu", "QuickGelu", "HardSwish",
    "HardSigmoid", "Sigmoid", "Mish", "Softsign", "Softplus", "Abs", "Neg", "Sqrt", "Exp", "Clip", "Swish",
})  # fmt: skip
_BINARY = frozenset({"Add", "Sub", "Mul", "Sum", "Max", "Min"})
_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})


def keep_blocked(kernels: KernelGraph) -> KernelGraph:
    """The graph with as few conversions between layouts as the rules of this file leave.

    Complexity: O(nodes + edges) for each round; another round is made without the operators that turned out to be
    better left in the plain layout.

    Args:
        kernels: what onnxruntime made of a model; not changed. Results are the same up to the order of summation.
    """
    if not kernels.is_typed or not any(_is_conversion(node, "ReorderOutput") for node in kernels.nodes):
        return kernels
    left: set[int] = set()
    while True:
        draft = _Draft(kernels)
        for index in range(len(kernels.nodes)):
            draft.take(index, may_change=index not in left)
        result = draft.graph()
        idle = draft.idle(result)
        if not idle:
            return result
        left |= idle


def _is_conversion(node: onnx.NodeProto, kind: str) -> bool:
    """Whether a node converts between the two layouts with channels before rows and columns."""
    return node.domain == NCHWC and node.op_type == kind and not integer(node, "channels_last")


@dataclass(eq=False)
class _Draft:
    """The graph as it is rewritten, node by node.

    Attributes:
        blocked: for tensors in the plain layout, the tensor that holds the same in the blocked one.
        alias: for tensors, an earlier one of the same shape and bytes.
        seen_as: for the result of a Reshape and its kin, the tensors of which it is a view.
        changed: for each tensor that a rule has made, the index of its node and the images that the node reads.
    """

    kernels: KernelGraph
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: dict[str, TensorSpec] = field(init=False)
    weights: dict[str, np.ndarray] = field(init=False)
    blocked: dict[str, str] = field(default_factory=dict)
    alias: dict[str, str] = field(default_factory=dict)
    seen_as: dict[str, tuple[str, ...]] = field(default_factory=dict)
    changed: dict[str, tuple[int, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors = dict(self.kernels.tensors)
        self.weights = dict(self.kernels.weights)

    def take(self, index: int, *, may_change: bool) -> None:
        """Adds a node, in the blocked layout where a rule says how; plain tensors stay to be had by conversions."""
        source, node = self.kernels.nodes[index], onnx.NodeProto()
        node.CopyFrom(source)
        node.input[:] = [self.alias.get(name, name) for name in node.input]
        if _is_conversion(node, "ReorderOutput"):
            self.blocked[node.output[0]] = node.input[0]
        elif _is_conversion(node, "ReorderInput"):
            self._undo(node)
        elif is_standard(node) and node.op_type in _VIEWS:
            self._look_through(node)
        elif may_change and self._is_image_node(node) and self._change(index, node):
            return
        self.nodes.append(node)

    def _change(self, index: int, node: onnx.NodeProto) -> bool:
        rule = _RULES.get((node.domain, node.op_type))
        images = [name for name in node.input if name in self.blocked and prod(self.shape(name)[2:]) > 1]
        if rule is None or not rule(self, node):
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
        if source not in self.tensors or not self.tensors[source].is_static or result in self.kernels.outputs:
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
        batch, channels, *size = self.shape(result)
        name = self.add_tensor(f"{result}/blocked", (batch, width, *size))
        node.output[0], node.name = name, name
        self.nodes.append(node)
        self.blocked[result] = name
        plain = make_node("ReorderOutput", [name], [result], name=f"{result}/plain", domain=NCHWC, channels=channels)
        self.nodes.append(plain)

    def view(self, source: str, shape: Sequence[int], label: str) -> str:
        """The bytes of `source` as a tensor of another shape."""
        target = self.add_weight(f"{label}/shape", np.array(shape, np.int64))
        result = self.add_tensor(f"{label}/view", shape)
        self.nodes.append(make_node("Reshape", [source, target], [result], name=result))
        return result

    def add_tensor(self, name: str, shape: Sequence[int]) -> str:
        """A new name for a float32 tensor of that shape."""
        name = self._fresh(name)
        self.tensors[name] = TensorSpec(name, "float32", tuple(shape))
        return name

    def add_weight(self, name: str, array: np.ndarray) -> str:
        """The name of a new constant."""
        name = self._fresh(name)
        self.weights[name] = array
        return name

    def _fresh(self, name: str) -> str:
        while name in self.tensors or name in self.weights:
            name += "'"
        return name

    def graph(self) -> KernelGraph:
        """What was drafted, without the conversions and views that nobody reads any more."""
        needed, kept = set(self.kernels.outputs), list[onnx.NodeProto]()
        for node in reversed(self.nodes):
            may_go = (node.domain == NCHWC and node.op_type in _CONVERSIONS) or node.op_type in _VIEWS
            if not may_go or not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(reads(node))
        there = {name for node in kept for name in node.output}.union(self.kernels.inputs)
        tensors = {name: spec for name, spec in self.tensors.items() if name in there}
        return replace(self.kernels, nodes=tuple(reversed(kept)), tensors=tensors, weights=self.weights)

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


def _elementwise(draft: _Draft, node: onnx.NodeProto) -> bool:
    """Every operand of one shape, or a single number: the same for any order of the elements."""
    result, computed = node.output[0], draft.computed(node)
    constants = [name for name in node.input if name in draft.weights]
    in_blocks = draft.in_blocks(computed)
    if in_blocks is None or any(draft.weights[name].size != 1 for name in constants):
        return False
    if {draft.shape(name) for name in computed} != {draft.shape(result)}:
        return False
    if len({draft.shape(name) for name in in_blocks}) != 1:
        return False
    names = dict(zip(computed, in_blocks, strict=True))
    node.input[:] = [names.get(name, name) for name in node.input]
    draft.emit(node, result, draft.shape(in_blocks[0])[1])
    return True


def _product(draft: _Draft, node: onnx.NodeProto) -> bool:
    """A product with a number for each channel is a depthwise convolution by it."""
    if _elementwise(draft, node):
        return True
    result, (left, right) = node.output[0], node.input
    for image, factor in ((left, right), (right, left)):
        if image not in draft.blocked or draft.shape(image) != draft.shape(result):
            continue
        filters = _filters(draft, factor, image, result)
        if filters is not None:
            _convolve(draft, image, [filters], result)
            return True
    return False


def _sum(draft: _Draft, node: onnx.NodeProto) -> bool:
    """A sum with a constant for each channel is a depthwise convolution by ones, with the constant as its bias."""
    if _elementwise(draft, node):
        return True
    if len(node.input) != 2:
        return False
    result, (left, right) = node.output[0], node.input
    for image, term in ((left, right), (right, left)):
        if image not in draft.blocked or draft.shape(image) != draft.shape(result):
            continue
        if term in draft.weights and is_per_channel(draft.weights[term].shape, 4):
            width = draft.shape(draft.blocked[image])[1]
            ones = draft.add_weight(f"{result}/ones", np.ones((width, 1, 1, 1), np.float32))
            bias = draft.add_weight(f"{result}/bias", _widened(draft, term, image))
            _convolve(draft, image, [ones, bias], result)
            return True
    return False


def _convolve(draft: _Draft, image: str, parameters: Sequence[str], result: str) -> None:
    """A depthwise convolution of one by one of the blocks of `image`."""
    source = draft.blocked[image]
    width = draft.shape(source)[1]
    made = make_node("Conv", [source, *parameters], [result], domain=NCHWC, group=width, kernel_shape=[1, 1])
    draft.emit(made, result, width)


def _filters(draft: _Draft, factor: str, image: str, result: str) -> str | None:
    """The name of a number for each channel of `image`, as filters of a depthwise convolution; None for others."""
    if factor in draft.weights:
        if not is_per_channel(draft.weights[factor].shape, 4):
            return None
        return draft.add_weight(f"{result}/filters", _widened(draft, factor, image).reshape(-1, 1, 1, 1))
    batch, channels, *size = draft.shape(image)
    width = draft.shape(draft.blocked[image])[1]
    source = draft.blocked.get(factor, factor if channels == width else None)
    if batch != 1 or prod(size) == 1 or draft.shape(factor) != (1, channels, 1, 1):
        return None
    if source is None or draft.shape(source)[1] != width:
        return None
    return draft.view(source, (width, 1, 1, 1), result)


def _widened(draft: _Draft, constant: str, image: str) -> np.ndarray:
    """A constant for each channel of `image`, and zeros up to the whole block: `(width,)`."""
    channels, width = draft.shape(image)[1], draft.shape(draft.blocked[image])[1]
    found = np.zeros(width, np.float32)
    found[:channels] = draft.weights[constant].reshape(-1)
    return found


def _concat(draft: _Draft, node: onnx.NodeProto) -> bool:
    """Along channels, of tensors that fill their blocks."""
    in_blocks = draft.in_blocks(list(node.input))
    if integer(node, "axis", 1) not in (1, -3) or in_blocks is None:
        return False
    if any(draft.shape(name) != draft.shape(inner) for name, inner in zip(node.input, in_blocks, strict=True)):
        return False
    node.input[:] = in_blocks
    draft.emit(node, node.output[0], draft.shape(node.output[0])[1])
    return True


def _pool(draft: _Draft, node: onnx.NodeProto) -> bool:
    source = draft.blocked.get(node.input[0])
    if source is None or integer(node, "storage_order"):
        return False
    node.input[0], node.domain = source, NCHWC
    draft.emit(node, node.output[0], draft.shape(source)[1])
    return True


def _pad(draft: _Draft, node: onnx.NodeProto) -> bool:
    """Of rows and columns: a Pad of the view (blocks, H, W, channels of a block)."""
    pads = draft.weights.get(node.input[1]) if len(node.input) > 1 else None
    if pads is None or pads.size != 8 or any(node.input[3:]) or any(pads[[0, 1, 4, 5]]):
        return False
    if text(node, "mode", "constant") != "constant" or any(
        name not in draft.weights for name in node.input[2:3] if name
    ):
        return False
    inner = draft.add_weight(f"{node.output[0]}/pads", np.array([0, *pads[2:4], 0, 0, *pads[6:], 0], np.int64))
    return _in_view(draft, node, {1: inner})


def _slice(draft: _Draft, node: onnx.NodeProto) -> bool:
    """Of rows and columns: a Slice of the view (blocks, H, W, channels of a block)."""
    if len(node.input) < 4 or not all(name in draft.weights for name in node.input[1:] if name):
        return False
    axes = [int(axis) % 4 for axis in draft.weights[node.input[3]].reshape(-1)]
    if not set(axes) <= {2, 3}:
        return False
    inner = draft.add_weight(f"{node.output[0]}/axes", np.array(axes, np.int64) - 1)
    return _in_view(draft, node, {3: inner})


def _in_view(draft: _Draft, node: onnx.NodeProto, changed: Mapping[int, str]) -> bool:
    """The node on the view (blocks, H, W, channels of a block) of its operand, with some parameters changed."""
    source, result, block = draft.blocked.get(node.input[0]), node.output[0], draft.kernels.channel_block
    if source is None:
        return False
    batch, width, *size = draft.shape(source)
    plain = draft.shape(result)
    node.input[0] = draft.view(source, (batch * width // block, *size, block), result)
    for place, name in changed.items():
        node.input[place] = name
    inner = draft.add_tensor(f"{result}/inner", (batch * width // block, *plain[2:], block))
    node.output[0], node.name = inner, inner
    draft.nodes.append(node)
    target = draft.add_weight(f"{result}/shape", np.array((batch, width, *plain[2:]), np.int64))
    draft.emit(make_node("Reshape", [inner, target], [result]), result, width)
    return True


_Rule = Callable[[_Draft, onnx.NodeProto], bool]
_RULES: Mapping[tuple[str, str], _Rule] = {
    **{(domain, name): _elementwise for domain in ("", "com.microsoft") for name in (*_UNARY, *_BINARY)},
    **{("", name): _pool for name in _POOLS},
    ("", "Add"): _sum,
    ("", "Sum"): _sum,
    ("", "Mul"): _product,
    ("", "Concat"): _concat,
    ("", "Pad"): _pad,
    ("", "Slice"): _slice,
}
