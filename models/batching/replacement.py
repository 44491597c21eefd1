"""Replaces the weights of one member of a composed or batched model by those of a model of the same structure.

For this, a batched model's metadata has the composed model that it was made from: nodes, small constants, groups.
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
from iosched.models.composition.members import Member, dependent_members, member_alone, members_of, node_owners
from iosched.models.composition.opsets import with_opsets
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
"""The metadata key of the record."""

_MAX_NBYTES = 2**30

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class BatchRecord:
    """The record of a model's batching.

    Attributes:
        composed: the model before batching; large weights may be zeros.
        groups: the batched operators.
        digests: a hash of each weight of the composed model.
    """

    composed: Model
    groups: Groups
    digests: Mapping[str, str]


def write_record(
    proto: onnx.ModelProto, composed: onnx.ModelProto, groups: Sequence[Sequence[str]], digests: Mapping[str, str]
) -> None:
    """Write into the metadata of `proto` that it was batched from `composed`; see `BatchRecord`."""
    packed = base64.b64encode(zlib.compress(composed.SerializeToString(), 9)).decode()
    entry = {"model": packed, "groups": [list(group) for group in groups], "digests": dict(digests)}
    write_metadata(proto, {RECORD_KEY: json.dumps(entry, sort_keys=True)})


class _Entry(msgspec.Struct):
    model: bytes  # base64 in JSON
    groups: Groups
    digests: dict[str, str]


prepare(_Entry)


def record_of(whole: Model) -> BatchRecord:
    """The record in the metadata; without a valid one, that of an unbatched model.

    Raises:
        InvalidModelError: the model before batching cannot be run.
    """
    unbatched = BatchRecord(whole, (), whole.weight_digests)
    entry = decoded(metadata_of(whole.proto, RECORD_KEY) or "", _Entry)
    if entry is None:
        return unbatched
    try:
        data = zlib.decompressobj().decompress(entry.model, _MAX_NBYTES)
        proto = onnx.ModelProto.FromString(data)
    except (zlib.error, DecodeError):
        return unbatched
    weights = {tensor.name: _small_array(tensor) for tensor in proto.graph.initializer}
    return BatchRecord(assembled_model("composed", proto, weights), entry.groups, entry.digests)


def _small_array(tensor: onnx.TensorProto) -> np.ndarray:
    """A small weight; zeros for a large one, which has only name, type and shape."""
    if is_external(tensor):
        return np.zeros(tuple(tensor.dims), tensor_dtype_to_np_dtype(tensor.data_type))
    return read_tensor(tensor)


_BATCH_AGAIN = "Batch the models again."

Weights = Mapping[str, np.ndarray]


def replaced(whole: Model, name: str, new: Model) -> tuple[Model, tuple[str, ...]]:
    """`whole` with the weights of `new` in its member `name`, and the weights that the member no longer shares.

    The schedule stays. Weights in batched operators are found by batching again with ones and twos as the member's
    weights: elements that differ between both results depend on these weights.

    Raises:
        UsageError: there is no such member, `new` has another structure, or nodes or weights can no longer be shared.
        InvalidModelError: the file was changed, so that its origin is unknown.
    """
    members = {member.name: member for member in members_of(whole.proto)}
    if name not in members:
        models = f"it has {', '.join(members)}" if members else "it is not a batch of models"
        raise UsageError(f"the file has no model {name!r}: {models}")
    return _Replacement(whole, members[name], record_of(whole), new).made()


@dataclass(frozen=True, eq=False)
class _Replacement:
    whole: Model
    member: Member
    record: BatchRecord
    new: Model

    def made(self) -> tuple[Model, tuple[str, ...]]:
        pairs = self._new_arrays()
        changed = {name: array for name, array in pairs.items() if array_digest(array) != self.record.digests.get(name)}
        self._check_shared_nodes(changed)
        shared = {name: self._fresh(name) for name in self._unshared(changed)}
        found = self._changed(self.whole, {**changed, **self._batched_constants(changed)}, shared)
        if self.record.groups:
            composed = self._changed(self.record.composed, changed, shared)
            now = {shared.get(name, name): array_digest(array) for name, array in changed.items()}
            write_record(found.proto, composed.proto, self.record.groups, {**self.record.digests, **now})
        return found, tuple(shared)

    def _changed(self, model: Model, arrays: Weights, shared: Mapping[str, str]) -> Model:
        """`model` with the given weights that it uses; the member's nodes read them under the names in `shared`."""
        graph = EditableGraph.of(model.proto, model.weights)
        for node in graph.nodes:
            if node.name in self._own_nodes:
                graph.set_inputs(node.name, [shared.get(name, name) for name in node.input])
        graph.weights |= {shared.get(name, name): array for name, array in arrays.items() if name in model.weights}
        return edited_model(model.name, graph)

    def _new_arrays(self) -> dict[str, np.ndarray]:
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
        """The new model with the file's opsets and names, including names in subgraphs."""
        own, there = opsets_of(self.new.proto), opsets_of(self.record.composed.proto)
        if newer := [domain for domain, version in own.items() if version > there.get(domain, 0)]:
            have = there.get(newer[0], "none")
            raise _batch_again(f"{self.new.name!r} needs opset {own[newer[0]]} of {newer[0]}; the file has {have}")
        shared = [own for own, called in self.member.inputs.items() if own == called]
        return compose({self.member.name: with_opsets(self.new, there)}, shared).model

    @cached_property
    def _own_nodes(self) -> set[str]:
        return {node for node, bits in self._owners.items() if bits == 1}

    @cached_property
    def _owners(self) -> Mapping[str, int]:
        """The members that need each node of the composed model; bit 0 is the replaced one."""
        graph = self.record.composed.graph
        others = (each for each in members_of(self.whole.proto) if each.name != self.member.name)
        return node_owners(graph, dependent_members(graph, [self.member, *others]))

    def _check_shared_nodes(self, changed: Collection[str]) -> None:
        shared = {node for node, bits in self._owners.items() if bits > 1 and bits & 1}
        for node in self.record.composed.proto.graph.node:
            if node.name in shared and not set(changed).isdisjoint(reads(node)):
                raise _batch_again(
                    f"{self.member.name!r} shares node {node.name!r} with other models, which keep their weights"
                )

    def _unshared(self, changed: Collection[str]) -> list[str]:
        """The weights that other members read too; none may be in a batched operator or a subgraph."""
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

    def _batched_constants(self, changed: Weights) -> dict[str, np.ndarray]:
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
                raise InvalidModelError(f"constant {name!r} was changed after the file was written.\n{_BATCH_AGAIN}")
            found[name] = np.where(is_own, new[name], old)
        return found

    def _fresh(self, name: str) -> str:
        found = f"{self.member.name}/{name.partition('/')[2]}"
        while found in self.record.composed.weights or found in self.whole.weights:
            found += "_"
        return found


def _batch_again(reason: str) -> UsageError:
    return UsageError(f"{reason}.\n{_BATCH_AGAIN}")


def _corresponding(one: Model, other: Model) -> Iterator[tuple[str, np.ndarray]]:
    """Each weight of the first model with its counterpart in the second, of the same structure."""
    nodes, others = ({node.name: node for node in model.proto.graph.node} for model in (one, other))
    for mine, theirs in zip(one.structure.operators, other.structure.operators, strict=True):
        own = walked([nodes[name] for name in one.graph.by_name[mine.name].nodes])
        counterparts = walked([others[name] for name in other.graph.by_name[theirs.name].nodes])
        for node, counterpart in zip(own, counterparts, strict=True):
            for name, there in zip(slots(node), slots(counterpart), strict=True):
                if name in one.weights and there in other.weights:
                    yield name, other.weights[there]
