"""Parses a model from a path or bytes, and explains why a file is not a runnable model."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from iosched.models.errors import InvalidModelError
from iosched.models.files import MAX_PROTO_NBYTES

StrPath = str | os.PathLike[str]

Source = StrPath | bytes
"""A model: the path of a file, or its bytes."""

MAX_IR_VERSION = min(14, onnx.IR_VERSION)
MAX_OPSET = min(28, onnx.defs.onnx_opset_version())
"""The newest supported opset.

Rules name operators by type. Before raising this number, check each operator that the new opset changes against them;
`tests/models/test_new_opsets.py` lists the checked ones.
"""
MIN_IR_VERSION = 10
"""Node metadata, which holds the schedule of an optimized model, needs this version."""

_OTHER_FORMATS = (
    (b"version https://git-lfs", "it is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`"),
    (b"PK\x03\x04", "it is a zip archive (a PyTorch checkpoint?); export it with torch.onnx.export"),
    (b"\x89HDF", "it is an HDF5 file; convert it with tf2onnx"),
    (b"\x80\x02", "it is a Python pickle; export the model to ONNX"),
    (b"<", "it is a text file (HTML or XML)"),
)


def as_path_or_bytes(source: Source) -> Path | bytes:
    """The path as a `Path`, or the bytes."""
    return source if isinstance(source, bytes) else Path(source)


def read_proto(source: Source) -> onnx.ModelProto:
    """Parse an ONNX model without reading external data.

    Raises:
        InvalidModelError: the file does not exist, is unreadable, or is not a supported ONNX model.
    """
    source = as_path_or_bytes(source)
    data = source if isinstance(source, bytes) else _read_file(source)
    label = describe(source)
    if not data:
        raise InvalidModelError(f"{label} is empty.\nPass an ONNX model.")
    proto = _parse(data, label)
    _check_text(proto, label)
    _check_versions(proto, label)
    if not proto.graph.node:
        raise InvalidModelError(f"{label} has a graph without nodes: there is nothing to run.")
    return proto


def describe(source: Path | bytes) -> str:
    """The source's name in messages."""
    return "the model passed as bytes" if isinstance(source, bytes) else str(source)


def _read_file(path: Path) -> bytes:
    try:
        if "\0" in str(path):
            raise InvalidModelError(f"{str(path)!r} cannot be read: paths cannot contain null characters.")
        if not _is_utf8(str(path)):
            raise InvalidModelError(f"onnxruntime cannot open {str(path)!r}: the path is not UTF-8.\nRename the file.")
        if path.is_dir():
            raise InvalidModelError(f"{path} is a folder.\nPass the path of an ONNX file in it.")
        if not path.exists():
            raise InvalidModelError(f"{path} does not exist.\nCheck the path, or see `iosched zoo list`.")
        if not path.is_file():
            raise InvalidModelError(f"{path} is not a regular file.\nPass the path of an ONNX file, or `-` for stdin.")
        if path.stat().st_size > MAX_PROTO_NBYTES:
            raise InvalidModelError(
                f"{path} is larger than 2 GB, the limit of a protobuf message.\n"
                "Save its weights as external data (onnx.save(..., save_as_external_data=True))."
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidModelError(f"{path} cannot be read: {reason}.") from error


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parse(data: bytes, label: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModelError(f"{label} is not an ONNX model: {_guess(data)}.") from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise InvalidModelError(f"{label} is not an ONNX model: {_guess(data)}.")
    return proto


def _check_text(proto: onnx.ModelProto, label: str) -> None:
    try:
        valid = _names_are_utf8(proto)
    except UnicodeDecodeError:
        valid = False
    if not valid:
        raise InvalidModelError(f"{label} is damaged: it has names that are not UTF-8.\nDownload or export it again.")


def _names_are_utf8(message: Message) -> bool:
    """Whether every name in a message is UTF-8; protobuf does not check."""
    if isinstance(message, onnx.TensorProto):
        # ListFields would copy the tensor's payload.
        fields = [("name", message.name), ("external_data", message.external_data)]
    else:
        fields = [(field.name, value) for field, value in message.ListFields() if _holds_text(field)]
    return all(_is_value_valid(value) for name, value in fields if name != "doc_string")


def _holds_text(field: FieldDescriptor) -> bool:
    return field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)


def _is_value_valid(value: object) -> bool:
    if isinstance(value, str | bytes):
        return isinstance(value, str)
    if isinstance(value, Message):
        return _names_are_utf8(value)
    return all(_is_value_valid(item) for item in value) if isinstance(value, Iterable) else True


def _guess(data: bytes) -> str:
    for magic, meaning in _OTHER_FORMATS:
        if data.lstrip()[: len(magic)] == magic:
            return meaning
    head = data[:512]
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head):
        return "it is a text file"
    return "it is truncated or in another format"


def _check_versions(proto: onnx.ModelProto, label: str) -> None:
    if proto.ir_version > MAX_IR_VERSION:
        raise InvalidModelError(
            f"{label} has IR version {proto.ir_version}; the newest supported one is {MAX_IR_VERSION}.\n"
            f"Export it with ir_version={MAX_IR_VERSION} or lower."
        )
    if not proto.opset_import:
        raise InvalidModelError(f"{label} is not a valid ONNX model: it imports no opset.")
    for imported in proto.opset_import:
        if imported.domain in ("", "ai.onnx") and imported.version < 1:
            raise InvalidModelError(f"{label} is damaged: it imports opset {imported.version}; opsets start at 1.")
        if imported.domain in ("", "ai.onnx") and imported.version > MAX_OPSET:
            raise InvalidModelError(
                f"{label} needs opset {imported.version}; the newest supported one is {MAX_OPSET}.\n"
                f"Convert it, for example with onnx.version_converter.convert_version(model, {MAX_OPSET})."
            )
