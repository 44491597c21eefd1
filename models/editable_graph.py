"""The graph that rewrites edit: ONNX nodes in order, weights, types, and the uses of every tensor.

A pass is a function that changes an `EditableGraph` in place. Its methods are named as in onnx-ir (ADR 0042).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import onnx

from iosched.models.errors import InvalidModelError
from iosched.models.graph import TensorSpec
from iosched.models.initializers import describe_weight
from iosched.models.node_attributes import copied
from iosched.models.wiring import captures, reads, standard_opset, topological_order, writes

_END = ""
"""The sentinel before the first and after the last node."""
_CONTENT = ("node", "initializer", "value_info", "input", "output")


def node_name(node: onnx.NodeProto) -> str:
    """The name of a node in a graph: its first output that is not omitted."""
    return str(node.output[0] or next(filter(None, node.output)))


def bare_frame(name: str, ir_version: int, opset_import: Iterable[onnx.OperatorSetIdProto]) -> onnx.ModelProto:
    """The frame of a new graph, without metadata."""
    frame = onnx.ModelProto(ir_version=ir_version, opset_import=opset_import)
    frame.graph.name = name
    return frame


class EditableGraph:
    """A graph that is edited node by node; every edit is O(edges of the node).

    The graph owns its nodes. Attributes may be changed in place; inputs and outputs only by these methods.

    Attributes:
        frame: the model without its graph's content: versions, opsets and metadata.
        inputs: declarations of inputs, by name.
        outputs: declarations of outputs, by name.
        declared: declarations of some computed tensors, by name.
        weights: all constants by name.
        tensors: known types and shapes of inputs and computed tensors.
    """

    def __init__(self, frame: onnx.ModelProto, nodes: Iterable[onnx.NodeProto] = ()) -> None:
        """A graph of `nodes`, in this order, except those without outputs.

        Raises:
            InvalidModelError: two nodes compute a tensor of one name.
        """
        self.frame = frame
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.outputs: dict[str, onnx.ValueInfoProto] = {}
        self.declared: dict[str, onnx.ValueInfoProto] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.tensors: dict[str, TensorSpec] = {}
        self._nodes: dict[str, onnx.NodeProto] = {}
        self._next, self._previous = {_END: _END}, {_END: _END}
        self._producers: dict[str, str] = {}
        self._uses: dict[str, dict[str, int]] = {}
        self._own_uses: set[str] = set()  # tensors whose readers are not shared with a copy of this graph
        self._initializers: dict[str, tuple[np.ndarray, onnx.TensorProto]] = {}
        for node in nodes:
            if any(node.output):
                self.append(node)

    @classmethod
    def of(
        cls,
        proto: onnx.ModelProto,
        weights: Mapping[str, np.ndarray],
        tensors: Mapping[str, TensorSpec] | None = None,
        *,
        is_own: bool = False,
    ) -> EditableGraph:
        """The graph of a copy of a model; its initializers are replaced by `weights`.

        Args:
            is_own: take over `proto` without a copy; the caller must not use it again.

        Raises:
            InvalidModelError: two nodes compute a tensor of one name, or an input or output is declared twice.
        """
        own, frame = proto if is_own else copied(proto), copied(proto)
        for field in _CONTENT:
            frame.graph.ClearField(field)
        graph = cls(copied(frame), own.graph.node)  # the first copy still holds the cleared memory
        graph.inputs = _by_name("input", (value for value in own.graph.input if value.name not in weights))
        graph.outputs = _by_name("output", own.graph.output)
        graph.declared = {value.name: value for value in own.graph.value_info}
        graph.weights = dict(weights)
        graph.tensors = dict(tensors or {})
        return graph

    def copy(self) -> EditableGraph:
        """An independent graph of the same node objects."""
        made = EditableGraph(self.frame)
        made.__dict__.update({key: dict(value) for key, value in self.__dict__.items() if isinstance(value, dict)})
        self._own_uses = set()
        return made

    def to_proto(self) -> onnx.ModelProto:
        """The model, with initializers as `describe_weight` makes them."""
        made = copied(self.frame)
        made.graph.node.extend(self.nodes)
        made.graph.input.extend(self.inputs.values())
        made.graph.output.extend(self.outputs.values())
        made.graph.value_info.extend(value for name, value in self.declared.items() if name in self._producers)
        made.graph.initializer.extend(map(self._initializer, self.weights))
        return made

    def _initializer(self, name: str) -> onnx.TensorProto:
        array = self.weights[name]
        if name not in self._initializers or self._initializers[name][0] is not array:
            self._initializers[name] = array, describe_weight(name, array)
        return self._initializers[name][1]

    # --- queries --------------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> tuple[onnx.NodeProto, ...]:
        """All nodes, in order."""
        return tuple(self._nodes[name] for name in self._order())

    def _order(self) -> list[str]:
        found, name = [], self._next[_END]
        while name != _END:
            found.append(name)
            name = self._next[name]
        return found

    @property
    def opset(self) -> int:
        """The version of ONNX's own operators."""
        return standard_opset(self.frame)

    def node(self, name: str) -> onnx.NodeProto:
        """The node of this name."""
        return self._nodes[name]

    def has_node(self, name: str) -> bool:
        """Whether there is a node of this name."""
        return name in self._nodes

    def producer(self, tensor: str) -> onnx.NodeProto | None:
        """The node that computes a tensor; None for inputs, weights and unknown names."""
        return self._nodes.get(self._producers.get(tensor, _END))

    def consumers(self, tensor: str) -> tuple[onnx.NodeProto, ...]:
        """The nodes that read a tensor, each once, including captures by subgraphs."""
        return tuple(self._nodes[name] for name in self._uses.get(tensor, ()))

    def computed_from(self, name: str) -> set[str]:
        """All tensors that depend on the node `name`, its outputs included; O(nodes + edges)."""
        found = set(writes(self._nodes[name]))
        waiting = list(found)
        while waiting:
            for reader in self._uses.get(waiting.pop(), ()):
                if reader not in found:
                    made = writes(self._nodes[reader])
                    found.update(made)
                    waiting.extend(made)
        return found

    def uses(self, tensor: str) -> int:
        """The number of reads of a tensor; being a graph output counts as one."""
        return sum(self._uses.get(tensor, {}).values()) + (tensor in self.outputs)

    def is_captured(self, tensor: str) -> bool:
        """Whether a subgraph reads a tensor, which then cannot be renamed."""
        return any(tensor in captures(node) for node in self.consumers(tensor))

    @property
    def names(self) -> Iterator[str]:
        """The names of all tensors."""
        return chain(self.inputs, self.weights, self._producers)

    @property
    def unread(self) -> set[str]:
        """The computed tensors without consumers."""
        return {tensor for tensor in self._producers if not self._uses.get(tensor)}

    @property
    def missing(self) -> set[str]:
        """The names that nodes read but nothing defines."""
        read = {name for name, readers in self._uses.items() if readers}
        return read.difference(self.names)

    def has(self, tensor: str) -> bool:
        """Whether a tensor is an input, a constant or computed."""
        return tensor in self.weights or tensor in self._producers or tensor in self.inputs

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of a weight or tensor; () if unknown."""
        return self.known_shape(tensor) or ()

    def known_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a weight or tensor; None if it or its shape is unknown."""
        if name in self.weights:
            return self.weights[name].shape
        spec = self.tensors.get(name)
        return None if spec is None else spec.shape

    def fresh(self, name: str) -> str:
        """The name, with suffixes until no tensor has it."""
        while self.has(name) or name in self.tensors or name in self.outputs:
            name += "'"
        return name

    # --- edits ----------------------------------------------------------------------------------------------------

    def append(self, node: onnx.NodeProto) -> None:
        """Add a node at the end. Raises as `insert_before`."""
        self._insert(_END, node)

    def prepend(self, node: onnx.NodeProto) -> None:
        """Add a node at the beginning. Raises as `insert_before`."""
        self._insert(self._next[_END], node)

    def insert_before(self, name: str, *nodes: onnx.NodeProto) -> None:
        """Insert nodes before the node `name`.

        Raises:
            InvalidModelError: another node computes a tensor of the same name.
        """
        for node in nodes:
            self._insert(name, node)

    def insert_after(self, name: str, *nodes: onnx.NodeProto) -> None:
        """Insert nodes after the node `name`. Raises as `insert_before`."""
        following = self._next[name]
        for node in nodes:
            self._insert(following, node)

    def replace(self, gone: str | Collection[str], *nodes: onnx.NodeProto) -> None:
        """Replace nodes at the place of the first; types of vanished tensors are dropped.

        O(edges of the nodes), or O(all nodes) to replace several.
        """
        names = {gone} if isinstance(gone, str) else {*gone}
        first = gone if isinstance(gone, str) else next(name for name in self._order() if name in names)
        following = self._next[first]
        while following in names:
            following = self._next[following]
        removed = [self._take_out(name) for name in names]
        for node in nodes:
            self._insert(following, node)
        for node in removed:
            self._forget(node)

    def remove(self, *names: str) -> None:
        """Remove nodes and the types of their outputs; the caller changes the consumers."""
        for name in names:
            self._forget(self._take_out(name))

    def set_inputs(self, name: str, inputs: Iterable[str]) -> None:
        """Set the inputs of the node `name`."""
        node = self._nodes[name]
        self._leave(name, node)
        node.input[:] = inputs
        self._enter(name, node)

    def replace_all_uses(self, old: str, new: str) -> None:
        """Let all nodes that read `old` read `new`, except graph outputs and subgraphs."""
        for name in [*self._uses.get(old, ())]:
            self.set_inputs(name, [new if each == old else each for each in self._nodes[name].input])

    def rename(self, old: str, new: str) -> None:
        """Rename a computed tensor, except in graph outputs and subgraphs."""
        name = self._producers[old]
        following, node = self._next[name], self._take_out(name)
        node.output[:] = [new if each == old else each for each in node.output]
        self._insert(following, node)
        self.replace_all_uses(old, new)
        if old in self.tensors:
            self.tensors[new] = replace(self.tensors.pop(old), name=new)

    def add_weight(self, name: str, value: np.ndarray) -> str:
        """Add a constant; returns its name.

        Raises:
            InvalidModelError: a constant has that name.
        """
        if name in self.weights:
            raise InvalidModelError(f"tensor {name!r} is defined twice; tensor names must be unique.")
        value.flags.writeable = False
        self.weights[name] = value
        return name

    def add_fresh_weight(self, name: str, value: np.ndarray) -> str:
        """Add a constant under a fresh name; returns the name."""
        return self.add_weight(self.fresh(name), value)

    def add_integers(self, name: str, values: Sequence[int]) -> str:
        """Add a constant int64 vector, as `add_fresh_weight`."""
        return self.add_fresh_weight(name, np.array(values, np.int64))

    def add_tensor(self, name: str, like: str, shape: Sequence[int] | None = None) -> str:
        """Declare a new tensor with the type of `like`, or another shape; returns its fresh name."""
        name, spec = self.fresh(name), self.tensors[like]
        self.tensors[name] = replace(spec, name=name, shape=spec.shape if shape is None else tuple(shape))
        return name

    def set_shape(self, tensor: str, shape: Sequence[int]) -> None:
        """Set the shape of a computed tensor, dropping a contradictory declaration."""
        if self.tensors[tensor].shape != tuple(shape):
            self.tensors[tensor] = replace(self.tensors[tensor], shape=tuple(shape))
            self.declared.pop(tensor, None)

    def drop_unread(self) -> None:
        """Remove nodes that no output depends on, then unused weights; O(nodes). Needs topological order."""
        for name in reversed(self._order()):
            node = self._nodes[name]
            if not any(self.uses(tensor) for tensor in writes(node)):
                self.remove(name)
        self.drop_unread_weights()

    def drop_unread_weights(self) -> None:
        """Remove unused weights."""
        self.weights = {name: array for name, array in self.weights.items() if self.uses(name)}

    def cut_out(self, inputs: Iterable[str], outputs: Iterable[str]) -> None:
        """Keep the part that computes `outputs` from `inputs`; undeclared names are ignored; O(nodes).

        Needs topological order.
        """
        known = {**self.inputs, **self.outputs, **self.declared}
        feeders = {name: self.producer(name) for name in inputs}
        self.inputs = {name: known[name] for name in feeders if name in known}
        self.outputs = {name: known[name] for name in outputs if name in known}
        self.remove(*{node_name(node) for node in feeders.values() if node is not None})
        self.drop_unread()

    def sort(self) -> None:
        """Sort the nodes topologically, stably.

        Raises:
            InvalidModelError: the graph has a cycle.
        """
        self.reorder(topological_order(self.nodes))

    def reorder(self, order: Sequence[int]) -> None:
        """Reorder the nodes, given by their present positions."""
        names = self._order()
        placed = [_END, *(names[index] for index in order), _END]
        self._next = dict(pairwise(placed))
        self._previous = {following: name for name, following in self._next.items()}

    # --- the tables -----------------------------------------------------------------------------------------------

    def _insert(self, following: str, node: onnx.NodeProto) -> None:
        name = node_name(node)
        self._enter(name, node)
        self._nodes[name] = node
        previous = self._previous[following]
        self._next[previous] = self._previous[following] = name
        self._next[name], self._previous[name] = following, previous

    def _take_out(self, name: str) -> onnx.NodeProto:
        previous, following = self._previous.pop(name), self._next.pop(name)
        self._next[previous], self._previous[following] = following, previous
        node = self._nodes.pop(name)
        self._leave(name, node)
        return node

    def _enter(self, name: str, node: onnx.NodeProto) -> None:
        for tensor in writes(node):
            if tensor in self._producers:
                raise InvalidModelError(f"tensor {tensor!r} is computed twice; tensor names must be unique.")
            self._producers[tensor] = name
        for tensor in reads(node):
            readers = self._readers(tensor)
            readers[name] = readers.get(name, 0) + 1

    def _leave(self, name: str, node: onnx.NodeProto) -> None:
        for tensor in writes(node):
            del self._producers[tensor]
        for tensor in set(reads(node)):
            del self._readers(tensor)[name]

    def _readers(self, tensor: str) -> dict[str, int]:
        """The number of times each node reads a tensor, for changing (copied on write)."""
        if tensor not in self._own_uses:
            self._uses[tensor] = dict(self._uses.get(tensor, ()))
            self._own_uses.add(tensor)
        return self._uses[tensor]

    def _forget(self, gone: onnx.NodeProto) -> None:
        for tensor in writes(gone):
            if tensor not in self._producers:
                self.tensors.pop(tensor, None)
                self.declared.pop(tensor, None)


def _by_name(kind: str, values: Iterable[onnx.ValueInfoProto]) -> dict[str, onnx.ValueInfoProto]:
    found: dict[str, onnx.ValueInfoProto] = {}
    for value in values:
        if value.name in found:
            raise InvalidModelError(f"graph {kind} {value.name!r} is declared twice.")
        found[value.name] = value
    return found
