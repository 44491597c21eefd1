"""A mutator's view of a model: the nodes, the tensors between them, and their shapes. It can change none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx

from iosched.models.digest import opsets_of
from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue, TensorSpec
from iosched.models.model import Model
from iosched.models.mutation.fit import infer
from iosched.models.node_attributes import plain_values
from iosched.models.shapes import dtype_of, shape_of, weight_spec
from iosched.models.wiring import is_standard, reads, topological_order, writes


@dataclass(frozen=True)
class Node:
    """A node of the working graph.

    Attributes:
        name: its first output, which no other node has.
        type: an ONNX op type ("Conv"); for operators outside ONNX's own domain "domain::Type".
        inputs: the tensors that it reads, weights included; "" where an optional one is left out.
        outputs: the tensors that it computes; "" likewise.
        attributes: those that it has; tensors and graphs are a hash of their bytes.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeValue] = field(hash=False)


@dataclass(frozen=True, eq=False)
class GraphView:
    """The graph as it is at one time.

    Attributes:
        editable: nodes, weights and types, none of which is changed. The inputs and the computed tensors whose types
            are known by now are `declared`; more are inferred when they are asked for.
        outputs: for each output of the graph the tensor that it returns, which is of the same name at first.
    """

    editable: EditableGraph
    outputs: Mapping[str, str]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of all inputs of the graph."""
        return tuple(self.editable.inputs)

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        """All constants by name; read-only."""
        return self.editable.weights

    @property
    def opsets(self) -> Mapping[str, int]:
        """The version of each domain of operators; ONNX's own is "ai.onnx"."""
        return opsets_of(self.editable.frame)

    @property
    def producers(self) -> Mapping[str, str]:
        """For every computed tensor the name of its node."""
        return {tensor: node_name(node) for node in self.editable.nodes for tensor in writes(node)}

    @property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """For every tensor that is read the names of the nodes that read it, each once."""
        read = dict.fromkeys(tensor for node in self.editable.nodes for tensor in reads(node))
        return {tensor: tuple(map(node_name, self.editable.consumers(tensor))) for tensor in read}

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after those that it reads. O(nodes log nodes), once."""
        protos = self.editable.nodes
        return tuple(_shown(protos[index]) for index in topological_order(protos))

    def has_node(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return self.editable.has_node(name)

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            UsageError: there is none.
        """
        if not self.editable.has_node(name):
            raise UsageError(f"the graph has no node {name!r}; a node is named by its first output")
        return _shown(self.editable.node(name))

    def producer(self, tensor: str) -> Node | None:
        """The node that computes a tensor; None for what is fed, constant, or not there."""
        proto = self.editable.producer(tensor)
        return None if proto is None else _shown(proto)

    def consumers(self, tensor: str) -> tuple[Node, ...]:
        """The nodes that read a tensor, each once, in no particular order."""
        return tuple(map(_shown, self.editable.consumers(tensor)))

    def spec(self, tensor: str) -> TensorSpec | None:
        """Type and shape of a tensor; None where it is not there, or its type is known only at run time.

        Raises:
            InvalidModelError: the shapes of what it is computed from do not fit together.
        """
        if tensor in self.weights:
            return weight_spec(tensor, self.weights[tensor])
        infer(self.editable, [tensor])
        value = self.editable.declared.get(tensor)
        if value is None or not dtype_of(value.type):
            return None
        return TensorSpec(tensor, dtype_of(value.type), shape_of(value.type))

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a tensor, weights included.

        Raises:
            UsageError: it is not known before the run, or there is no such tensor.
            InvalidModelError: the shapes of what it is computed from do not fit together.
        """
        spec = self.spec(tensor)
        if spec is None or spec.shape is None:
            known = "its shape is not known before the run" if self.has(tensor) else "there is none of that name"
            raise UsageError(f"tensor {tensor!r} cannot be asked for its shape: {known}")
        return spec.shape

    def has(self, tensor: str) -> bool:
        """Whether a tensor is fed, constant or computed."""
        return self.editable.has(tensor)

    def is_computed(self, tensor: str) -> bool:
        """Whether a tensor is fed or computed, and no constant."""
        return self.has(tensor) and tensor not in self.weights

    def is_only_read_by(self, tensor: str, node: Node) -> bool:
        """Whether nothing but `node` reads a tensor, and the graph does not return it."""
        readers = [reader.name for reader in self.consumers(tensor)]
        return readers == [node.name] and tensor not in self.outputs.values()

    def behind(self, name: str) -> frozenset[str]:
        """The nodes to which a path leads from node `name`, itself included. O(nodes + edges)."""
        producers = self.producers
        return frozenset(producers[tensor] for tensor in self.editable.computed_from(name))

    def unread(self) -> frozenset[str]:
        """The computed tensors that nothing reads and the graph does not return."""
        return frozenset(self.editable.unread.difference(self.outputs.values()))

    def unfed(self) -> frozenset[str]:
        """The tensors that are read and not there."""
        return frozenset(self.editable.missing)


def view_of(model: Model) -> GraphView:
    """The working graph of a model. O(nodes)."""
    graph = EditableGraph.of(model.proto, model.weights)
    known = graph.declared | graph.outputs | graph.inputs
    types = {name: value.type for name, value in known.items() if graph.has(name)}
    graph.declared = {name: onnx.ValueInfoProto(name=name, type=kind) for name, kind in types.items()}
    return GraphView(graph, {name: name for name in graph.outputs})


def _shown(proto: onnx.NodeProto) -> Node:
    kind = proto.op_type if is_standard(proto) else f"{proto.domain}::{proto.op_type}"
    attributes = MappingProxyType(plain_values(proto))
    return Node(node_name(proto), kind, tuple(proto.input), tuple(proto.output), attributes)
