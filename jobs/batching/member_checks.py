"""Compares outputs of models in a file with those of each model alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from iosched.models.composition.members import Member
from iosched.models.composition.values import is_random
from iosched.models.errors import MismatchError
from iosched.models.model import Model
from iosched.models.wiring import nodes_within
from iosched.runtime.compare import RTOL, Check, compare
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference

Outputs = Mapping[str, Any]


def member_checks(
    outputs: Outputs, inputs: Arrays, models: Mapping[str, Model], members: Sequence[Member], *, rtol: float = RTOL
) -> Iterator[tuple[Member, Check]]:
    """Compares the outputs of members with those of onnxruntime on the separate models.

    Skips members without a given model, and those with random results.

    Args:
        outputs: by their names in the composed model.
        inputs: likewise; the model's inputs.
        models: the separate models, by the names of members.
        members: of the composed model.
        rtol: relative tolerance of floats, see `compare`.
    """
    for member in members:
        model = models.get(member.name)
        if model is None or any(map(is_random, nodes_within(model.proto.graph))):
            continue
        with Reference(model) as alone:
            expected = alone.run({name: inputs[called] for name, called in member.inputs.items()})
        found = {name: outputs[called] for name, called in member.outputs.items()}
        yield member, compare(found, expected, rtol=rtol)


def check_members(
    outputs: Outputs, inputs: Arrays, models: Mapping[str, Model], members: Sequence[Member], *, rtol: float = RTOL
) -> None:
    """Raises `MismatchError` if outputs of a model differ; see `member_checks`."""
    for member, found in member_checks(outputs, inputs, models, members, rtol=rtol):
        if not found.passed:
            raise MismatchError(
                f"outputs of model {member.name!r} differ from those of the model alone: {found.reasons[0]}"
            )
