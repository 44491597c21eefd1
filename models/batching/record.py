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

from iosched.models.initializers import is_outside, read_tensor
from iosched.models.load import assembled_model
from iosched.models.metadata import decoded, metadata_of, write_metadata
from iosched.models.model import Model
from iosched.models.prepared import prepare

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
    if is_outside(tensor):
        return np.zeros(tuple(tensor.dims), tensor_dtype_to_np_dtype(tensor.data_type))
    return read_tensor(tensor)
