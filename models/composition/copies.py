"""Puts models beside each other that share no operator, without finding out anew what is known of them."""

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
    proto = onnx.ModelProto(ir_version=model.proto.ir_version, opset_import=model.proto.opset_import)
    return side_by_side(model.name, proto, copies, arrays)


def side_by_side(name: str, proto: onnx.ModelProto, models: Sequence[Renamed], weights: dict[str, np.ndarray]) -> Model:
    """Models in one graph, as they are but for their names, which tell their computed tensors apart.

    Args:
        name: of the model that is made.
        proto: a model without a graph; it is changed in place, and belongs to the model.
        models: what is put into it; inputs that have one name are one.
        weights: of all, by their new names; likewise.

    Complexity: O(nodes + edges).
    """
    proto.graph.Clear()
    proto.graph.name = name
    for each in models:
        each.write(proto.graph)
    fed = {value.name: value for value in proto.graph.input}
    del proto.graph.input[:]
    proto.graph.input.extend(fed.values())
    store_weights(proto.graph, weights)
    bindings = {each.name(own): shape for each in models for own, shape in each.model.bindings.items()}
    return Model(
        name=name,
        proto=proto,
        weights=MappingProxyType(weights),
        graph=_beside(name, models),
        original=None,
        bindings=MappingProxyType(bindings),
    )


@dataclass(frozen=True, eq=False)
class Renamed:
    """A model, and what its tensors are called: as `names` says, all others with `prefix` and a slash before them."""

    model: Model
    prefix: str
    names: Mapping[str, str]

    def name(self, name: str) -> str:
        """What a tensor is called."""
        return self.names.get(name) or f"{self.prefix}/{name}"

    def write(self, to: onnx.GraphProto) -> None:
        """Add nodes, inputs, outputs and what is known of the tensors between them to a graph."""
        graph = self.model.proto.graph
        for node in graph.node:
            made = renamed(node, self.name)
            made.name = self.name(node.name)
            to.node.append(made)
        to.input.extend(called(value, self.name(value.name)) for value in graph.input)
        to.output.extend(called(value, self.name(value.name)) for value in graph.output)
        to.value_info.extend(called(value, self.name(value.name)) for value in graph.value_info)

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """A tensor under its new name."""
        return replace(spec, name=self.name(spec.name))

    def operator(self, operator: Operator) -> Operator:
        """An operator under its new name."""
        return replace(
            operator,
            name=self.name(operator.name),
            nodes=self._all(operator.nodes),
            inputs=self._all(operator.inputs),
            outputs=self._all(operator.outputs),
            weights=tuple(map(self.spec, operator.weights)),
        )

    def _all(self, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(self.name, names))


def _copies(model: Model, weights: Sequence[Weights], arrays: dict[str, np.ndarray]) -> Iterator[Renamed]:
    """The copies; `arrays` gets the weights of all."""
    known: dict[int, str] = {}
    for place, others in enumerate(weights):
        own = {name: others.get(name, array) for name, array in model.weights.items()}
        for name, array in own.items():
            if id(array) not in known:
                known[id(array)] = f"{place}/{name}"
                arrays[f"{place}/{name}"] = array
        yield Renamed(model, str(place), {name: known[id(array)] for name, array in own.items()})


def _beside(name: str, models: Sequence[Renamed]) -> ComputationGraph:
    inputs = {each.name(spec.name): each.spec(spec) for each in models for spec in each.model.graph.inputs}
    return ComputationGraph(
        name=name,
        inputs=tuple(inputs.values()),
        outputs=tuple(each.name(own) for each in models for own in each.model.graph.outputs),
        operators=tuple(each.operator(operator) for each in models for operator in each.model.graph.operators),
        tensors=tuple(each.spec(spec) for each in models for spec in each.model.graph.tensors),
    )
