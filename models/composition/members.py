"""The models inside a composed one: what their inputs and outputs are called in it, and which operators are whose."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from operator import or_

import onnx

from iosched.models.editable_graph import EditableGraph, bare_frame
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.load import edited_model
from iosched.models.metadata import decoded, metadata_of, write_metadata
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
            raise UsageError(f"{name!r} is not a valid model name: names must not be empty or contain a slash")
    for shared in shared_inputs:
        owner, slash, _ = shared.partition("/")
        if slash and owner in names:
            raise UsageError(
                f"shared input {shared!r} has the name of an input of model {owner!r}.\n"
                f"Rename the model with NAME=FILE."
            )


def write_members(proto: onnx.ModelProto, members: Sequence[Member]) -> None:
    """Writes into the metadata which models are in the model."""
    write_metadata(proto, {MEMBERS_KEY: json.dumps([*map(asdict, members)], sort_keys=True)})


def members_of(proto: onnx.ModelProto) -> tuple[Member, ...]:
    """The models that the metadata of a composed model tells of; none where it is no composed model.

    An entry is passed over where the graph has not the inputs and outputs that it tells of.
    """
    found = decoded(metadata_of(proto, MEMBERS_KEY) or "[]", tuple[Member, ...]) or ()
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


def node_owners(graph: ComputationGraph, owned: Mapping[str, int]) -> dict[str, int]:
    """The owners of every node, where `owned` has those of its operator."""
    found: dict[str, int] = {}
    for operator in graph.operators:
        found.update(dict.fromkeys(operator.nodes, owned[operator.name]))
    return found


def write_owners(proto: onnx.ModelProto, bits: Mapping[str, int]) -> None:
    """Writes into the metadata which nodes work for several members; `bits` has the owners of each, as `owners`.

    Behind an operator that is one for several models, outputs do not tell any more whose an operator is.
    """
    several = {node: own for node, own in bits.items() if own & (own - 1)}
    write_metadata(proto, {OWNERS_KEY: json.dumps(several, sort_keys=True)})


def owners(model: Model, members: Sequence[Member]) -> dict[str, int]:
    """For each operator of a composed or batched model the members that it works for: bit i stands for `members[i]`.

    Nodes that are not noted belong to the member whose name theirs begins with; those of no member to all.
    """
    bits = {member.name: 1 << index for index, member in enumerate(members)}
    everyone = (1 << len(members)) - 1
    noted = decoded(metadata_of(model.proto, OWNERS_KEY) or "{}", dict[str, int]) or {}

    def owner(node: str) -> int:
        return noted.get(node, 0) & everyone or bits.get(node.partition("/")[0], everyone)

    return {operator.name: reduce(or_, map(owner, operator.nodes), 0) for operator in model.graph.operators}


def member_alone(whole: Model, member: Member) -> Model:
    """The model that computes the outputs of one member; its inputs and outputs are called as in the whole.

    Of a batched model, what several members are one in is computed for all of them.

    Raises:
        InvalidModelError: the graph is not one that can be run.

    Complexity: O(nodes), and that of `assembled_model`.
    """
    graph = EditableGraph.of(whole.proto, whole.weights)
    graph.frame = bare_frame(member.name, whole.proto.ir_version, whole.proto.opset_import)
    inputs, outputs = frozenset(member.inputs.values()), frozenset(member.outputs.values())
    graph.cut_out(graph.inputs, [name for name in graph.outputs if name in outputs])
    fed = [name for name in graph.inputs if name in inputs or graph.uses(name)]
    graph.inputs = {name: graph.inputs[name] for name in fed}
    return edited_model(member.name, graph)
