"""What a mutator sees of a model: the nodes, the tensors between them, and their shapes. It can change none of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
import onnx

from iosched.models.digest import opsets_of
from iosched.models.errors import UsageError
from iosched.models.graph import AttributeValue, TensorSpec
from iosched.models.model import Model
from iosched.models.mutation.fit import outputs_of, type_of
from iosched.models.mutation.wires import Wires, wires_of
from iosched.models.node_attributes import plain_values
from iosched.models.shapes import dtype_of, shape_of, weight_spec
from iosched.models.wiring import dependencies_first, is_standard, reads, topological_order, writes


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


Types = dict[str, onnx.TypeProto]


@dataclass(frozen=True, eq=False)
class GraphView:
    """The graph as it is at one time.

    Attributes:
        protos: the nodes by name. They belong to the view, and are never changed.
        inputs: the names of what is fed.
        outputs: for each output of the graph the tensor that it returns, which is of the same name at first.
        weights: all constants by name; read-only.
        opsets: the version of each domain of operators.
        types: of what is fed, and of the computed tensors whose types are known by now; more are inferred when they
            are asked for.
        wires: which nodes compute and read each tensor.
    """

    protos: Mapping[str, onnx.NodeProto]
    inputs: tuple[str, ...]
    outputs: Mapping[str, str]
    weights: Mapping[str, np.ndarray]
    opsets: Mapping[str, int]
    types: Types
    wires: Wires

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, each after those that it reads. O(nodes log nodes), once."""
        listed = list(self.protos.values())
        return tuple(self.node(writes(listed[index])[0]) for index in topological_order(listed))

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            UsageError: there is none.
        """
        proto = self.protos.get(name)
        if proto is None:
            raise UsageError(f"the graph has no node {name!r}; a node is named by its first output")
        kind = proto.op_type if is_standard(proto) else f"{proto.domain}::{proto.op_type}"
        return Node(name, kind, tuple(proto.input), tuple(proto.output), MappingProxyType(plain_values(proto)))

    def producer(self, tensor: str) -> Node | None:
        """The node that computes a tensor; None for what is fed, constant, or not there."""
        name = self.producers.get(tensor)
        return None if name is None else self.node(name)

    def consumers(self, tensor: str) -> tuple[Node, ...]:
        """The nodes that read a tensor, each once, in no particular order."""
        return tuple(map(self.node, self.readers.get(tensor, ())))

    def spec(self, tensor: str) -> TensorSpec | None:
        """Type and shape of a tensor; None where it is not there, or its type is known only at run time.

        Raises:
            InvalidModelError: the shapes of what it is computed from do not fit together.
        """
        if tensor in self.weights:
            return weight_spec(tensor, self.weights[tensor])
        if tensor not in self.types and tensor in self.producers:
            self.infer(self.producers[tensor])
        kind = self.types.get(tensor)
        return None if kind is None or not dtype_of(kind) else TensorSpec(tensor, dtype_of(kind), shape_of(kind))

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
        return tensor in self.weights or tensor in self.inputs or tensor in self.producers

    def is_computed(self, tensor: str) -> bool:
        """Whether a tensor is fed or computed, and no constant."""
        return tensor in self.inputs or tensor in self.producers

    def is_only_read_by(self, tensor: str, node: Node) -> bool:
        """Whether nothing but `node` reads a tensor, and the graph does not return it."""
        return self.readers.get(tensor, ()) == (node.name,) and tensor not in self.outputs.values()

    def behind(self, name: str) -> frozenset[str]:
        """The nodes to which a path leads from node `name`, itself included. O(nodes + edges)."""
        found, waiting = {name}, [name]
        while waiting:
            for tensor in writes(self.protos[waiting.pop()]):
                fresh = [reader for reader in self.readers.get(tensor, ()) if reader not in found]
                found.update(fresh)
                waiting.extend(fresh)
        return frozenset(found)

    @property
    def producers(self) -> Mapping[str, str]:
        """For every computed tensor the name of its node."""
        return self.wires.producers

    @property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """For every tensor that is read the names of the nodes that read it, each once."""
        return self.wires.readers

    def unread(self) -> frozenset[str]:
        """The computed tensors that nothing reads and the graph does not return."""
        return frozenset(self.producers.keys() - self.readers.keys() - set(self.outputs.values()))

    def unfed(self) -> frozenset[str]:
        """The tensors that are read and not there."""
        return frozenset(self.readers.keys() - self.producers.keys() - self.weights.keys() - set(self.inputs))

    def untyped(self) -> frozenset[str]:
        """The computed tensors whose types were not inferred yet."""
        return frozenset(self.producers.keys() - self.types.keys())

    def with_node(self, node: onnx.NodeProto) -> GraphView:
        """The graph with one node more, or with another one in the place of the node of its name."""
        name = writes(node)[0]
        wires = self.wires.without(self.protos[name]) if name in self.protos else self.wires
        return replace(self, protos={**self.protos, name: node}, wires=wires.joined(node))

    def without_node(self, name: str) -> GraphView:
        """The graph without a node, and without the types of what that computes."""
        gone = self.protos[name]
        kept = {other: proto for other, proto in self.protos.items() if other != name}
        types = {tensor: kind for tensor, kind in self.types.items() if tensor not in writes(gone)}
        return replace(self, protos=kept, types=types, wires=self.wires.without(gone))

    def infer(self, name: str) -> None:
        """Find the types of what node `name` computes; those of what it reads are inferred before.

        Raises:
            InvalidModelError: the shapes do not fit together.
        """
        for node in dependencies_first([name], self._unknown_before):
            proto = self.protos[node]
            if not all(tensor in self.types for tensor in writes(proto)):
                self.types.update(outputs_of(proto, self._types_read(proto), self.weights, self.opsets))

    def _unknown_before(self, name: str) -> Iterator[str]:
        for tensor in reads(self.protos[name]):
            if tensor in self.producers and tensor not in self.types:
                yield self.producers[tensor]

    def _types_read(self, proto: onnx.NodeProto) -> Types:
        read = reads(proto)
        known = {name: self.types[name] for name in read if name in self.types}
        return known | {name: type_of(self.weights[name]) for name in read if name in self.weights}


def view_of(model: Model) -> GraphView:
    """The working graph of a model. O(nodes)."""
    graph = model.proto.graph
    known = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
    present = {value.name for value in graph.input}.union(*map(writes, graph.node))
    protos = {writes(node)[0]: node for node in graph.node}
    return GraphView(
        protos=protos,
        inputs=tuple(value.name for value in graph.input),
        outputs={value.name: value.name for value in graph.output},
        weights=dict(model.weights),
        opsets=opsets_of(model.proto),
        types={name: kind for name, kind in known.items() if name in present},
        wires=wires_of(protos),
    )
