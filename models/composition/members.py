"""The members of a composed model: their inputs and outputs, and the operators that they need."""

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
"""The metadata key of the members."""

OWNERS_KEY = "io.iosched.owners"
"""The metadata key of the nodes with several owners."""


@dataclass(frozen=True)
class Member:
    """One model of a composed model.

    Attributes:
        name: of the model, and the prefix of its names ("a/prob").
        inputs: the composed model's name of each input; shared inputs keep theirs.
        outputs: likewise for its outputs.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


prepare(Member)


def check_names(names: Collection[str], shared_inputs: Collection[str]) -> None:
    """Check that names of models are valid prefixes.

    Raises:
        UsageError: a name is empty or has a slash, or a shared input looks like a tensor of one model.
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
    """Write the members into the metadata."""
    write_metadata(proto, {MEMBERS_KEY: json.dumps([*map(asdict, members)], sort_keys=True)})


def members_of(proto: onnx.ModelProto) -> tuple[Member, ...]:
    """The members in a model's metadata, except those whose inputs or outputs are not in the graph."""
    found = decoded(metadata_of(proto, MEMBERS_KEY) or "[]", tuple[Member, ...]) or ()
    fed, returned = ({value.name for value in values} for values in (proto.graph.input, proto.graph.output))
    return tuple(
        member
        for member in found
        if fed.issuperset(member.inputs.values()) and returned.issuperset(member.outputs.values())
    )


def dependent_members(graph: ComputationGraph, members: Sequence[Member]) -> dict[str, int]:
    """For each operator of a composed graph, the members whose outputs depend on it: bit i is `members[i]`.

    All operators that a shared operator depends on have its owners too. O(operators + edges).
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
    """The owners of every node, from those of its operator."""
    found: dict[str, int] = {}
    for operator in graph.operators:
        found.update(dict.fromkeys(operator.nodes, owned[operator.name]))
    return found


def write_owners(proto: onnx.ModelProto, bits: Mapping[str, int]) -> None:
    """Write the owners of nodes with several into the metadata; outputs of batched operators do not show them."""
    several = {node: own for node, own in bits.items() if own & (own - 1)}
    write_metadata(proto, {OWNERS_KEY: json.dumps(several, sort_keys=True)})


def owners(model: Model, members: Sequence[Member]) -> dict[str, int]:
    """For each operator of a composed or batched model, the members that need it: bit i is `members[i]`.

    Nodes without an entry belong to the member in their name's prefix, else to all.
    """
    bits = {member.name: 1 << index for index, member in enumerate(members)}
    everyone = (1 << len(members)) - 1
    noted = decoded(metadata_of(model.proto, OWNERS_KEY) or "{}", dict[str, int]) or {}

    def owner(node: str) -> int:
        return noted.get(node, 0) & everyone or bits.get(node.partition("/")[0], everyone)

    return {operator.name: reduce(or_, map(owner, operator.nodes), 0) for operator in model.graph.operators}


def member_alone(whole: Model, member: Member) -> Model:
    """The model of one member, with inputs and outputs named as in the whole.

    Operators batched over several members are computed for all of them. O(nodes), plus that of `assembled_model`.

    Raises:
        InvalidModelError: the graph cannot be run.
    """
    graph = EditableGraph.of(whole.proto, whole.weights)
    graph.frame = bare_frame(member.name, whole.proto.ir_version, whole.proto.opset_import)
    inputs, outputs = frozenset(member.inputs.values()), frozenset(member.outputs.values())
    graph.cut_out(graph.inputs, [name for name in graph.outputs if name in outputs])
    fed = [name for name in graph.inputs if name in inputs or graph.uses(name)]
    graph.inputs = {name: graph.inputs[name] for name in fed}
    return edited_model(member.name, graph)
