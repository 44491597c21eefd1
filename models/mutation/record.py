"""The record of a variant as data: choices and graph changes in order.

Records may be untrusted: they contain names, numbers and small constants, and nothing is executed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Annotated

import msgspec
import numpy as np
import onnx
from msgspec import Meta
from onnx.helper import tensor_dtype_to_np_dtype

from iosched.models.errors import InvalidModelError
from iosched.models.graph import Scalar
from iosched.models.metadata import metadata_of
from iosched.models.prepared import prepare

MUTATION_KEY = "io.iosched.mutation"
"""The metadata key of the record."""

VERSION = 1
MAX_RECORDED_NBYTES = 2**20
"""The largest constant that a record can contain."""

MAX_ENTRIES = 10_000
"""The most entries of a record; each takes time in proportion to the graph."""

_FORMAT = "iosched.mutation"
_MAX_LENGTH = 2**26  # characters of a record

Size = Annotated[int, Meta(ge=0, le=2**31)]
InputIndex = Annotated[int, Meta(ge=0, le=2**10)]
Attribute = Scalar | tuple[Scalar, ...]


class Weight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A constant that a node reads: its shape, and its values if `data` has them (base64, little endian)."""

    shape: tuple[Size, ...]
    dtype: str = "float32"
    data: str | None = None

    @classmethod
    def of(cls, array: np.ndarray) -> Weight:
        """The constant of these values."""
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        return cls(tuple(array.shape), array.dtype.name, base64.b64encode(little.tobytes()).decode())

    @property
    def element(self) -> np.dtype:
        """The element type; raises `InvalidModelError` if records do not support it."""
        if self.dtype not in _DTYPES:
            raise InvalidModelError(f"a constant has the unsupported type {self.dtype[:40]!r}")
        return _DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """The size; raises as `element`."""
        return prod(self.shape) * self.element.itemsize

    def values(self) -> np.ndarray:
        """The values in `data`; raises `InvalidModelError` if they do not fit type and shape."""
        try:
            data = base64.b64decode(self.data or "", validate=True)
        except (binascii.Error, ValueError) as error:
            raise InvalidModelError(f"a constant is broken: {error}") from error
        if len(data) != self.nbytes:
            raise InvalidModelError(f"a constant has {len(data)} bytes; its shape needs {self.nbytes}")
        return np.frombuffer(data, self.element.newbyteorder("<")).astype(self.element).reshape(self.shape)


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="mutate"):
    """The start of a mutator's changes at the nodes `targets`."""

    mutator: str
    targets: tuple[str, ...]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="choose"):
    """The choice of the candidate at `index`."""

    question: str
    candidates: tuple[bool | Scalar, ...]
    index: Size


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="create"):
    """A new node."""

    type: str
    inputs: tuple[str, ...]
    outputs: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)]
    attributes: Mapping[str, Attribute]
    weights: Mapping[InputIndex, Weight]


class Delete(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="delete"):
    """The deletion of a node without consumers."""

    node: str


class Connect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="connect"):
    """A new source for input `place` of a node."""

    source: str
    node: str
    place: InputIndex


class Return(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="return"):
    """A new source for a graph output."""

    source: str
    output: str


class Replace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="do", tag="replace"):
    """A new operator, inputs, attributes or weights for a node."""

    node: str
    type: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute | None]
    weights: Mapping[InputIndex, Weight]


Primitive = Create | Delete | Connect | Return | Replace
Entry = Instance | Choice | Primitive


@dataclass(frozen=True)
class Record:
    """The changes that made a variant from its base model.

    Attributes:
        name: of the base model.
        base: its digest.
        entries: choices and changes in order.
        seeded: new weights with values from their names and the base's digest.
        sliced: new weights cut from weights of the base, by name.

    Raises:
        InvalidModelError: there are more than `MAX_ENTRIES`, or an index has no candidate.
    """

    name: str
    base: str
    entries: tuple[Entry, ...]
    seeded: tuple[str, ...] = ()
    sliced: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.entries) > MAX_ENTRIES:
            raise InvalidModelError(f"a mutation record can have {MAX_ENTRIES:,} entries, not {len(self.entries):,}")
        for entry in self.entries:
            if isinstance(entry, Choice) and entry.index >= len(entry.candidates):
                raise InvalidModelError(
                    f"not a mutation record: {entry.question[:80]!r} chooses none of its candidates"
                )

    @property
    def primitives(self) -> tuple[Primitive, ...]:
        """The changes of the graph."""
        return tuple(entry for entry in self.entries if not isinstance(entry, Instance | Choice))

    @property
    def choices(self) -> dict[str, Scalar]:
        """The chosen candidates by question."""
        return {each.question: each.candidates[each.index] for each in self.entries if isinstance(each, Choice)}

    def to_json(self) -> str:
        """The record as text for `from_json`."""
        return msgspec.json.encode(_RecordFile(_FORMAT, VERSION, self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Read a record.

        Raises:
            InvalidModelError: the text is not a record, or has an unknown version.
        """
        if len(text) > _MAX_LENGTH:
            raise InvalidModelError(f"a mutation record of {len(text):,} characters is too long")
        try:
            head = msgspec.json.decode(text, type=_Head)
            if head.format != _FORMAT:
                raise InvalidModelError(f"not a mutation record: its format is {head.format[:40]!r}, not {_FORMAT!r}")
            if head.version != VERSION:
                raise InvalidModelError(
                    f"the mutation record has version {head.version}; this iosched reads version {VERSION}"
                )
            return msgspec.json.decode(text, type=_RecordFile).record
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidModelError(f"not a mutation record: {error}") from error


class _Head(msgspec.Struct):
    format: str
    version: int


class _RecordFile(msgspec.Struct):
    format: str
    version: int
    record: Record


prepare(_Head, _RecordFile)


def record_of(proto: onnx.ModelProto) -> Record | None:
    """The record in a model's metadata; None if there is no valid one."""
    text = metadata_of(proto, MUTATION_KEY)
    try:
        return None if text is None else Record.from_json(text)
    except InvalidModelError:
        return None


_INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]
_KINDS = ["FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "BOOL", *_INTEGERS]
_TYPES = [np.dtype(tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind))) for kind in _KINDS]
_DTYPES = {dtype.name: dtype for dtype in _TYPES}
