"""The form in which fusion patterns see a graph, and the units that they find in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import integer
from iosched.models.wiring import is_standard, producers, reads, use_counts, writes

ACTIVATIONS = frozenset({
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Celu", "Selu", "Softplus",
    "Softsign", "Mish", "Gelu", "Swish",
})  # fmt: skip


@dataclass(frozen=True)
class Unit:
    """Nodes that make one operator, and all that the rest of the program knows of what a pattern has found.

    Attributes:
        type: the operator's type.
        nodes: their indices, in topological order.
        anchor: the node whose attributes are the operator's, and whose domain is the operator's.
        activation: the node that is the operator's activation, if there is one.
        residual: the node that adds another operator's value, if there is one.
        sums: the additions that were folded into the operator.
        quantizes: the node that makes the result whole numbers, if there is one.
        takes_sums: whether sums that nothing but the unit reads become part of it.
        merges: whether the operator may be merged, where `merge_rule` finds nothing against it; only what
            `models.chain` can take apart may.
    """

    type: str
    nodes: tuple[int, ...]
    anchor: int
    activation: int | None = None
    residual: int | None = None
    sums: tuple[int, ...] = ()
    quantizes: int | None = None
    takes_sums: bool = False
    merges: bool = True


@dataclass(frozen=True, eq=False)
class GraphView:
    """A graph with topologically ordered nodes, its weights, and the specs of its tensors."""

    graph: onnx.GraphProto
    weights: Mapping[str, np.ndarray]
    specs: Mapping[str, TensorSpec]

    @cached_property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """The nodes; patterns name them by their index."""
        return tuple(self.graph.node)

    @cached_property
    def producer(self) -> Mapping[str, int]:
        """For every computed tensor, the node that computes it."""
        return producers(self.nodes)

    @cached_property
    def uses(self) -> Counter[str]:
        """How often each tensor is read, by nodes or as a graph output."""
        return use_counts(self.graph)

    @cached_property
    def _readers(self) -> Mapping[str, tuple[int, ...]]:
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in reads(node):
                found.setdefault(name, []).append(index)
        return {name: tuple(readers) for name, readers in found.items()}

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """For every node, the number of nodes on the longest path to it."""
        depths: list[int] = []
        for node in self.nodes:
            before = (self.producer[name] for name in reads(node) if name in self.producer)
            depths.append(1 + max((depths[index] for index in before), default=0))
        return tuple(depths)

    def is_op(self, index: int | None, types: Iterable[str]) -> bool:
        """Whether a node is a standard operator of one of `types`."""
        return index is not None and is_standard(self.nodes[index]) and self.nodes[index].op_type in types

    def only_reader(self, index: int) -> int | None:
        """The only reader of a node that has one output; None where there are more, or the output is the graph's."""
        outputs = writes(self.nodes[index])
        if len(outputs) != 1 or self.uses[outputs[0]] != 1:
            return None
        readers = self._readers.get(outputs[0], ())
        return readers[0] if readers else None

    def constant_from(self, index: int, first: int) -> bool:
        """Whether all inputs of a node from position `first` on are constants (or left out)."""
        return all(not name or self.constant(name) is not None for name in self.nodes[index].input[first:])

    def constant(self, name: str) -> np.ndarray | None:
        """A weight, also behind nodes that quantize and dequantize it and that one node reads; None where it is none.

        The array has the shape of the weight; it may be whole numbers that stand for others.
        """
        index = self.producer.get(name)
        while index is not None and self.uses[name] == 1 and (self.is_quantize(index) or self.is_dequantize(index)):
            name, *parameters = self.nodes[index].input
            if not all(each in self.weights for each in parameters if each):
                return None
            index = self.producer.get(name)
        return self.weights.get(name)

    def kernel(self, index: int) -> tuple[int, ...]:
        """The shape of the constant that a convolution or a product multiplies by; () where it is none."""
        inputs = self.nodes[index].input
        weight = self.constant(inputs[1]) if len(inputs) > 1 else None
        return () if weight is None else weight.shape

    def is_quantize(self, index: int) -> bool:
        """Whether a node makes numbers whole: one of ONNX's, or onnxruntime's for types that ONNX had not."""
        return self._is_of(index, "QuantizeLinear")

    def is_dequantize(self, index: int) -> bool:
        """Whether a node undoes what `is_quantize` nodes do."""
        return self._is_of(index, "DequantizeLinear")

    def _is_of(self, index: int, kind: str) -> bool:
        node = self.nodes[index]
        return node.op_type == kind and (is_standard(node) or node.domain == "com.microsoft")

    def next_activation(self, index: int) -> int | None:
        """The activation that is the only reader of the node, and reads it as its first input."""
        reader = self.only_reader(index)
        if reader is None or not self.is_op(reader, ACTIVATIONS) or not self.constant_from(reader, 1):
            return None
        return reader if self.nodes[reader].input[0] == self.nodes[index].output[0] else None

    def next_gate(self, index: int) -> tuple[int, int] | None:
        """The two nodes of x * sigmoid(x), where nothing else reads the node x: the Sigmoid and the product."""
        (value, *more) = writes(self.nodes[index])
        readers = self._readers.get(value, ())
        if more or len(readers) != 2 or self.uses[value] != 2:
            return None
        sigmoid, product = readers
        if not self.is_op(sigmoid, ("Sigmoid",)) or not self.is_op(product, ("Mul",)):
            return None
        return (sigmoid, product) if self.only_reader(sigmoid) == product else None

    def next_batch_norm(self, index: int) -> int | None:
        """The BatchNormalization in inference mode that is the only reader of the node."""
        reader = self.only_reader(index)
        if reader is None or not self.is_op(reader, ("BatchNormalization",)) or not self.constant_from(reader, 1):
            return None
        trains = len(writes(self.nodes[reader])) != 1 or integer(self.nodes[reader], "training_mode")
        return None if trains else reader

    def same_shape(self, names: Iterable[str]) -> bool:
        """Whether all tensors have one static shape."""
        shapes = {spec.shape if (spec := self.specs.get(name)) else None for name in names}
        return len(shapes) == 1 and None not in shapes
