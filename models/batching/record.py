"""What a batched model keeps of the composed one that it was made of: the nodes and small constants, and the groups."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.initializers import read_tensor
from iosched.models.metadata import decoded, metadata_of, write_metadata
from iosched.models.prepared import prepare

RECORD_KEY = "io.iosched.batched"
"""The key of the model metadata that has the record."""

_MAX_NBYTES = 2**30

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class Record:
    """How a batched model was made.

    Attributes:
        proto: the composed model; of large weights it has name, type and shape alone.
        groups: the operators that became one.
        digests: a hash of the content of each weight.
    """

    proto: onnx.ModelProto
    groups: Groups
    digests: Mapping[str, str]

    def weights(self) -> dict[str, np.ndarray]:
        """The weights by name: small ones as they were, large ones filled with zeros."""
        return {
            tensor.name: np.zeros(tuple(tensor.dims), tensor_dtype_to_np_dtype(tensor.data_type))
            if tensor.data_location == onnx.TensorProto.EXTERNAL
            else read_tensor(tensor)
            for tensor in self.proto.graph.initializer
        }


def note_record(
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


def record_of(proto: onnx.ModelProto) -> Record | None:
    """The record in the metadata; None where there is none that can be read."""
    entry = decoded(metadata_of(proto, RECORD_KEY) or "", _Entry)
    if entry is None:
        return None
    try:
        data = zlib.decompressobj().decompress(entry.model, _MAX_NBYTES)
        return Record(onnx.ModelProto.FromString(data), entry.groups, entry.digests)
    except (zlib.error, DecodeError):
        return None
