"""Gives a member of a composed or batched model other weights, of a model of the same structure.

For that a batched model keeps the composed one that it was made of: its nodes, small constants, and the groups.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.batching.rewrite import batched
from iosched.models.canonical import slots, walked
from iosched.models.composition.compose import compose
from iosched.models.composition.members import Member, member_alone, members_of, node_owners, reached
from iosched.models.composition.opsets import raised
from iosched.models.digest import array_digest, opsets_of
from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.initializers import is_external, read_tensor
from iosched.models.load import assembled_model, edited_model
from iosched.models.metadata import decoded, metadata_of, write_metadata
from iosched.models.model import Model
from iosched.models.prepared import prepare
from iosched.models.structure import first_difference
from iosched.models.wiring import captures, reads

RECORD_KEY = "io.iosched.batched"
"""The key of the model metadata that has the record."""

_MAX_NBYTES = 2**30

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Record:
    """How a model of several was made.

    Attributes:
        composed: the model before batching; large weights may be zeros there, so that only their shapes count.
        groups: the operators that became one; none where nothing was batched.
        digests: a hash of the content of each weight of the composed model.
    """

    composed: Model
    groups: Groups
    digests: Mapping[str, str]


def write_record(
    proto: onnx.ModelProto, composed: onnx.ModelProto, groups: Sequence[Sequence[str]], digests: Mapping[str, str]
) -> None:
    """Writes into the metadata of `proto` that it was made of `composed` by batching these groups; see `Record`."""
    packed = base64.b64encode(zlib.compress(composed.SerializeToString(), 9)).decode()
    entry = {"model": packed, "groups": [list(group) for group in groups], "digests": dict(digests)}
    write_metadata(proto, {RECORD_KEY: json.dumps(entry, sort_keys=True)})


class _Entry(msgspec.Struct):
    model: bytes  # which msgspec reads from base64
    groups: Groups
    digests: dict[str, str]


prepare(_Entry)


def record_of(whole: Model) -> Record:
    """The record in the metadata; that of a model without batching where there is none that can be read.

    Raises:
        InvalidModelError: the model before batching is not one that can be run.
    """
    unbatched = Record(whole, (), whole.weight_digests)
    entry = decoded(metadata_of(whole.proto, RECORD_KEY) or "", _Entry)
    if entry is None:
        return unbatched
    try:
        data = zlib.decompressobj().decompress(entry.model, _MAX_NBYTES)
        proto = onnx.ModelProto.FromString(data)
    except (zlib.error, DecodeError):
        return unbatched
    weights = {tensor.name: _array(tensor) for tensor in proto.graph.initializer}
    return Record(assembled_model("composed", proto, weights), entry.groups, entry.digests)


def _array(tensor: onnx.TensorProto) -> np.ndarray:
    """A small weight as it was; zeros for a large one, of which name, type and shape alone are kept."""
    if is_external(tensor):
        return np.zeros(tuple(tensor.dims), tensor_dtype_to_np_dtype(tensor.data_type))
    return read_tensor(tensor)


_ANEW = "Batch the models again."

Weights = Mapping[str, np.ndarray]


def replaced(whole: Model, name: str, new: Model) -> tuple[Model, tuple[str, ...]]:
    """`whole` with the weights of `new` in its member `name`; its schedule is that of `whole`.

    Weights inside batched operators are found by batching once more, with ones and with twos in the place of the
    member's weights: what differs between the two is what comes of them.

    Returns also the names of weights that the member had together with others, and has now for itself.

    Args:
        whole: a composed or batched model.
        name: of the member.
        new: a model of the member's structure.

    Raises:
        UsageError: there is no such member, `new` has another structure, or the member computes something together with
            others that it would not any more.
        InvalidModelError: the file was changed, so that it is not known what it was made of.
    """
    members = {member.name: member for member in members_of(whole.proto)}
    if name not in members:
        models = f"it has {', '.join(members)}" if members else "it is not a batch of models"
        raise UsageError(f"the file has no model {name!r}: {models}")
    return _Replacement(whole, members[name], record_of(whole), new).made()


@dataclass(frozen=True, eq=False)
class _Replacement:
    """What is known of the models.

    Attributes:
        whole: the model that is to be changed.
        member: the member that gets other weights.
        record: how `whole` was made.
        new: the model with the other weights.
    """

    whole: Model
    member: Member
    record: Record
    new: Model

    def made(self) -> tuple[Model, tuple[str, ...]]:
        """The whole with the new weights; if it is batched, it says how, too."""
        pairs = self._pairs()
        changed = {name: array for name, array in pairs.items() if array_digest(array) != self.record.digests.get(name)}
        self._check_shared_nodes(changed)
        shared = {name: self._fresh(name) for name in self._unshared(changed)}
        found = self._changed(self.whole, {**changed, **self._constants(changed)}, shared)
        if self.record.groups:
            composed = self._changed(self.record.composed, changed, shared)
            now = {shared.get(name, name): array_digest(array) for name, array in changed.items()}
            write_record(found.proto, composed.proto, self.record.groups, {**self.record.digests, **now})
        return found, tuple(shared)

    def _changed(self, model: Model, arrays: Weights, shared: Mapping[str, str]) -> Model:
        """A model with these weights as far as it has them; those in `shared` get that name in the member's nodes."""
        graph = EditableGraph.of(model.proto, model.weights)
        for node in graph.nodes:
            if node.name in self._own_nodes:
                graph.set_inputs(node.name, [shared.get(name, name) for name in node.input])
        graph.weights |= {shared.get(name, name): array for name, array in arrays.items() if name in model.weights}
        return edited_model(model.name, graph)

    def _pairs(self) -> dict[str, np.ndarray]:
        """For each weight of the member what the new model has in its place."""
        new, alone = self._new(), member_alone(self.record.composed, self.member)
        difference = first_difference(alone.structure, new.structure)
        if difference is not None:
            raise _batch_again(f"{self.new.name!r} has another structure than {self.member.name!r}: {difference}")
        found: dict[str, np.ndarray] = {}
        for name, array in _corresponding(alone, new):
            if name in found and array_digest(found[name]) != array_digest(array):
                raise _batch_again(
                    f"{self.member.name!r} uses weight {name!r} in several nodes, "
                    f"where {self.new.name!r} has different weights"
                )
            found[name] = array
        return found

    def _new(self) -> Model:
        """The new model in the words of the file: its opsets and names, which graphs inside of nodes have, too."""
        own, there = opsets_of(self.new.proto), opsets_of(self.record.composed.proto)
        if newer := [domain for domain, version in own.items() if version > there.get(domain, 0)]:
            have = there.get(newer[0], "none")
            raise _batch_again(f"{self.new.name!r} needs opset {own[newer[0]]} of {newer[0]}; the file has {have}")
        shared = [own for own, called in self.member.inputs.items() if own == called]
        return compose({self.member.name: raised(self.new, there)}, shared).model

    @cached_property
    def _own_nodes(self) -> set[str]:
        """The composed model's nodes that work for the member alone."""
        return {node for node, bits in self._owners.items() if bits == 1}

    @cached_property
    def _owners(self) -> Mapping[str, int]:
        """For each node of the composed model the members that it works for: bit 0 stands for the one that changes."""
        graph = self.record.composed.graph
        others = (each for each in members_of(self.whole.proto) if each.name != self.member.name)
        return node_owners(graph, reached(graph, [self.member, *others]))

    def _check_shared_nodes(self, changed: Collection[str]) -> None:
        """What the member computes together with others has to stay as it is."""
        shared = {node for node, bits in self._owners.items() if bits > 1 and bits & 1}
        for node in self.record.composed.proto.graph.node:
            if node.name in shared and not set(changed).isdisjoint(reads(node)):
                raise _batch_again(
                    f"{self.member.name!r} shares node {node.name!r} with other models, which keep their weights"
                )

    def _unshared(self, changed: Collection[str]) -> list[str]:
        """The weights that others read, too; none of them may be in a batched operator, or in a graph inside a node."""
        composed = self.record.composed.proto.graph.node
        others = {name for node in composed if node.name not in self._own_nodes for name in reads(node)}
        found = [name for name in changed if name in others]
        operators = [self.record.composed.graph.by_name[name] for group in self.record.groups for name in group]
        inside = {node for operator in operators for node in operator.nodes}
        for node in composed:
            fixed = reads(node) if node.name in inside else captures(node)
            if node.name in self._own_nodes and not set(found).isdisjoint(fixed):
                raise _batch_again(
                    f"{self.member.name!r} shares the weights of {node.name!r} with other models, "
                    f"in an operator that cannot be split"
                )
        return found

    def _constants(self, changed: Weights) -> dict[str, np.ndarray]:
        """The constants of batched operators, with the member's part in them changed."""
        if not self.record.groups:
            return {}
        filled = ({name: np.full_like(array, value) for name, array in changed.items()} for value in (1, 2))
        new, ones, twos = (
            batched(self._changed(self.record.composed, each, {}), self.record.groups).weights
            for each in (changed, *filled)
        )
        found: dict[str, np.ndarray] = {}
        for name in new.keys() - self.record.composed.weights.keys():
            old = self.whole.weights.get(name)
            is_own = ones[name] != twos[name]
            if not is_own.any():
                continue
            if old is None or (old.shape, old.dtype) != (new[name].shape, new[name].dtype):
                raise InvalidModelError(f"constant {name!r} was changed after the file was written.\n{_ANEW}")
            found[name] = np.where(is_own, new[name], old)
        return found

    def _fresh(self, name: str) -> str:
        found = f"{self.member.name}/{name.partition('/')[2]}"
        while found in self.record.composed.weights or found in self.whole.weights:
            found += "_"
        return found


def _batch_again(reason: str) -> UsageError:
    return UsageError(f"{reason}.\n{_ANEW}")


def _corresponding(one: Model, other: Model) -> Iterator[tuple[str, np.ndarray]]:
    """For models of one structure each weight of the first, and the array that the second has in its place."""
    nodes, others = ({node.name: node for node in model.proto.graph.node} for model in (one, other))
    for mine, theirs in zip(one.structure.operators, other.structure.operators, strict=True):
        own = walked([nodes[name] for name in one.graph.by_name[mine.name].nodes])
        beside = walked([others[name] for name in other.graph.by_name[theirs.name].nodes])
        for node, counterpart in zip(own, beside, strict=True):
            for name, there in zip(slots(node), slots(counterpart), strict=True):
                if name in one.weights and there in other.weights:
                    yield name, other.weights[there]
