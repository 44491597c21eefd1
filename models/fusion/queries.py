"""Queries of fusion patterns on a graph, and the fusions that patterns find."""

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
    """Nodes that make one operator, by their names, and all that the program knows of what a pattern has found.

    Attributes:
        type: the operator's type.
        nodes: in topological order; a pattern may return them in any.
        anchor: the node whose attributes are the operator's, and whose domain is the operator's.
        activation: the node that is the operator's activation, if there is one.
        residual: the node that adds another operator's value, if there is one.
        sums: the additions that were folded into the operator, in topological order as `nodes`.
        quantizes: the node that makes the result whole numbers, if there is one.
        takes_sums: whether sums that nothing but the fusion reads become part of it.
        merges: whether the operator may be merged, where `merge_rule` finds nothing against it; only what
            `models.stacking` can take apart may.
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
    """The fusions that were found so far.

    Attributes:
        by_node: the fusion of each node, by name.
        depth: for every node of the graph, the number of nodes on the longest path to it.
    """

    depth: Mapping[str, int]
    by_node: dict[str, Fusion] = field(default_factory=dict)

    def of(self, node: onnx.NodeProto | None) -> Fusion | None:
        """The fusion that a node belongs to."""
        return None if node is None else self.by_node.get(node_name(node))


def depths(graph: EditableGraph) -> dict[str, int]:
    """For every node, the number of nodes on the longest path to it; O(nodes + edges)."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        before = (other for name in reads(node) if (other := graph.producer(name)) is not None)
        found[node_name(node)] = 1 + max((found[node_name(other)] for other in before), default=0)
    return found


def names_of(*nodes: onnx.NodeProto | None) -> tuple[str, ...]:
    """The names of the nodes that there are."""
    return tuple(node_name(node) for node in nodes if node is not None)


def name_of(node: onnx.NodeProto | None) -> str | None:
    """The name of a node, if there is one."""
    return None if node is None else node_name(node)


def is_op(node: onnx.NodeProto | None, *types: str) -> bool:
    """Whether there is a node, and it is a standard operator of one of `types`."""
    return node is not None and is_standard(node) and node.op_type in types


def only_reader(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The only reader of a node that has one output; None where there are more, or the output is the graph's."""
    outputs = writes(node)
    if len(outputs) != 1 or graph.uses(outputs[0]) != 1:
        return None
    return next(iter(graph.consumers(outputs[0])), None)


def constant_from(graph: EditableGraph, node: onnx.NodeProto, first: int) -> bool:
    """Whether all inputs of a node from position `first` on are constants (or left out)."""
    return all(not name or constant(graph, name) is not None for name in node.input[first:])


def constant(graph: EditableGraph, name: str) -> np.ndarray | None:
    """A weight, also behind nodes that quantize and dequantize it and that one node reads; None where it is none.

    The array has the shape of the weight; it may be whole numbers that stand for others.
    """
    node = graph.producer(name)
    while node is not None and graph.uses(name) == 1 and (is_quantize(node) or is_dequantize(node)):
        name, *parameters = node.input
        if not all(each in graph.weights for each in parameters if each):
            return None
        node = graph.producer(name)
    return graph.weights.get(name)


def kernel(graph: EditableGraph, node: onnx.NodeProto) -> tuple[int, ...]:
    """The shape of the constant that a convolution or a product multiplies by; () where it is none."""
    weight = constant(graph, node.input[1]) if len(node.input) > 1 else None
    return () if weight is None else weight.shape


def is_quantize(node: onnx.NodeProto) -> bool:
    """Whether a node makes numbers whole: one of ONNX's, or onnxruntime's for types that ONNX had not."""
    return node.op_type == "QuantizeLinear" and (is_standard(node) or node.domain == "com.microsoft")


def is_dequantize(node: onnx.NodeProto) -> bool:
    """Whether a node undoes what `is_quantize` nodes do."""
    return node.op_type == "DequantizeLinear" and (is_standard(node) or node.domain == "com.microsoft")


def next_activation(graph: EditableGraph, node: onnx.NodeProto, fusions: Fusions) -> onnx.NodeProto | None:
    """The activation of no fusion that is the only reader of the node, and reads it as its first input.

    A ReLU that leads a Relu-SepConv is of another fusion.
    """
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, *ACTIVATIONS) or not constant_from(graph, reader, 1) or fusions.of(reader):
        return None
    return reader if reader.input[0] == node.output[0] else None


def next_gate(graph: EditableGraph, node: onnx.NodeProto) -> tuple[onnx.NodeProto, onnx.NodeProto] | None:
    """The two nodes of x * sigmoid(x), where nothing else reads the node x: the Sigmoid and the product."""
    (value, *more) = writes(node)
    readers = {reader.op_type: reader for reader in graph.consumers(value)}
    sigmoid, product = readers.get("Sigmoid"), readers.get("Mul")
    if more or len(readers) != 2 or graph.uses(value) != 2 or sigmoid is None or product is None:
        return None
    if not is_standard(sigmoid) or not is_standard(product):
        return None
    return (sigmoid, product) if only_reader(graph, sigmoid) is product else None


def next_batch_norm(graph: EditableGraph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """The BatchNormalization in inference mode that is the only reader of the node."""
    reader = only_reader(graph, node)
    if reader is None or not is_op(reader, "BatchNormalization") or not constant_from(graph, reader, 1):
        return None
    return None if len(writes(reader)) != 1 or integer(reader, "training_mode") else reader


def same_shape(graph: EditableGraph, names: Iterable[str]) -> bool:
    """Whether all tensors have one static shape."""
    shapes = {spec.shape if (spec := graph.tensors.get(name)) else None for name in names}
    return len(shapes) == 1 and None not in shapes
