"""Graph queries for fusion patterns, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.node_attributes import integer
from iosched.models.wiring import is_standard, reads, writes

ACTIVATIONS = frozenset({
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Celu", "Selu", "Softplus",
    "Softsign", "Mish", "Gelu", "Swish",
})  # fmt: skip


@dataclass(frozen=True)
class Fusion:
    """Nodes, by name, that make one operator.

    Attributes:
        type: the operator's type.
        nodes: in topological order; patterns may return any order.
        anchor: the node with the operator's attributes and domain.
        activation: the activation, if any.
        residual: the node that adds another operator's result, if any.
        sums: the additions folded into the operator, in topological order.
        quantizes: the node that quantizes the result, if any.
        takes_sums: whether sums that only this fusion reads join it.
        merges: whether the operator may be merged; only those that `merging.stacking` can take apart.
    """

    type: str
    nodes: tuple[str, ...]
    anchor: str
    activation: str | None = None
    residual: str | None = None
    sums: tuple[str, ...] = ()
    quantizes: str | None = None
    takes_sums: bool = False
    merges: bool = True


@dataclass(frozen=True, eq=False)
class Fusions:
    """The fusions found so far.

    Attributes:
        depth: the number of nodes on the longest path to each node.
        by_node: the fusion of each node, by name.
    """

    depth: Mapping[str, int]
    by_node: dict[str, Fusion] = field(default_factory=dict)

    def of(self, node: onnx.NodeProto | None) -> Fusion | None:
        """The fusion of a node, if any."""
        return None if node is None else self.by_node.get(node_name(node))


def depths(graph: EditableGraph) -> dict[str, int]:
    """The number of nodes on the longest path to each node; O(nodes + edges)."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        before = (other for name in reads(node) if (other := graph.producer(name)) is not None)
        found[node_name(node)] = 1 + max((found[node_name(other)] for other in before), default=0)
    return found


def names_of(*nodes: onnx.NodeProto | None) -> tuple[str, ...]:
    """The names of the nodes that are not None."""
    return tuple(node_name(node) for node in nodes if node is not None)


def name_of(node: onnx.NodeProto | None) -> str | None:
    """The name of a node, or None."""
    return None if node is None else node_name(node)


def is_op(node: onnx.NodeProto | None, *types: str) -> bool:
    """Whether the node exists, and is a standard operator of one of `types`."""
    return node is not None and is_standard(node) and node.op_type in types


def only_reader(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The only reader of a node with one output; None if there are more, or it is a graph output."""
    outputs = writes(node)
    if len(outputs) != 1 or graph.uses(outputs[0]) != 1:
        return None
    return next(iter(graph.consumers(outputs[0])), None)


def constant_from(graph: EditableGraph, node: onnx.NodeProto, first: int) -> bool:
    """Whether all inputs from position `first` on are constant (or omitted)."""
    return all(not name or constant(graph, name) is not None for name in node.input[first:])


def constant(graph: EditableGraph, name: str) -> np.ndarray | None:
    """A weight, also through quantizing nodes that only one node reads; None if it is not constant.

    The array has the weight's shape, but may be quantized.
    """
    node = graph.producer(name)
    while node is not None and graph.uses(name) == 1 and (is_quantize(node) or is_dequantize(node)):
        name, *parameters = node.input
        if not all(each in graph.weights for each in parameters if each):
            return None
        node = graph.producer(name)
    return graph.weights.get(name)


def kernel(graph: EditableGraph, node: onnx.NodeProto) -> tuple[int, ...]:
    """The shape of the weights of a convolution or product; () if they are not constant."""
    weight = constant(graph, node.input[1]) if len(node.input) > 1 else None
    return () if weight is None else weight.shape


def is_quantize(node: onnx.NodeProto) -> bool:
    """Whether a node quantizes: ONNX's operator, or onnxruntime's for more types."""
    return node.op_type == "QuantizeLinear" and (is_standard(node) or node.domain == "com.microsoft")


def is_dequantize(node: onnx.NodeProto) -> bool:
    """Whether a node dequantizes, as `is_quantize`."""
    return node.op_type == "DequantizeLinear" and (is_standard(node) or node.domain == "com.microsoft")


def next_activation(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> onnx.NodeProto | None:
    """The activation in no fusion that is the node's only reader, with the node as first input."""
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, *ACTIVATIONS) or not constant_from(graph, reader, 1) or fusions.of(reader):
        return None
    return reader if reader.input[0] == node.output[0] else None


def next_gate(graph: EditableGraph, node: onnx.NodeProto) -> tuple[onnx.NodeProto, onnx.NodeProto] | None:
    """The Sigmoid and product of x * sigmoid(x), if nothing else reads x, the node's result."""
    (value, *more) = writes(node)
    readers = {reader.op_type: reader for reader in graph.consumers(value)}
    sigmoid, product = readers.get("Sigmoid"), readers.get("Mul")
    if more or len(readers) != 2 or graph.uses(value) != 2 or sigmoid is None or product is None:
        return None
    if not is_standard(sigmoid) or not is_standard(product):
        return None
    return (sigmoid, product) if only_reader(graph, sigmoid) is product else None


def next_batch_norm(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The BatchNormalization in inference mode that is the node's only reader."""
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, "BatchNormalization") or not constant_from(graph, reader, 1):
        return None
    return None if len(writes(reader)) != 1 or integer(reader, "training_mode") else reader


def same_shape(graph: EditableGraph, names: Iterable[str]) -> bool:
    """Whether all tensors have one static shape."""
    shapes = {spec.shape if (spec := graph.tensors.get(name)) else None for name in names}
    return len(shapes) == 1 and None not in shapes
