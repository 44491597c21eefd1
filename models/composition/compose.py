"""Puts several models into one graph: their disjoint union, in which equal values are computed and stored once.

Also says how much memory models take, alone and together, before a device has placed them.

Equal are results of equal operators on equal values (`values.value_numbers`), so with an operator all that it reads is
shared. Of weights the bytes decide.
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
from iosched.models.composition.members import Member, check_names, node_owners, reached, write_members, write_owners
from iosched.models.composition.opsets import common_opsets, imports, raised
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
class Memory:
    """Bytes that models take one by one, and in one file."""

    alone_nbytes: int
    together_nbytes: int


@dataclass(frozen=True, eq=False)
class Composition:
    """Several models as one.

    Attributes:
        model: the composed model; it computes for every member what the member computes alone.
        members: the models in it, in the order in which they were given.
        shared: nodes that the members have and the composed model has not, since another one computes the same.
        weights: how much the weights take.
    """

    model: Model
    members: tuple[Member, ...]
    shared: int
    weights: Memory


def compose(models: Mapping[str, Model], shared_inputs: Collection[str] = (), name: str = "batch") -> Composition:
    """The disjoint union of `models`, with what is equal in them once.

    Tensors get the name of their model and a slash before their own; what several models compute is called as in the
    first of them. Operators of different opsets are converted upward.

    Args:
        models: by name.
        shared_inputs: names of inputs that are fed once, to all models that have an input of that name; models need
            have none.
        name: of the composed model.

    Raises:
        UsageError: there is no model, names do not tell models apart, or an input cannot be shared.
        InvalidModelError: the models are of opsets of which onnx cannot convert one to the other.
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
        own = raised(model, opsets)
        names = [spec.name for spec in own.graph.inputs]
        inputs = {each: each if each in shared_inputs else f"{member}/{each}" for each in names}
        union.add(member, own, value_numbers(own, member, inputs), inputs)
        outputs = {output: f"{member}/{output}" for output in own.graph.outputs}
        members.append(Member(member, inputs, outputs))
    write_members(frame, members)
    found = union.model()
    write_owners(found.proto, node_owners(found.graph, reached(found.graph, members)))
    memory = Memory(sum(_nbytes(model.weights) for model in models.values()), _nbytes(found.weights))
    return Composition(found, tuple(members), union.shared, memory)


def apart(models: Sequence[Model]) -> Model:
    """The models in one graph, each with inputs of its own and sharing no operator; one may take several places.

    They are of the same opsets. Tensors have the number of their place and a slash before their names; an array that
    several models have is stored once, under the name of the first. Complexity: O(nodes + edges) of all.
    """
    first = models[0]
    union = _Union(EditableGraph(bare_frame(first.name, first.proto.ir_version, imports(opsets_of(first.proto)))))
    for place, model in enumerate(models):
        union.add(str(place), model, {name: f"array {id(array)}" for name, array in model.weights.items()}, {})
    return union.model()


@dataclass(eq=False)
class _Union:
    """The composed model while it is being made.

    Attributes:
        graph: what is in it so far.
        names: what the tensor of each value number is called.
        shared: how many nodes were left out.
        added: the models with what their tensors are called.
        renames: whether there are nodes that only give an output another name.
    """

    graph: EditableGraph
    names: dict[str, str] = field(default_factory=dict)
    shared: int = 0
    added: list[_Renamed] = field(default_factory=list)
    renames: bool = False

    def model(self) -> Model:
        """The composed model. Where models share no node, their operators are renamed and not found again."""
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
        """Add a model of the union's opsets whose values have these numbers; those without one are equal to no others.

        Args:
            inputs: what its inputs are called; the name of the model and a slash come before those of others.
        """
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
        """Add a node, or find its results among those that are there; the names of `each` grow by what it writes."""
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
    """A model, and what its tensors are called: as `names` says, all others with `prefix` and a slash before them."""

    model: Model
    prefix: str
    names: dict[str, str]

    def name(self, name: str) -> str:
        """The name of a tensor in the composed model."""
        return self.names.get(name) or f"{self.prefix}/{name}"

    def spec(self, spec: TensorSpec) -> TensorSpec:
        """A tensor under its new name."""
        return replace(spec, name=self.name(spec.name))

    def operator(self, operator: Operator) -> Operator:
        """An operator under its new name."""
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
    """Gives every tensor, also of the graphs inside the node, the name that `rename` gives it."""
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
    """Every shared input is of one type and shape in all models that have it."""
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
"""Bytes that a model takes: of each weight, by the hash of its content, and of its tensors, by a key of their own."""


def footprint_of(model: Model) -> Footprint:
    """The footprint of a model; O(bytes of weights + operators + edges).

    Tensors are counted that are computed or fed, and still read later: the most at once, one operator after another.
    """
    found: dict[object, int] = {model.weight_digests[name]: array.nbytes for name, array in model.weights.items()}
    return {**found, object(): _most_alive(model.graph)}


def together_nbytes(footprints: Iterable[Footprint]) -> int:
    """What models take in one graph that runs them side by side: equal weights once, and the tensors of all."""
    return sum({key: nbytes for each in footprints for key, nbytes in each.items()}.values())


def _most_alive(graph: ComputationGraph) -> int:
    """The most bytes of tensors alive at once; inputs are alive from the beginning, and outputs to the end."""
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
