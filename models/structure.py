"""A model's structure: all of it that a schedule depends on. Weights, names and the order of nodes are no part of it.

Operators are numbered in an order that follows from the structure alone. So two models of one structure correspond to
each other: the n-th operator of the one is the n-th operator of the other.

Developer notes:
    * The operands of a node have an order, and a path leads from every operator to an output. So the correspondence of
      two models is unique, and one walk from the outputs finds it (`models/canonical.py`); between graphs in general it
      would take a search.
    * Nothing here may import onnx.
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
        type: the ONNX op type; for operators outside ONNX's own domain with the domain ("com.microsoft::Gelu").
        since: the opset since which the node's operator means what it means here.
        attributes: names and values as text, sorted by name.
        reads: for each input a text: "port N" for the N-th tensor that the operator reads; "node N" for the result of
            an earlier node; for a weight its type and shape, and its value where that says what the node does; "" where
            the input is left out.
    """

    type: str
    since: int
    attributes: tuple[tuple[str, str], ...]
    reads: tuple[str, ...]


@dataclass(frozen=True)
class OperatorForm:
    """What an operator is, without names: its type, its nodes, and the types and shapes of its outputs."""

    type: str
    nodes: tuple[NodeForm, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class PlacedOperator:
    """An operator of a structure: its name, what it is, and the numbers of the tensors that it reads, port by port."""

    name: str
    form: OperatorForm
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Structure:
    """A model's structure, with the names that its inputs and operators have in this model.

    Tensors are numbered: first the inputs, then the outputs of each operator.

    Attributes:
        inputs: for each input its name, and its type and shape as text ("float32 1x3x224x224"), in the order in which
            operators read them.
        operators: each of them comes after those that it reads from.
        outputs: the numbers of the tensors that the model returns.
    """

    inputs: tuple[tuple[str, str], ...]
    operators: tuple[PlacedOperator, ...]
    outputs: tuple[int, ...]

    @cached_property
    def forms(self) -> tuple[OperatorForm, ...]:
        """The operators' forms, each once, in order of first use."""
        once = {
            id(operator.form): operator.form for operator in self.operators
        }  # a form is compared once for each object
        return tuple(dict.fromkeys(once.values()))

    @cached_property
    def form_numbers(self) -> tuple[int, ...]:
        """For every operator, the index of its form in `forms`."""
        number = {form: index for index, form in enumerate(self.forms)}
        known: dict[int, int] = {}
        for operator in self.operators:
            if id(operator.form) not in known:
                known[id(operator.form)] = number[operator.form]
        return tuple(known[id(operator.form)] for operator in self.operators)

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of everything but the names; equal for models of one structure."""
        parts = (
            [spec for _, spec in self.inputs],
            [form_value(form) for form in self.forms],
            self.form_numbers,
            [operator.reads for operator in self.operators],
            self.outputs,
        )
        return sha256(json.dumps(parts).encode()).hexdigest()


def form_value(form: OperatorForm) -> dict[str, object]:
    """The form as a value that JSON can express."""
    nodes = [
        {"type": node.type, "since": node.since, "attributes": dict(node.attributes), "reads": list(node.reads)}
        for node in form.nodes
    ]
    return {"type": form.type, "nodes": nodes, "outputs": list(form.outputs)}


def first_difference(there: Structure, here: Structure) -> str | None:
    """How the first operator that differs is another one `there` than `here`, in words; None for equal structures."""
    return next(_differences(there, here), None)


def _differences(there: Structure, here: Structure) -> Iterator[str]:
    if len(there.inputs) == len(here.inputs):
        for (name, spec), (ours, own) in zip(there.inputs, here.inputs, strict=True):
            if spec != own:
                yield f"input {name!r} is {spec} there, and {own} here{_as(ours, name)}"
    for theirs, mine in zip_longest(there.operators, here.operators):
        if theirs is None:
            yield f"there is no operator like {mine.name!r} ({mine.form.type}) there"
        elif mine is None:
            yield f"operator {theirs.name!r} ({theirs.form.type}) has nothing like it here"
        else:
            yield from _operator_differences(theirs, mine, (there, here))
    if len(there.inputs) != len(here.inputs):
        yield f"it has {len(there.inputs)} inputs there, and {len(here.inputs)} here"
    if there.outputs != here.outputs:
        yield "its outputs come from other operators"


def _operator_differences(
    theirs: PlacedOperator, mine: PlacedOperator, models: tuple[Structure, Structure]
) -> Iterator[str]:
    who = f"operator {theirs.name!r}"
    here = f"here{_as(mine.name, theirs.name)}"
    if theirs.form != mine.form:
        yield f"{who} {_form_difference(theirs.form, mine.form, here)}"
    elif len(theirs.reads) != len(mine.reads):  # only in files that contradict themselves
        yield f"{who} reads {len(theirs.reads)} tensors there, and {len(mine.reads)} {here}"
    elif theirs.reads != mine.reads:
        port = next(i for i, (a, b) in enumerate(zip(theirs.reads, mine.reads, strict=True)) if a != b)
        one, other = (
            _tensor_names(model)[item.reads[port]] for model, item in zip(models, (theirs, mine), strict=True)
        )
        yield f"{who} reads {one!r} there, and {other!r}, which is something else, {here}"


def _as(name: str, other: str) -> str:
    """A phrase that says under which name a thing is found here, where its name there is another one."""
    return "" if name == other else f", as {name!r}"


def _form_difference(theirs: OperatorForm, mine: OperatorForm, here: str) -> str:
    kinds = [node.type for node in theirs.nodes], [node.type for node in mine.nodes]
    if theirs.type != mine.type or kinds[0] != kinds[1]:
        return f"is {_kind(theirs)} there, and {_kind(mine)} {here}"
    for one, other in zip(theirs.nodes, mine.nodes, strict=True):
        whose = "" if len(kinds[0]) == 1 else f" of its {one.type}"
        if one.since != other.since:
            return f"is a {one.type} of opset {one.since} there, and of opset {other.since} {here}"
        for index, (slot, ours) in enumerate(zip_longest(one.reads, other.reads, fillvalue="")):
            if slot != ours:
                return f"has as input {index}{whose} {slot or 'nothing'} there, and {ours or 'nothing'} {here}"
        attributes, own = dict(one.attributes), dict(other.attributes)
        for key in sorted({*attributes, *own}):
            if attributes.get(key) != own.get(key):
                return f"has {key}{whose} {_value(attributes, key)} there, and {_value(own, key)} {here}"
    return f"computes {', '.join(theirs.outputs)} there, and {', '.join(mine.outputs)} {here}"


def _kind(form: OperatorForm) -> str:
    kinds = [node.type for node in form.nodes]
    return f"a {form.type}" if kinds == [form.type] else f"a {form.type} ({', '.join(kinds)})"


def _value(attributes: dict[str, str], key: str) -> str:
    return attributes.get(key, "not given")


def _tensor_names(structure: Structure) -> list[str]:
    """The names of all tensors by their number; each output of an operator is called by the operator's name."""
    computed = [operator.name for operator in structure.operators for _ in operator.form.outputs]
    return [*(name for name, _ in structure.inputs), *computed]
