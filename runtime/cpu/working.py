"""A model's graph while it is rewritten for this machine, before onnxruntime is given it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from iosched.models.graph import TensorSpec
from iosched.models.initializers import describe_weight
from iosched.models.wiring import reads, writes


@dataclass(frozen=True, eq=False)
class WorkingGraph:
    """A graph that computes what the model does (see `Model`), under the same names for its inputs and outputs.

    Attributes:
        proto: the graph, its nodes topologically sorted. Those that an operator of the model has are named by it.
        weights: every initializer of `proto`.
        tensors: types and shapes of its inputs and computed tensors, as they are in `proto`.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    tensors: Mapping[str, TensorSpec]

    def rewritten(
        self, nodes: Sequence[onnx.NodeProto], weights: Mapping[str, np.ndarray], tensors: Mapping[str, TensorSpec]
    ) -> WorkingGraph:
        """The graph with other nodes.

        Args:
            nodes: all nodes, topologically sorted.
            weights: constants that the graph does not have yet. Those that nobody reads any more are left out.
            tensors: types and shapes of everything that `nodes` read and write but constants.
        """
        made = onnx.ModelProto()
        made.CopyFrom(self.proto)
        graph = made.graph
        used = {name for node in nodes for name in reads(node)} | {value.name for value in graph.output}
        initializers = [tensor for tensor in graph.initializer if tensor.name in used]
        initializers += [describe_weight(name, array) for name, array in weights.items()]
        infos = [value for value in graph.value_info if tensors.get(value.name) == self.tensors.get(value.name)]
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(nodes)
        graph.initializer.extend(initializers)
        graph.value_info.extend(infos)
        known = {**self.weights, **weights}
        return WorkingGraph(made, {tensor.name: known[tensor.name] for tensor in initializers}, tensors)


def fresh_name(name: str, *taken: Mapping[str, object] | set[str]) -> str:
    """The name, or one like it that is in none of `taken`."""
    while any(name in names for names in taken):
        name += "'"
    return name


@dataclass(eq=False)
class WorkingDraft:
    """A working graph while nodes of it are replaced.

    Attributes:
        graph: as it was.
        nodes: as they are now, by their first output, in topological order.
        weights: constants that are new.
        tensors: types and shapes as they are now.
        before: nodes that were inserted, by the result before whose node they stand.
        is_changed: whether anything was done.
    """

    graph: WorkingGraph
    nodes: dict[str, onnx.NodeProto] = field(init=False)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    tensors: dict[str, TensorSpec] = field(init=False)
    before: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    is_changed: bool = False

    def __post_init__(self) -> None:
        self.nodes = {next(iter(writes(node)), f"{i}"): node for i, node in enumerate(self.graph.proto.graph.node)}
        self.tensors = dict(self.graph.tensors)

    def add_weight(self, name: str, value: np.ndarray) -> str:
        """The name of a new constant."""
        name = fresh_name(name, self.graph.weights, self.weights, self.tensors)
        self.weights[name] = value
        return name

    def put(self, node: onnx.NodeProto) -> None:
        """Puts a node in the place of the one that computed its result."""
        node.name = node.output[0]
        self.nodes[node.output[0]] = node
        self.is_changed = True

    def insert(self, node: onnx.NodeProto, result: str) -> str:
        """Adds a node before the one that computes `result`, and gives its output, of the same shape, a name."""
        name = fresh_name(f"{result}/inner", self.tensors, self.graph.weights, self.weights)
        node.output[0] = node.name = name
        self.before.setdefault(result, []).append(node)
        self.tensors[name] = replace(self.tensors[result], name=name)
        self.is_changed = True
        return name

    def drop(self, name: str) -> None:
        """Takes out the node that computes `name`, and the tensor with it."""
        del self.nodes[name], self.tensors[name]

    def finished(self) -> WorkingGraph:
        """The graph as it is now."""
        if not self.is_changed:
            return self.graph
        nodes = [each for name, node in self.nodes.items() for each in (*self.before.get(name, ()), node)]
        return self.graph.rewritten(nodes, self.weights, self.tensors)
