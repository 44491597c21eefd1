"""Puts copies of one model beside each other, without finding out anew what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import onnx

from iosched.models.composition.renaming import called, renamed
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.initializers import store_weights
from iosched.models.model import Model

Weights = Mapping[str, np.ndarray]


def beside_itself(model: Model, weights: Sequence[Weights]) -> Model:
    """The model that computes what `model` does once for each of `weights`, each time from inputs of its own.

    It is what `compose` makes of as many models. Tensors have the number of their copy and a slash before their names;
    an array that several copies have is stored once, under the name of the first.

    Args:
        model: what is copied.
        weights: for each copy those weights that are others in it, of the same types and shapes, by their names in
            `model`.

    Complexity: O(copies * (nodes + edges)).
    """
    arrays: dict[str, np.ndarray] = {}
    copies = list(_copies(model, weights, arrays))
    graph = onnx.GraphProto(name=model.proto.graph.name)
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    for copy in copies:
        copy.write(model.proto.graph, graph)
    store_weights(graph, arrays)
    proto.graph.CopyFrom(graph)
    return Model(
        name=model.name,
        proto=proto,
        weights=MappingProxyType(arrays),
        graph=_beside(model.graph, copies),
        original=None,
        bindings=MappingProxyType({copy.name(own): shape for copy in copies for own, shape in model.bindings.items()}),
    )


@dataclass(frozen=True, eq=False)
class _Copy:
    """What the tensors of a copy are called: weights as `weights` says, all others with its number before them."""

    place: int
    weights: Mapping[str, str]

    def name(self, name: str) -> str:
        return self.weights.get(name) or f"{self.place}/{name}"

    def write(self, graph: onnx.GraphProto, to: onnx.GraphProto) -> None:
        for node in graph.node:
            made = renamed(node, self.name)
            made.name = self.name(node.name)
            to.node.append(made)
        to.input.extend(called(value, self.name(value.name)) for value in graph.input)
        to.output.extend(called(value, self.name(value.name)) for value in graph.output)
        to.value_info.extend(called(value, self.name(value.name)) for value in graph.value_info)

    def spec(self, spec: TensorSpec) -> TensorSpec:
        return replace(spec, name=self.name(spec.name))

    def names(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(self.name, names))

    def operator(self, operator: Operator) -> Operator:
        return replace(
            operator,
            name=self.name(operator.name),
            nodes=self.names(operator.nodes),
            inputs=self.names(operator.inputs),
            outputs=self.names(operator.outputs),
            weights=tuple(map(self.spec, operator.weights)),
        )


def _copies(model: Model, weights: Sequence[Weights], arrays: dict[str, np.ndarray]) -> Iterator[_Copy]:
    """The copies; `arrays` gets the weights of all."""
    known: dict[int, str] = {}
    for place, others in enumerate(weights):
        own = {name: others.get(name, array) for name, array in model.weights.items()}
        for name, array in own.items():
            if id(array) not in known:
                known[id(array)] = f"{place}/{name}"
                arrays[f"{place}/{name}"] = array
        yield _Copy(place, {name: known[id(array)] for name, array in own.items()})


def _beside(graph: ComputationGraph, copies: Sequence[_Copy]) -> ComputationGraph:
    return ComputationGraph(
        name=graph.name,
        inputs=tuple(copy.spec(spec) for copy in copies for spec in graph.inputs),
        outputs=tuple(copy.name(name) for copy in copies for name in graph.outputs),
        operators=tuple(copy.operator(operator) for copy in copies for operator in graph.operators),
        tensors=tuple(copy.spec(spec) for copy in copies for spec in graph.tensors),
    )
