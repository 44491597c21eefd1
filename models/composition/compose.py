"""Composes models into one graph, and estimates their memory.

Equal operators on equal values (`values.value_numbers`) are shared, with all that they read; weights are compared by
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

import numpy as np
import onnx
from onnx import helper

from iosched.models.canonical import tensor_text
from iosched.models.composition.members import (
    Member,
    check_names,
    dependent_members,
    node_owners,
    write_members,
    write_owners,
)
from iosched.models.composition.opsets import common_opsets, imports, with_opsets
from iosched.models.composition.values import value_numbers
from iosched.models.digest import opsets_of
from iosched.models.editable_graph import EditableGraph, bare_frame, node_name
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.load import edited_model
from iosched.models.model import Model
from iosched.models.node_attributes import copied, subgraphs
from iosched.models.wiring import writes


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of models in separate files, and in one."""

    alone_nbytes: int
    together_nbytes: int


@dataclass(frozen=True, eq=False)
class Composition:
    """Several models as one.

    Attributes:
        model: the composed model; its results are those of every member alone.
        members: the models in it, in order.
        shared: the number of nodes saved by sharing.
        weights: the size of the weights.
    """

    model: Model
    members: tuple[Member, ...]
    shared: int
    weights: MemoryUse


def compose(models: Mapping[str, Model], shared_inputs: Collection[str] = (), name: str = "batch") -> Composition:
    """The disjoint union of `models`, by name, with equal parts once.

    Tensors are prefixed with their model's name and a slash; shared ones as in the first model. Opsets are converted
    upward. `shared_inputs` are fed once for all models that have an input of that name.

    Raises:
        UsageError: there is no model, a name is invalid, or an input cannot be shared.
        InvalidModelError: onnx cannot convert a model to the common opset.
    """
    if not models:
        raise UsageError("there are no models to compose.")
    check_names(models, shared_inputs)
    _check_shared(models, shared_inputs)
    opsets = common_opsets(list(models.values()))
    newest = max(model.proto.ir_version for model in models.values())
    frame = bare_frame(name, newest, imports(opsets))
    union, members = _Union(EditableGraph(frame)), []
    for member, model in models.items():
        own = with_opsets(model, opsets)
        names = [spec.name for spec in own.graph.inputs]
        inputs = {each: each if each in shared_inputs else f"{member}/{each}" for each in names}
        union.add(member, own, value_numbers(own, member, inputs), inputs)
        outputs = {output: f"{member}/{output}" for output in own.graph.outputs}
        members.append(Member(member, inputs, outputs))
    write_members(frame, members)
    found = union.model()
    write_owners(found.proto, node_owners(found.graph, dependent_members(found.graph, members)))
    memory = MemoryUse(sum(_nbytes(model.weights) for model in models.values()), _nbytes(found.weights))
    return Composition(found, tuple(members), union.shared, memory)


def disjoint_union(models: Sequence[Model]) -> Model:
    """The models in one graph, without sharing inputs or operators; one may occur several times.

    They have the same opsets. Tensors are prefixed with their position; arrays are stored once, under the first name.
    O(nodes + edges) of all.
    """
    first = models[0]
    union = _Union(EditableGraph(bare_frame(first.name, first.proto.ir_version, imports(opsets_of(first.proto)))))
    for place, model in enumerate(models):
        union.add(str(place), model, {name: f"array {id(array)}" for name, array in model.weights.items()}, {})
    return union.model()


@dataclass(eq=False)
class _Union:
    """The composed model under construction.

    Attributes:
        graph: the graph so far.
        names: the tensor of each value number.
        shared: the number of nodes left out.
        added: the models, with their new names.
        renames: whether Identity nodes rename outputs.
    """

    graph: EditableGraph
    names: dict[str, str] = field(default_factory=dict)
    shared: int = 0
    added: list[_Renamed] = field(default_factory=list)
    renames: bool = False

    def model(self) -> Model:
        """The composed model; if no node is shared, operators are renamed instead of found again."""
        name = self.graph.frame.graph.name
        if self.shared or self.renames:
            return edited_model(name, self.graph)
        shapes = {each.name(own): shape for each in self.added for own, shape in each.model.bindings.items()}
        return Model(
            name=name,
            proto=self.graph.to_proto(),
            weights=MappingProxyType(self.graph.weights),
            graph=_joined_graph(name, self.added),
            original=None,
            bindings=MappingProxyType(shapes),
        )

    def add(self, name: str, model: Model, numbers: Mapping[str, str], inputs: Mapping[str, str]) -> None:
        """Add a model of the union's opsets; values without a number are unique. `inputs` are new names of inputs."""
        each, proto = _Renamed(model, name, dict(inputs)), model.proto.graph
        self.added.append(each)
        for weight, array in model.weights.items():
            each.names[weight] = self.names.setdefault(numbers[weight], each.name(weight))
            self.graph.weights.setdefault(each.names[weight], array)
        for node in proto.node:
            self._add_node(each, node, numbers)
        for values, table in ((proto.input, self.graph.inputs), (proto.value_info, self.graph.declared)):
            for value in values:
                table.setdefault(each.name(value.name), _called(value, each.name(value.name)))
        for value in proto.output:
            own, wanted = each.name(value.name), f"{name}/{value.name}"
            self.graph.outputs[wanted] = _called(value, wanted)
            if own != wanted:
                self.graph.append(helper.make_node("Identity", [own], [wanted]))
                self.renames = True

    def _add_node(self, each: _Renamed, node: onnx.NodeProto, numbers: Mapping[str, str]) -> None:
        """Add a node, or find its results; extends the names of `each`."""
        own = {output: numbers.get(output, each.name(output)) for output in writes(node)}
        is_new = any(number not in self.names for number in own.values())
        for output, number in own.items():
            each.names[output] = f"{each.prefix}/{output}" if is_new else self.names[number]
            self.names.setdefault(number, each.names[output])
        if is_new:
            made = copied(node)
            _rename_node(made, each.name)
            made.name = node_name(made)
            self.graph.append(made)
        else:
            self.shared += 1


@dataclass(frozen=True, eq=False)
class _Renamed:
    """A model with new names for its tensors: those in `names`, else prefixed."""

    model: Model
    prefix: str
    names: dict[str, str]

    def name(self, name: str) -> str:
        return self.names.get(name) or f"{self.prefix}/{name}"

    def spec(self, spec: TensorSpec) -> TensorSpec:
        return replace(spec, name=self.name(spec.name))

    def operator(self, operator: Operator) -> Operator:
        return replace(
            operator,
            name=self.name(operator.name),
            nodes=tuple(map(self.name, operator.nodes)),
            inputs=tuple(map(self.name, operator.inputs)),
            outputs=tuple(map(self.name, operator.outputs)),
            weights=tuple(map(self.spec, operator.weights)),
        )


def _joined_graph(name: str, models: Sequence[_Renamed]) -> ComputationGraph:
    inputs = {each.name(spec.name): each.spec(spec) for each in models for spec in each.model.graph.inputs}
    return ComputationGraph(
        name=name,
        inputs=tuple(inputs.values()),
        outputs=tuple(each.name(own) for each in models for own in each.model.graph.outputs),
        operators=tuple(each.operator(operator) for each in models for operator in each.model.graph.operators),
        tensors=tuple(each.spec(spec) for each in models for spec in each.model.graph.tensors),
    )


def _rename_node(node: onnx.NodeProto, rename: Callable[[str], str]) -> None:
    for names in (node.input, node.output):
        names[:] = [rename(name) if name else "" for name in names]
    for graph in subgraphs(node):
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.name = rename(value.name)
        for sparse in graph.sparse_initializer:
            sparse.values.name = rename(sparse.values.name)
        for inner in graph.node:
            _rename_node(inner, rename)


def _called(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    made = copied(value)
    made.name = name
    return made


def _check_shared(models: Mapping[str, Model], shared_inputs: Collection[str]) -> None:
    for name in shared_inputs:
        specs = ((model, spec) for model, loaded in models.items() for spec in loaded.graph.inputs if spec.name == name)
        looks = {model: tensor_text(spec.dtype, spec.shape) for model, spec in specs}
        first = next(iter(looks), "")
        for other, look in looks.items():
            if look != looks[first]:
                raise UsageError(
                    f"input {name!r} cannot be shared: it is {looks[first]} in {first!r} but {look} in {other!r}.\n"
                    f"Bind both to one shape with --input-shape."
                )


def _nbytes(weights: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in weights.values())


Footprint = Mapping[object, int]
"""Bytes of each weight, by digest, and of the tensors, by a unique key."""


def footprint_of(model: Model) -> Footprint:
    """The footprint of a model: its weights, and the most bytes of tensors alive at once, in sequence.

    O(bytes of weights + operators + edges).
    """
    found: dict[object, int] = {model.weight_digests[name]: array.nbytes for name, array in model.weights.items()}
    return {**found, object(): _peak_nbytes(model.graph)}


def together_nbytes(footprints: Iterable[Footprint]) -> int:
    """The bytes of models in one graph: equal weights once, and the tensors of all."""
    return sum({key: nbytes for each in footprints for key, nbytes in each.items()}.values())


def _peak_nbytes(graph: ComputationGraph) -> int:
    fed, end = [spec.name for spec in graph.inputs], len(graph.operators)
    computed = {tensor: index for index, operator in enumerate(graph.operators) for tensor in operator.outputs}
    read = {tensor: index for index, operator in enumerate(graph.operators) for tensor in operator.inputs}
    last = {**dict.fromkeys(fed, end), **computed, **read, **dict.fromkeys(graph.outputs, end)}
    changes = [0] * (end + 2)
    for tensor, first in {**dict.fromkeys(fed, 0), **computed}.items():
        nbytes = graph.tensor[tensor].nbytes if tensor in graph.tensor else 0
        changes[first] += nbytes
        changes[last[tensor] + 1] -= nbytes
    return max(accumulate(changes))
