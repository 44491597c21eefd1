"""Builds the nodes and constants of a merged operator.

Each merged operator, a part, is a chain: an optional ReLU, a convolution or product, nodes that scale and shift its
result, and an optional activation. Kernels are zero-padded to one size and stacked along the output channels, as are
the constants of scales and shifts. One activation follows, and a Split restores the parts' results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import onnx
from msgspec import Meta
from onnx import helper

from iosched.models.fusion.affine import affine_of, epsilon_of
from iosched.models.fusion.queries import ACTIVATIONS
from iosched.models.merging.rule import is_row
from iosched.models.node_attributes import integer, integers, names, serialized, values
from iosched.models.wiring import is_standard

_SPLIT_INPUT_OPSET = 13  # Split has its sizes as an input since this opset, and as an attribute before
_KNOWN_ATTRIBUTES = {
    "Conv": {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"},
    "Gemm": {"alpha", "beta", "transA", "transB"},
    "MatMul": set(),
}

Size = Annotated[int, Meta(gt=0, lt=2**31)]
"""A plausible extent in a model's metadata."""


@dataclass(frozen=True, eq=False)
class Chain:
    """A convolution or product with constant weights, and the nodes around it.

    Attributes:
        weights: constants by name, including those that the nodes read.
        relu: the ReLU before the anchor, if any.
        anchor: the Conv, Gemm or MatMul.
        linear: nodes after a convolution that scale and shift channels; after a product, at most one Add of a bias.
        activation: no node, one, or the two nodes of x * sigmoid(x).
    """

    weights: Mapping[str, np.ndarray]
    relu: onnx.NodeProto | None
    anchor: onnx.NodeProto
    linear: tuple[onnx.NodeProto, ...]
    activation: tuple[onnx.NodeProto, ...]

    @property
    def source(self) -> str:
        """The chain's input."""
        return str((self.relu or self.anchor).input[0])

    @property
    def output(self) -> str:
        """The chain's result."""
        return str(self.nodes[-1].output[0])

    @property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All nodes, in execution order."""
        return (*([self.relu] if self.relu is not None else []), self.anchor, *self.linear, *self.activation)

    @property
    def is_convolution(self) -> bool:
        """Whether the anchor is a convolution rather than a product."""
        return bool(self.anchor.op_type == "Conv")

    @property
    def weight(self) -> np.ndarray:
        """The anchor's weights: (out, in, *kernel) of a convolution; (in, out) of a product, transposed (out, in)."""
        return self.weights[self.anchor.input[1]]

    @property
    def axis(self) -> int:
        """The axis of `weight` for output channels or columns."""
        return 0 if self.is_convolution or integer(self.anchor, "transB") else 1

    @property
    def width(self) -> int:
        """The number of output channels or columns."""
        return int(self.weight.shape[self.axis])

    @property
    def bias(self) -> str:
        """The name of the anchor's own bias; "" if it has none."""
        return str(self.anchor.input[2]) if len(self.anchor.input) > 2 else ""


def chain_of(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray]) -> Chain | None:
    """The chain of `nodes`, each of which reads the result of the one before and constants; None for others."""
    if any(not is_standard(node) or [bool(name) for name in node.output] != [True] for node in nodes):
        return None
    relu = nodes[0] if len(nodes) > 1 and nodes[0].op_type == "Relu" else None
    if not nodes:
        return None
    anchor, *rest = nodes[1:] if relu is not None else nodes
    if not _is_anchor(anchor, weights) or (relu is not None and anchor.input[0] != relu.output[0]):
        return None
    bare = Chain(weights, relu, anchor, (), ())
    if not bare.source or bare.source in weights:
        return None
    linear, source = 0, anchor.output[0]
    while linear < len(rest) and _is_linear(bare, rest[linear], source):
        source = rest[linear].output[0]
        linear += 1
    activation = tuple(rest[linear:])
    if activation and not _is_activation(activation, source, weights):
        return None
    return Chain(weights, relu, anchor, tuple(rest[:linear]), activation)


def is_gate(nodes: Sequence[onnx.NodeProto], source: str) -> bool:
    """Whether `nodes` are the two of x * sigmoid(x) for x = `source`."""
    if [node.op_type for node in nodes] != ["Sigmoid", "Mul"] or list(nodes[0].input) != [source]:
        return False
    return sorted(nodes[1].input) == sorted([source, nodes[0].output[0]])


def _is_anchor(node: onnx.NodeProto, weights: Mapping[str, np.ndarray]) -> bool:
    known = _KNOWN_ATTRIBUTES.get(node.op_type)
    if known is None or not known.issuperset(names(node)) or len(node.input) not in (2, 3):
        return False
    constants = [name for name in node.input[1:] if name]
    if not constants or constants[0] != node.input[1] or any(name not in weights for name in constants):
        return False
    bare = Chain(weights, None, node, (), ())
    if bare.weight.ndim < 3 if bare.is_convolution else bare.weight.ndim != 2:
        return False
    shape = weights[bare.bias].shape if bare.bias else (bare.width,)
    return shape == (bare.width,) if bare.is_convolution else is_row(shape, bare.width)


def _is_linear(chain: Chain, node: onnx.NodeProto, source: str) -> bool:
    if chain.is_convolution:
        if integer(node, "training_mode"):
            return False
        return affine_of(node, source, chain.weights, chain.width, chain.weight.ndim) is not None
    others = [name for name in node.input if name != source]
    if node.op_type != "Add" or source != chain.anchor.output[0] or len(node.input) != 2 or len(others) != 1:
        return False
    return others[0] in chain.weights and is_row(chain.weights[others[0]].shape, chain.width)


def _is_activation(nodes: Sequence[onnx.NodeProto], source: str, weights: Mapping[str, np.ndarray]) -> bool:
    first = nodes[0]
    if is_gate(nodes, source):
        return True
    constants = all(not name or name in weights for name in first.input[1:])
    return len(nodes) == 1 and first.op_type in ACTIVATIONS and first.input[0] == source and constants


@dataclass(frozen=True)
class Origin:
    """Where the values of a part's constant are in a merged constant.

    Attributes:
        source: the merged constant's name.
        axis: the axis along which the part has separate rows; None if the parts share the constant.
        shape: of the part's constant.
    """

    source: str
    axis: Annotated[int, Meta(ge=0, le=1)] | None
    shape: tuple[Size, ...]


@dataclass(frozen=True, eq=False)
class Stacked:
    """The merged operator.

    Attributes:
        nodes: in topological order; the last is the Split.
        constants: the new constants by name.
        origins: for each part, the origin of each of its constants, by name.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, np.ndarray]
    origins: tuple[Mapping[str, Origin], ...]


def stacked(parts: Sequence[Chain], pads: Sequence[int], base: str, opset: int) -> Stacked:
    """The merged operator of `parts`; the caller has checked that merging is exact.

    Args:
        pads: the padding of the merged convolution; () for products.
        base: the tensor that the Split reads, and the prefix of all other new names.
        opset: the version of ONNX's own operators.
    """
    draft = _MergedOperator(parts, base)
    if (relu := parts[0].relu) is not None:
        draft.append(relu, [draft.last], f"{base}/relu")
    draft.append_anchor(pads)
    for number, own in enumerate(_steps(parts)):
        draft.append_affine(f"{base}/step{number}", own)
    draft.append_activation()
    draft.nodes[-1].output[0] = base
    draft.append_split(opset)
    for node in draft.nodes:
        node.name = node.output[0]
    return Stacked(tuple(draft.nodes), draft.constants, tuple(draft.origins))


def margins(own: Sequence[int], kernel: Sequence[int]) -> list[int]:
    """The zeros on either side that pad a kernel from size `own` to `kernel`, for every axis."""
    return [(large - small) // 2 for large, small in zip(kernel, own, strict=True)]


def padded_kernel(weight: np.ndarray, kernel: Sequence[int]) -> np.ndarray:
    """A weight `(out, in, *own)` with its kernel zero-padded to size `kernel`; unchanged for ()."""
    around = [(margin, margin) for margin in margins(weight.shape[2:], kernel)] if kernel else []
    return np.pad(weight, [(0, 0), (0, 0), *around])


def _steps(parts: Sequence[Chain]) -> list[tuple[onnx.NodeProto | None, ...]]:
    """The scales and shifts of the merged operator, in order: each part's own node, or None.

    Parts with equal sequences of node types share steps.
    """
    found: list[tuple[onnx.NodeProto | None, ...]] = []
    kinds = [tuple(_kind(node) for node in part.linear) for part in parts]
    for kind in dict.fromkeys(kinds):
        pairs = zip(parts, kinds, strict=True)
        own = [part.linear if same == kind else [None] * len(kind) for part, same in pairs]
        found.extend(zip(*own, strict=True))
    return found


def _kind(node: onnx.NodeProto) -> object:
    return node.op_type, serialized(node)


@dataclass(eq=False)
class _MergedOperator:
    """A merged operator under construction."""

    parts: Sequence[Chain]
    base: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.origins: list[dict[str, Origin]] = [{} for _ in self.parts]
        self.first = self.parts[0]
        self.dtype = self.first.weight.dtype

    @property
    def last(self) -> str:
        return str(self.nodes[-1].output[0]) if self.nodes else self.first.source

    def append(self, like: onnx.NodeProto, inputs: Sequence[str], output: str) -> None:
        node = helper.make_node(like.op_type, list(inputs), [output])
        node.attribute.extend(like.attribute)
        self.nodes.append(node)

    def append_anchor(self, pads: Sequence[int]) -> None:
        name, first = f"{self.base}/weight", self.first
        sizes = zip(*(part.weight.shape[2:] for part in self.parts), strict=True)
        kernel = tuple(max(size) for size in sizes)
        rows = [padded_kernel(part.weight, kernel) for part in self.parts]
        self.constants[name] = np.concatenate(rows, axis=first.axis)
        for part, origins in zip(self.parts, self.origins, strict=True):
            origins[part.anchor.input[1]] = Origin(name, first.axis, part.weight.shape)
        inputs = [self.last, name]
        if any(part.bias for part in self.parts):
            inputs.append(self.stack(f"{self.base}/bias", [part.bias for part in self.parts], 0.0, 0))
        attributes: dict[str, Any] = values(first.anchor)
        if first.is_convolution:
            ones = (1,) * len(kernel)
            stepped = {key: integers(first.anchor, key, ones) for key in ("dilations", "strides")}
            attributes = {"group": 1, "kernel_shape": kernel, "pads": pads, **stepped}
        node = helper.make_node(first.anchor.op_type, inputs, [f"{self.base}/linear"], **attributes)
        self.nodes.append(node)

    def append_affine(self, name: str, own: Sequence[onnx.NodeProto | None]) -> None:
        """Append one scale or shift of every channel, neutral for parts whose node in `own` is None."""
        like = next(node for node in own if node is not None)
        trailing = self.first.weight.ndim - 2 if self.first.is_convolution else 0
        neutral = {like.op_type: float(like.op_type == "Mul")}
        if like.op_type == "BatchNormalization":
            trailing = 0
            neutral = {"scale": 1.0, "bias": 0.0, "mean": 0.0, "variance": 1.0 - epsilon_of(like)}
        read = [
            [item for item in node.input if item in part.weights] if node else [""] * len(neutral)
            for node, part in zip(own, self.parts, strict=True)
        ]
        constants = [
            self.stack(f"{name}/{role}", names, neutral[role], trailing)
            for role, names in zip(neutral, zip(*read, strict=True), strict=True)
        ]
        self.append(like, [self.last, *constants], f"{name}/result")

    def stack(self, name: str, own: Sequence[str], neutral: float, trailing: int) -> str:
        """Add a merged constant with one number for each result of each part, and return its name.

        Args:
            name: of the merged constant.
            own: the name of each part's constant; "" for `neutral`.
            neutral: the number that changes nothing.
            trailing: axes of extent 1, for broadcasting over an image.
        """
        rows = []
        for part, origins, constant in zip(self.parts, self.origins, own, strict=True):
            values = part.weights[constant] if constant else np.array(neutral, self.dtype)
            rows.append(np.broadcast_to(values.reshape(-1), (part.width,)))
            if constant:
                origins.setdefault(constant, Origin(name, 0, values.shape))
        self.constants[name] = np.concatenate(rows).reshape(-1, *(1,) * trailing)
        return name

    def append_activation(self) -> None:
        """Append the activation, with the first part's constants; they are equal for all parts."""
        before = self.last
        for number, node in enumerate(self.first.activation):
            for part, origins in zip(self.parts, self.origins, strict=True):
                for own, name in zip(part.activation[number].input, node.input, strict=False):
                    if own in part.weights:
                        origins.setdefault(own, Origin(name, None, part.weights[own].shape))
            is_product = self.last != before  # of x * sigmoid(x)
            rest = [self.last] if is_product else node.input[1:]
            self.append(node, [before, *rest], f"{self.base}/gate")

    def append_split(self, opset: int) -> None:
        """Append the Split, whose outputs have the names of the parts' results."""
        sizes, outputs = [part.width for part in self.parts], [part.output for part in self.parts]
        axis = 1 if self.first.is_convolution else -1
        if opset < _SPLIT_INPUT_OPSET:
            self.nodes.append(helper.make_node("Split", [self.base], outputs, axis=axis, split=sizes))
            return
        self.constants[f"{self.base}/split"] = np.array(sizes, np.int64)
        self.nodes.append(helper.make_node("Split", [self.base, f"{self.base}/split"], outputs, axis=axis))
