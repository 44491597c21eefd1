"""A model's structure: everything that a schedule depends on. Weights, names and node order are not part of it.

The order of operators follows from the structure alone, so the n-th operators of two models of one structure
correspond.

Developer notes:
    * Operands are ordered and every operator leads to an output, so one walk from the outputs finds the unique
      correspondence (`models/canonical.py`); general graph isomorphism would need a search.
    * This module must not import onnx.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import zip_longest


@dataclass(frozen=True)
class NodeForm:
    """One node of an operator.

    Attributes:
        type: the ONNX op type, with the domain if that is not ONNX's ("com.microsoft::Gelu").
        since: the opset that introduced this definition of the operator.
        attributes: names and values as text, sorted by name.
        reads: a text for each input: "port N" for the N-th tensor that the operator reads; "node N" for an earlier
            node's result; type and shape of a weight, with its value if that defines what the node does; "" if omitted.
    """

    type: str
    since: int
    attributes: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]


@dataclass(frozen=True)
class OperatorForm:
    """An operator without names: its type, its nodes, and the types and shapes of its outputs."""

    type: str
    nodes: tuple[NodeForm, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class PlacedOperator:
    """An operator of a structure: its name, its form, and the numbers of the tensors it reads, by port."""

    name: str
    form: OperatorForm
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """A model's structure, and the names of its inputs and operators in this model.

    Tensors are numbered: first the inputs, then the outputs of each operator.

    Attributes:
        inputs: name, and type and shape as text ("float32 1x3x224x224"), in the order in which operators read them.
        operators: each after those that it reads from.
        outputs: the numbers of the model's outputs.
    """

    inputs: tuple[tuple[str, str], ...]
    operators: tuple[PlacedOperator, ...]
    outputs: tuple[int, ...]

    @cached_property
    def forms(self) -> tuple[OperatorForm, ...]:
        """The distinct forms, in order of first use."""
        once = {id(operator.form): operator.form for operator in self.operators}  # comparing objects is slow
        return tuple(dict.fromkeys(once.values()))

    @cached_property
    def form_numbers(self) -> tuple[int, ...]:
        """The index in `forms` of each operator's form."""
        number = {form: index for index, form in enumerate(self.forms)}
        known: dict[int, int] = {}
        for operator in self.operators:
            if id(operator.form) not in known:
                known[id(operator.form)] = number[operator.form]
        return tuple(known[id(operator.form)] for operator in self.operators)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of everything but the names."""
        parts = (
            [spec for _, spec in self.inputs],
            [form_value(form) for form in self.forms],
            self.form_numbers,
            [operator.reads for operator in self.operators],
            self.outputs,
        )
        return sha256(json.dumps(parts).encode()).hexdigest()


def form_value(form: OperatorForm) -> dict[str, object]:
    """The form as JSON-compatible data."""
    nodes = [
        {"type": node.type, "since": node.since, "attributes": dict(node.attributes), "reads": list(node.reads)}
        for node in form.nodes
    ]
    return {"type": form.type, "nodes": nodes, "outputs": list(form.outputs)}


def first_difference(expected: Structure, found: Structure) -> str | None:
    """The first difference between two structures, as text for a message; None for equal ones."""
    return next(_differences(expected, found), None)


def _differences(expected: Structure, found: Structure) -> Iterator[str]:
    if len(expected.inputs) == len(found.inputs):
        for (name, spec), (own_name, own_spec) in zip(expected.inputs, found.inputs, strict=True):
            if spec != own_spec:
                yield f"input {name!r}{_alias(own_name, name)}: expected {spec}, found {own_spec}"
    for wanted, own in zip_longest(expected.operators, found.operators):
        if wanted is None:
            yield f"operator {own.name!r} ({own.form.type}) is additional"
        elif own is None:
            yield f"operator {wanted.name!r} ({wanted.form.type}) is missing"
        elif difference := _operator_difference(wanted, own, (expected, found)):
            yield f"operator {wanted.name!r}{_alias(own.name, wanted.name)}: {difference}"
    if len(expected.inputs) != len(found.inputs):
        yield f"expected {len(expected.inputs)} inputs, found {len(found.inputs)}"
    if expected.outputs != found.outputs:
        yield "the outputs come from different operators"


def _operator_difference(
    wanted: PlacedOperator, own: PlacedOperator, models: tuple[Structure, Structure]
) -> str | None:
    if wanted.form != own.form:
        return _form_difference(wanted.form, own.form)
    if len(wanted.reads) != len(own.reads):  # only in files that contradict themselves
        return f"expected {len(wanted.reads)} inputs, found {len(own.reads)}"
    if wanted.reads == own.reads:
        return None
    port = next(i for i, (a, b) in enumerate(zip(wanted.reads, own.reads, strict=True)) if a != b)
    one, other = (_tensor_names(model)[item.reads[port]] for model, item in zip(models, (wanted, own), strict=True))
    return f"expected to read {one!r}, found {other!r}, which is computed differently"


def _alias(name: str, other: str) -> str:
    return "" if name == other else f" ({name!r} in this model)"


def _form_difference(wanted: OperatorForm, own: OperatorForm) -> str:
    types = [node.type for node in wanted.nodes], [node.type for node in own.nodes]
    if wanted.type != own.type or types[0] != types[1]:
        return f"expected {_type_text(wanted)}, found {_type_text(own)}"
    for one, other in zip(wanted.nodes, own.nodes, strict=True):
        whose = "" if len(types[0]) == 1 else f" of its {one.type}"
        if one.since != other.since:
            return f"expected {one.type} of opset {one.since}, found opset {other.since}"
        for index, (slot, own_slot) in enumerate(zip_longest(one.reads, other.reads, fillvalue="")):
            if slot != own_slot:
                return f"expected {slot or 'nothing'} as input {index}{whose}, found {own_slot or 'nothing'}"
        attributes, own_attributes = dict(one.attributes), dict(other.attributes)
        for key in sorted({*attributes, *own_attributes}):
            if attributes.get(key) != own_attributes.get(key):
                return f"expected {key} {attributes.get(key)}{whose}, found {own_attributes.get(key)}"
    return f"expected results {', '.join(wanted.outputs)}, found {', '.join(own.outputs)}"


def _type_text(form: OperatorForm) -> str:
    types = [node.type for node in form.nodes]
    return form.type if types == [form.type] else f"{form.type} ({', '.join(types)})"


def _tensor_names(structure: Structure) -> list[str]:
    """The names of all tensors by number; outputs are called by their operator's name."""
    computed = [operator.name for operator in structure.operators for _ in operator.form.outputs]
    return [*(name for name, _ in structure.inputs), *computed]
