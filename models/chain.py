"""Takes the nodes of an operator that can be merged apart by what they do.

They are an optional ReLU, a convolution or a product, the nodes that scale and shift its result, and an optional
activation, each reading the result of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.affine import affine_of
from iosched.models.fusion.queries import ACTIVATIONS
from iosched.models.merge_rule import is_row
from iosched.models.node_attributes import integer, names
from iosched.models.wiring import is_standard

_KNOWN_ATTRIBUTES = {
    "Conv": {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"},
    "Gemm": {"alpha", "beta", "transA", "transB"},
    "MatMul": set(),
}


@dataclass(frozen=True, eq=False)
class Chain:
    """A convolution or a product with a matrix of weights, and the nodes before and behind it.

    Attributes:
        weights: the constants that the nodes read, by name, among others.
        relu: the ReLU whose result the anchor reads; None where the anchor reads the chain's source itself.
        anchor: the Conv, Gemm or MatMul.
        linear: the nodes behind a convolution that scale and shift every channel; behind a product, at most one Add of
            a constant bias.
        activation: no node, one, or the two nodes of x * sigmoid(x).
    """

    weights: Mapping[str, np.ndarray]
    relu: onnx.NodeProto | None
    anchor: onnx.NodeProto
    linear: tuple[onnx.NodeProto, ...]
    activation: tuple[onnx.NodeProto, ...]

    @property
    def source(self) -> str:
        """The tensor that the chain reads."""
        return str((self.relu or self.anchor).input[0])

    @property
    def output(self) -> str:
        """The tensor that the chain computes."""
        return str(self.nodes[-1].output[0])

    @property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All nodes of the chain, in the order in which they run."""
        return (*([self.relu] if self.relu is not None else []), self.anchor, *self.linear, *self.activation)

    @property
    def is_convolution(self) -> bool:
        """Whether the anchor is a convolution, not a product."""
        return bool(self.anchor.op_type == "Conv")

    @property
    def weight(self) -> np.ndarray:
        """The anchor's weights: (out, in, *kernel) of a convolution; (in, out) of a product, transposed (out, in)."""
        return self.weights[self.anchor.input[1]]

    @property
    def axis(self) -> int:
        """The axis of `weight` that counts the results: output channels or columns."""
        return 0 if self.is_convolution or integer(self.anchor, "transB") else 1

    @property
    def width(self) -> int:
        """How many channels or columns the chain computes."""
        return int(self.weight.shape[self.axis])

    @property
    def bias(self) -> str:
        """The name of the bias that the anchor itself reads; "" where it reads none."""
        return str(self.anchor.input[2]) if len(self.anchor.input) > 2 else ""


def chain_of(nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray]) -> Chain | None:
    """The chain that `nodes` make, in this order; None where they make none.

    Each node must read the result of the node before it, and constants beside it.
    """
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
    """Whether `nodes` are the two of x * sigmoid(x), where x is `source`."""
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
