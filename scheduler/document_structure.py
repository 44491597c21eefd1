"""The structure of a schedule's model, as the schedule file keeps it."""

from __future__ import annotations

from typing import cast

from iosched.models.errors import InvalidScheduleError
from iosched.models.structure import NodeForm, OperatorForm, PlacedOperator, Structure, form_value
from iosched.scheduler import document_read as read
from iosched.scheduler.document_read import JsonValue


def structure_value(structure: Structure) -> dict[str, JsonValue]:
    """The structure as it stands in the file: each form once, operators by the form's number."""
    return {
        "sha256": structure.digest,
        "inputs": [{"name": name, "tensor": spec} for name, spec in structure.inputs],
        "forms": [cast(JsonValue, form_value(form)) for form in structure.forms],
        "operators": [
            {"name": operator.name, "form": number, "reads": list(operator.reads)}
            for operator, number in zip(structure.operators, structure.form_numbers, strict=True)
        ],
        "outputs": list(structure.outputs),
    }


def read_structure(root: read.Entry) -> Structure | None:
    """Reads what `structure_value` wrote; None for a file of a version that kept no structure.

    Raises:
        InvalidScheduleError: a part is missing or wrong, or the digest is that of another structure.
    """
    if "structure" not in root.content:
        return None
    entry = read.mapping(root, "structure")
    forms = [_form(form) for form in read.mappings(entry, "forms")]
    structure = Structure(
        inputs=tuple((read.text(each, "name"), read.text(each, "tensor")) for each in read.mappings(entry, "inputs")),
        operators=tuple(_operator(each, forms) for each in read.mappings(entry, "operators")),
        outputs=tuple(read.integers(entry, "outputs")),
    )
    _check_numbers(structure, entry)
    if read.digest(entry, "sha256") != structure.digest:
        raise InvalidScheduleError(f"broken schedule: {entry.at('sha256')} is not that of the structure beside it")
    return structure


def _form(entry: read.Entry) -> OperatorForm:
    nodes = tuple(
        NodeForm(
            read.text(node, "type"),
            read.integer(node, "since"),
            tuple(sorted(read.texts(node, "attributes").items())),
            tuple(read.strings(node, "reads")),
        )
        for node in read.mappings(entry, "nodes")
    )
    return OperatorForm(read.text(entry, "type"), nodes, tuple(read.strings(entry, "outputs")))


def _operator(entry: read.Entry, forms: list[OperatorForm]) -> PlacedOperator:
    number = read.integer(entry, "form")
    if number >= len(forms):
        raise InvalidScheduleError(f"broken schedule: {entry.at('form')} is {number}, of {len(forms)} forms")
    return PlacedOperator(read.text(entry, "name"), forms[number], tuple(read.integers(entry, "reads")))


def _check_numbers(structure: Structure, entry: read.Entry) -> None:
    """Every tensor that is read is an input or computed before."""
    known = len(structure.inputs)
    for index, operator in enumerate(structure.operators):
        if any(number >= known for number in operator.reads):
            raise InvalidScheduleError(f"broken schedule: {entry.at(f'operators[{index}].reads')} names a later tensor")
        known += len(operator.form.outputs)
    if any(number >= known for number in structure.outputs):
        raise InvalidScheduleError(f"broken schedule: {entry.at('outputs')} names a tensor that is not there")
