"""The models inside a composed one: what their inputs and outputs are called in it, and which operators are whose."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass

import msgspec
import onnx

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.metadata import metadata_of, write_metadata
from iosched.models.model import Model
from iosched.models.prepared import prepare

MEMBERS_KEY = "io.iosched.members"
"""The key of the model metadata that says which models are in the model."""

OWNERS_KEY = "io.iosched.owners"
"""The key of the model metadata that says which nodes work for several of them."""


@dataclass(frozen=True)
class Member:
    """One of the models of a composed model.

    Attributes:
        name: of the model; every name that it brought begins with it and a slash ("a/prob").
        inputs: what each of its inputs is called in the composed model, by its own name; shared inputs have it still.
        outputs: likewise for its outputs.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


prepare(Member)


def check_names(names: Collection[str], shared_inputs: Collection[str]) -> None:
    """Checks that tensors whose names begin with these are told apart by them.

    Raises:
        UsageError: a name is empty or has a slash in it, or a shared input is called like a tensor of one model.
    """
    for name in names:
        if not name or "/" in name:
            raise UsageError(f"{name!r} cannot be the name of a model: it is empty, or has a slash in it")
    for shared in shared_inputs:
        owner, slash, _ = shared.partition("/")
        if slash and owner in names:
            raise UsageError(
                f"shared input {shared!r} is called like an input of model {owner!r} alone.\n"
                f"Give the model another name: NAME=FILE."
            )


def to_metadata(members: Sequence[Member]) -> str:
    """The text that the metadata has under `MEMBERS_KEY`."""
    return json.dumps([asdict(member) for member in members], sort_keys=True)


def members_of(proto: onnx.ModelProto) -> tuple[Member, ...]:
    """The models that the metadata of a composed model tells of; none where it is no composed model.

    An entry is passed over where the graph has not the inputs and outputs that it tells of.
    """
    text = metadata_of(proto, MEMBERS_KEY) or "[]"
    try:
        found = msgspec.json.decode(text, type=tuple[Member, ...])
    except (msgspec.DecodeError, RecursionError):
        return ()
    fed, returned = ({value.name for value in values} for values in (proto.graph.input, proto.graph.output))
    return tuple(
        member
        for member in found
        if fed.issuperset(member.inputs.values()) and returned.issuperset(member.outputs.values())
    )


def reached(graph: ComputationGraph, members: Sequence[Member]) -> dict[str, int]:
    """For each operator of a composed graph the members whose outputs depend on it: bit i stands for `members[i]`.

    An operator has several owners where models share it. All that it reads then belongs to all of these, too: so what
    models share comes before what each of them has for itself. Complexity: O(operators + edges).
    """
    found = dict.fromkeys(graph.by_name, 0)
    for bit, member in enumerate(members):
        for name in member.outputs.values():
            if name in graph.producer:
                found[graph.producer[name]] |= 1 << bit
    for operator in reversed(graph.operators):
        for before in graph.predecessors[operator.name]:
            found[before] |= found[operator.name]
    return found


def note_owners(proto: onnx.ModelProto, several: Mapping[str, int]) -> None:
    """Writes into the metadata which nodes work for several members; a bit for each, as in `owners`.

    Behind an operator that is one for several models, outputs do not tell any more whose an operator is.
    """
    write_metadata(proto, {OWNERS_KEY: json.dumps(several, sort_keys=True)})


def owners(model: Model, members: Sequence[Member]) -> dict[str, int]:
    """For each operator of a composed or batched model the members that it works for: bit i stands for `members[i]`.

    Nodes that are not noted belong to the member whose name theirs begins with; those of no member to all.
    """
    bits = {member.name: 1 << index for index, member in enumerate(members)}
    everyone = (1 << len(members)) - 1
    noted = _noted(model.proto)

    def owner(node: str) -> int:
        return noted.get(node, 0) & everyone or bits.get(node.partition("/")[0], everyone)

    found = {}
    for operator in model.graph.operators:
        found[operator.name] = 0
        for node in operator.nodes:
            found[operator.name] |= owner(node)
    return found


def _noted(proto: onnx.ModelProto) -> dict[str, int]:
    text = metadata_of(proto, OWNERS_KEY) or "{}"
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except (msgspec.DecodeError, RecursionError):
        return {}
