"""Writes models as ONNX files, with their schedules in the metadata."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, numpy_helper

from iosched.models.dynamic_batch import DynamicBatchModel
from iosched.models.editable_graph import EditableGraph
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.files import atomic_write
from iosched.models.initializers import is_external
from iosched.models.merging.merge import MERGED_KEY, Merge, merge_operators, to_json
from iosched.models.metadata import METADATA_PREFIX, SCHEDULE_KEY, SCHEDULES_KEY, is_ours, write_metadata
from iosched.models.model import INLINE_NBYTES, Model
from iosched.models.node_attributes import copied
from iosched.models.source import StrPath
from iosched.models.wiring import dependencies_first, reads

VERSION_KEY = "io.iosched.version"
"""Model metadata: the version of iosched that wrote the model."""

_OUTDATED_KEYS = frozenset({SCHEDULE_KEY, SCHEDULES_KEY, VERSION_KEY, MERGED_KEY})  # another optimization replaces them
_METADATA_IR_VERSION = 10  # nodes have metadata since this version
_INLINE_LIMIT_NBYTES = 1_900_000_000  # a protobuf message cannot have more than 2 GiB
_ALIGNMENT = 4096  # bytes of a memory page, so that runtimes can map single tensors
_CHUNK_NBYTES = 2**24
_NOTHING = np.zeros(0, np.uint8)


@dataclass(frozen=True)
class NodeNote:
    """The metadata of an operator's nodes: its place in the schedule, and its stage's latency."""

    block: int
    stage: int
    group: int
    strategy: str
    latency_us: float | None

    def items(self) -> Iterator[tuple[str, str]]:
        """Metadata keys, without prefix, and values."""
        yield "block", str(self.block)
        yield "stage", str(self.stage)
        yield "group", str(self.group)
        yield "strategy", self.strategy
        if self.latency_us is not None:
            yield "latency_us", f"{self.latency_us:.3f}"


def annotate(
    model: Model,
    *,
    order: Sequence[str],
    notes: Mapping[str, NodeNote],
    merges: Sequence[tuple[str, ...]],
    schedule_json: str,
    version: str,
) -> onnx.ModelProto:
    """The model with its schedule inside: nodes in schedule order, merged operators as merged nodes.

    Args:
        order: the names of all operators in schedule order.
        notes: metadata for the nodes of operators, by name.
        merges: sets of operators, each to become one operator followed by a Split.

    Returns:
        A copy; payloads of its large initializers are in `model.weights`, the second argument of `write_model`.

    Raises:
        ValueError: a merge is not exact.
        KeyError: `order` or `merges` names an unknown operator.
    """
    graph = EditableGraph.of(model.proto, model.weights)
    owner = {node: name for name in order for node in model.graph.by_name[name].nodes}
    found: list[Merge] = []
    for names in merges:
        merge, nodes = merge_operators(graph, [model.graph.by_name[name] for name in names])
        owner.update((node.output[0], names[0]) for node in nodes)
        found.append(merge)
    _sort(graph, owner, {name: index for index, name in enumerate(order)})
    proto = graph.to_proto()
    proto.ir_version = max(proto.ir_version, _METADATA_IR_VERSION)
    _write_notes(proto.graph, owner, notes)
    for tensor in proto.graph.initializer:
        if tensor.name not in model.weights:
            tensor.CopyFrom(numpy_helper.from_array(graph.weights[tensor.name], tensor.name))
    merged = {MERGED_KEY: to_json(found)} if found else {}
    ours = {SCHEDULE_KEY: schedule_json, VERSION_KEY: version, **merged}
    write_metadata(proto, ours, drops=_OUTDATED_KEYS.__contains__)
    return proto


def with_schedules(
    model: DynamicBatchModel, batch_sizes: Sequence[int], schedules_json: str, version: str
) -> onnx.ModelProto:
    """A copy of the model with a dynamic batch and its schedules for several batch sizes inside.

    Nodes keep their order and are not merged, since schedules differ between batch sizes. Payloads of large
    initializers are in `model.unbound.weights`.
    """
    proto = model.proto(batch_sizes)
    _write_notes(proto.graph, {}, {})
    write_metadata(proto, {SCHEDULES_KEY: schedules_json, VERSION_KEY: version}, drops=_OUTDATED_KEYS.__contains__)
    return proto


def write_model(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], destination: StrPath | None) -> bytes | None:
    """Write a model whose large payloads are in `weights`; return its bytes if `destination` is None.

    Weights of more than 1.9 GB go to NAME.data next to the model. Files are written atomically.

    Raises:
        UsageError: the model is too large to be returned as bytes.
        InvalidModelError: an initializer is not in `weights`.
        OSError: the files cannot be written.
    """
    outside = [tensor.name for tensor in proto.graph.initializer if is_external(tensor)]
    if missing := [name for name in outside if name not in weights]:
        raise InvalidModelError(f"the weights of {missing[0]!r} are missing.")
    total = proto.ByteSize() + sum(weights[name].nbytes for name in outside)
    if total > _INLINE_LIMIT_NBYTES:
        if destination is None:
            size = f"{total / 1e9:.1f} GB of weights"
            raise UsageError(f"the model has {size}, too much for one ONNX stream; write it to a file instead.")
        _write_external(proto, weights, Path(destination))
    elif destination is None:
        return b"".join(_encoded(proto, weights))
    else:
        with atomic_write(Path(destination)) as file:
            file.writelines(_encoded(proto, weights))
    return None


def source_of(model: Model) -> Path | bytes:
    """The model's path or bytes; those of an assembled model are serialized.

    Raises:
        UsageError: it was assembled, and is too large to be returned as bytes.
    """
    return model.original or write_model(model.proto, model.weights, None) or b""


def _sort(graph: EditableGraph, owner: Mapping[str, str], rank: Mapping[str, int]) -> None:
    """Sort nodes by the order of their operators; those of unknown operators come last. O(nodes + edges).

    Dependencies take precedence over the operators' order.
    """
    nodes, last = graph.nodes, len(rank)
    producer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    wanted = sorted(range(len(nodes)), key=lambda i: (rank.get(owner.get(nodes[i].name, ""), last), i))
    graph.reorder(
        dependencies_first(wanted, lambda i: (producer[name] for name in reads(nodes[i]) if name in producer))
    )


def _write_notes(graph: onnx.GraphProto, owner: Mapping[str, str], notes: Mapping[str, NodeNote]) -> None:
    for node in graph.node:
        note = notes.get(owner.get(node.name, ""))
        ours = {METADATA_PREFIX + key: value for key, value in note.items()} if note is not None else {}
        write_metadata(node, ours, drops=is_ours)


def _encoded(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """The model in protobuf's wire format with its weights, in parts: no message holds them all."""
    model = copied(proto)
    del model.graph.initializer[:]
    start = model.graph.SerializeToString()
    model.ClearField("graph")
    initializers = [_encoded_initializer(tensor, weights) for tensor in proto.graph.initializer]
    nbytes = len(start) + sum(len(begin) + payload.nbytes for begin, payload in initializers)
    yield model.SerializeToString() + _field_prefix(onnx.ModelProto, "graph", nbytes) + start
    for begin, payload in initializers:
        yield begin
        yield from _chunks(payload)


def _encoded_initializer(tensor: TensorProto, weights: Mapping[str, np.ndarray]) -> tuple[bytes, np.ndarray]:
    """An initializer in wire format up to its external payload, and the payload."""
    inside, payload, prefix = copied(tensor), _NOTHING, b""
    if is_external(tensor):
        inside.ClearField("external_data")
        inside.ClearField("data_location")
        payload = weights[tensor.name]
        prefix = _field_prefix(TensorProto, "raw_data", payload.nbytes)
    encoded = inside.SerializeToString() + prefix
    nbytes = len(encoded) + payload.nbytes
    return _field_prefix(onnx.GraphProto, "initializer", nbytes) + encoded, payload


def _field_prefix(message: type[Message], field: str, nbytes: int) -> bytes:
    """The bytes before a length-delimited field: tag and length."""
    length_delimited = 2
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | length_delimited) + _varint(nbytes)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def _write_external(proto: onnx.ModelProto, weights: Mapping[str, np.ndarray], destination: Path) -> None:
    data_path = destination.with_name(f"{destination.name}.data")
    whole = copied(proto)
    with atomic_write(destination) as file, atomic_write(data_path) as data:
        for tensor in whole.graph.initializer:
            if is_external(tensor):
                _append(tensor, weights[tensor.name], data, data_path.name)
            elif len(tensor.raw_data) > INLINE_NBYTES:
                _append(tensor, np.frombuffer(tensor.raw_data, np.uint8), data, data_path.name)
        file.write(whole.SerializeToString())


def _append(tensor: TensorProto, array: np.ndarray, data: BinaryIO, location: str) -> None:
    offset = -(-data.tell() // _ALIGNMENT) * _ALIGNMENT
    data.seek(offset)
    for chunk in _chunks(array):
        data.write(chunk)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(data.tell() - offset))):
        tensor.external_data.add(key=key, value=value)


def _chunks(array: np.ndarray) -> Iterable[bytes]:
    """The array's bytes as in ONNX: C order, little endian."""
    flat = array.reshape(-1)
    step = max(_CHUNK_NBYTES // max(array.itemsize, 1), 1)
    little = array.dtype.newbyteorder("<")
    for begin in range(0, flat.size, step):
        yield flat[begin : begin + step].astype(little, copy=False).tobytes()
