"""The entry of an exported ONNX file that names its plan file.

It is the last bytes of the file, so that it is read without parsing the model.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import onnx
from google.protobuf.message import DecodeError

PLAN_KEY = "io.iosched.plan"
"""Model metadata: the plan file next to the model, and the checksum of its head."""

_TAIL_NBYTES = 1024


@dataclass(frozen=True)
class PlanEntry:
    """The reference to its plan in an exported model.

    Attributes:
        file: the plan's name in the model's folder.
        checksum: of the plan's head.
    """

    file: str
    checksum: int

    @property
    def value(self) -> str:
        """The metadata's value."""
        return f"{self.file} {self.checksum:016x}"

    def encoded(self) -> bytes:
        """The entry as protobuf: appended to a model, it is one of its metadata."""
        return _encoded(self.value)

    @classmethod
    def parsed(cls, value: str) -> Self | None:
        """The entry of this value; None unless it is a bare file name and a checksum."""
        file, _, checksum = value.rpartition(" ")
        with suppress(ValueError):
            if file.endswith(".plan") and file == Path(file).name and "\\" not in file and len(checksum) == 16:
                return cls(file, int(checksum, 16))
        return None


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX file that `iosched export` wrote.

    Attributes:
        model_nbytes: size of the model in it without the entry.
    """

    path: Path
    entry: PlanEntry
    model_nbytes: int

    @classmethod
    def at(cls, path: Path) -> Self | None:
        """The exported model in this file; None if the file is not one, or cannot be read."""
        try:
            with path.open("rb") as file:
                nbytes = file.seek(0, 2)
                file.seek(max(nbytes - _TAIL_NBYTES, 0))
                tail = file.read()
        except OSError:
            return None
        begin = tail.rfind(b"\n" + bytes([len(PLAN_KEY)]) + PLAN_KEY.encode())
        for start in (begin - 2, begin - 3):  # a tag and a length of one or two bytes come before it
            if start >= 0 and (entry := _entry_in(tail[start:])) is not None:
                return cls(path, entry, nbytes - len(tail) + start)
        return None

    @property
    def plan(self) -> Path:
        """The plan file."""
        return self.path.with_name(self.entry.file)

    def sha256(self) -> str:
        """Of the model without its entry, and of its external data; raises an OSError if they cannot be read."""
        return model_sha256(self.path, self.model_nbytes)


def model_sha256(path: Path, model_nbytes: int) -> str:
    """SHA-256 of the first bytes of an ONNX file, then of NAME.data, where `write_model` puts large weights."""
    found = hashlib.sha256()
    data = path.with_name(f"{path.name}.data")
    for file, nbytes in ((path, model_nbytes), (data, None)):
        if nbytes is None and not file.exists():
            continue
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            found.update(memoryview(mapped)[:nbytes])
    return found.hexdigest()


def exported_models(folder: Path) -> Iterator[ExportedModel]:
    """The exported models in a folder."""
    for path in sorted(folder.glob("*.onnx")):
        if (found := ExportedModel.at(path)) is not None:
            yield found


def _entry_in(encoded: bytes) -> PlanEntry | None:
    try:
        proto = onnx.ModelProto.FromString(encoded)
    except DecodeError:
        return None
    if [item.key for item in proto.metadata_props] != [PLAN_KEY]:
        return None
    value = proto.metadata_props[0].value
    return PlanEntry.parsed(value) if _encoded(value) == encoded else None


def _encoded(value: str) -> bytes:
    item = onnx.StringStringEntryProto(key=PLAN_KEY, value=value)
    return bytes(onnx.ModelProto(metadata_props=[item]).SerializeToString())
