"""Puts several models into one graph: their disjoint union, in which equal values are computed and stored once.

Equal are results of equal operators on equal values (`values.value_numbers`), so with an operator all that it reads is
shared. Of weights the bytes decide.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from iosched.models.composition.copies import Renamed, side_by_side
from iosched.models.composition.members import MEMBERS_KEY, Member, check_names, note_owners, reached, to_metadata
from iosched.models.composition.opsets import common_opsets, raised
from iosched.models.composition.renaming import called, renamed
from iosched.models.composition.values import value_numbers
from iosched.models.errors import UsageError
from iosched.models.graph import TensorSpec
from iosched.models.load import assembled_model
from iosched.models.model import Model
from iosched.models.wiring import is_standard, writes


@dataclass(frozen=True)
class WeightsMemory:
    """Bytes of weights: of the models one by one, and of the composed model."""

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
    weights: WeightsMemory


def compose(models: Mapping[str, Model], shared_inputs: Collection[str] = (), name: str = "batch") -> Composition:
    """The disjoint union of `models`, with what is equal in them once.

    Tensors get the name of their model and a slash before their own; what several models compute is called as in the
    first of them. Operators of different opsets are converted upward.

    Args:
        models: by name.
        shared_inputs: names of inputs that are fed once, to all models that have an input of that name.
        name: of the composed model.

    Raises:
        UsageError: there is no model, names do not tell models apart, or an input cannot be shared.
        InvalidModelError: the models are of opsets of which onnx cannot convert one to the other.
    """
    if not models:
        raise UsageError("there is no model to put together.")
    check_names(models, shared_inputs)
    _check_shared(models, shared_inputs)
    opsets = common_opsets(list(models.values()))
    union = _Union(onnx.ModelProto(ir_version=max(model.proto.ir_version for model in models.values())))
    union.proto.graph.name = name
    for domain, version in opsets.items():
        union.proto.opset_import.add(domain="" if domain == "ai.onnx" else domain, version=version)
    for member, model in models.items():
        union.add(member, raised(model, opsets), frozenset(shared_inputs))
    union.proto.metadata_props.add(key=MEMBERS_KEY, value=to_metadata(union.members))
    found = union.model(name)
    owned = reached(found.graph, union.members)
    several = {node: owned[each.name] for each in found.graph.operators for node in each.nodes}
    note_owners(found.proto, {node: bits for node, bits in several.items() if bits & (bits - 1)})
    alone = sum(_nbytes(model.weights) for model in models.values())
    return Composition(found, tuple(union.members), union.shared, WeightsMemory(alone, _nbytes(found.weights)))


@dataclass(eq=False)
class _Union:
    """The composed model while it is being made.

    Attributes:
        proto: the graph so far.
        weights: its initializers.
        names: what the tensor of each value number is called.
        members: the models that are in it.
        shared: how many nodes were left out.
        added: the models with what their tensors are called.
        renames: whether there are nodes that only give an output another name.
    """

    proto: onnx.ModelProto
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    shared: int = 0
    added: list[Renamed] = field(default_factory=list)
    renames: bool = False

    def model(self, name: str) -> Model:
        """What the union is. Where models share no node, they are in it as they are."""
        if self.shared or self.renames:
            return assembled_model(name, self.proto, self.weights)
        return side_by_side(name, self.proto, self.added, self.weights)

    def add(self, name: str, model: Model, shared_inputs: frozenset[str]) -> None:
        """Add a model, whose opsets are those of the union."""
        inputs = {spec.name: _input_name(name, spec.name, shared_inputs) for spec in model.graph.inputs}
        numbers = value_numbers(model, name, inputs)
        known = dict(inputs)
        self._add_inputs(model, inputs)
        for weight, array in model.weights.items():
            known[weight] = self.names.setdefault(numbers[weight], f"{name}/{weight}")
            self.weights.setdefault(known[weight], array)
        for node in model.proto.graph.node:
            self._add_node(name, node, numbers, known)
        self._add_types(model, known)
        self._add_outputs(name, model, known)
        self.added.append(Renamed(model, name, known))
        outputs = {output: f"{name}/{output}" for output in model.graph.outputs}
        self.members.append(Member(name, inputs, outputs))

    def _add_inputs(self, model: Model, inputs: Mapping[str, str]) -> None:
        present = {value.name for value in self.proto.graph.input}
        for value in model.proto.graph.input:
            if inputs[value.name] not in present:
                self.proto.graph.input.append(called(value, inputs[value.name]))

    def _add_node(self, name: str, node: onnx.NodeProto, numbers: Mapping[str, str], known: dict[str, str]) -> None:
        """Add a node, or find its results among those that are there; `known` learns what they are called."""
        written = writes(node)
        is_new = any(numbers[output] not in self.names for output in written)
        for output in written:
            known[output] = f"{name}/{output}" if is_new else self.names[numbers[output]]
            self.names.setdefault(numbers[output], known[output])
        if is_new:
            self.proto.graph.node.append(renamed(node, lambda own: known.get(own, f"{name}/{own}")))
        else:
            self.shared += 1

    def _add_types(self, model: Model, known: Mapping[str, str]) -> None:
        """Keep what a file says about results that ONNX cannot infer."""
        opaque = {output for node in model.proto.graph.node if not is_standard(node) for output in writes(node)}
        self.proto.graph.value_info.extend(
            called(value, known[value.name]) for value in model.proto.graph.value_info if value.name in opaque
        )

    def _add_outputs(self, name: str, model: Model, known: Mapping[str, str]) -> None:
        for value in model.proto.graph.output:
            wanted = f"{name}/{value.name}"
            self.proto.graph.output.append(called(value, wanted))
            if known[value.name] != wanted:
                self.proto.graph.node.append(helper.make_node("Identity", [known[value.name]], [wanted]))
                self.renames = True


def _input_name(model: str, name: str, shared_inputs: frozenset[str]) -> str:
    return name if name in shared_inputs else f"{model}/{name}"


def _check_shared(models: Mapping[str, Model], shared_inputs: Collection[str]) -> None:
    """Every shared input is one of a model, and of one type and shape in all that have it."""
    for name in shared_inputs:
        specs = {model: spec for model, loaded in models.items() for spec in loaded.graph.inputs if spec.name == name}
        if not specs:
            inputs = sorted({spec.name for model in models.values() for spec in model.graph.inputs})
            raise UsageError(f"no model has an input {name!r} that could be shared; they have {', '.join(inputs)}.")
        first, *others = specs
        for other in others:
            if (specs[other].dtype, specs[other].shape) != (specs[first].dtype, specs[first].shape):
                raise UsageError(
                    f"input {name!r} cannot be shared: it is {_text(specs[first])} in {first!r}, and "
                    f"{_text(specs[other])} in {other!r}.\nBind them to one shape with --input-shape."
                )


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype} {'of unknown shape' if spec.shape is None else 'x'.join(map(str, spec.shape)) or 'scalar'}"


def _nbytes(weights: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in weights.values())
