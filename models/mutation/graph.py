"""A mutator's view of a model: the nodes, the tensors between them, and their shapes. It can change none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx

from iosched.models.editable_graph import EditableGraph, node_name
from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue, TensorSpec
from iosched.models.model import Model
from iosched.models.mutation.fit import infer
from iosched.models.node_attributes import plain_values
from iosched.models.shapes import dtype_of, shape_of, weight_spec
from iosched.models.wiring import is_standard, topological_order


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
