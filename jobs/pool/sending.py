"""Serializes a model to the bytes of one ONNX file and restores it on another machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from onnx import TensorProto

from iosched.jobs.pool.messages import SentModel
from iosched.models.errors import InvalidModelError, UsageError
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.source import read_proto


def packed(model: Model) -> tuple[SentModel, bytes]:
    """Returns the model's description and the bytes of its ONNX file: the original file if it is self-contained.

    Raises:
        UsageError: the weights are too large for one file.
        InvalidModelError: the original file no longer exists.
    """
    data = _original(model) or write_model(model.proto, model.weights, None) or b""
    shapes = {name: tuple(shape) for name, shape in model.bindings.items()}
    digests = (sha256(data).hexdigest(), model.digest, model.structure.digest)
    return SentModel(*digests, model.name, model.batch_size, shapes), data


def _original(model: Model) -> bytes | None:
    """Returns the bytes of the original file; None without one, or if its weights are external."""
    if not isinstance(model.original, Path):
        return model.original
    weights = read_proto(model.original).graph.initializer
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in weights):
        return None
    return model.original.read_bytes()


def checked(sent: SentModel, data: bytes) -> bytes:
    """Returns the bytes of a model's file.

    Raises:
        InvalidModelError: they are those of another file.
    """
    if sha256(data).hexdigest() != sent.file:
        raise InvalidModelError(f"the file of {sent.name!r} was changed on its way, or since it was read: start again")
    return data


def unpacked(sent: SentModel, data: bytes) -> Model:
    """Restores a model and checks that its digests match the driver's. Never reads external weights.

    Raises:
        InvalidModelError: the bytes are not a model, or belong to another model.
    """
    checked(sent, data)
    for binding in _bindings(sent):
        try:
            model = load_model(data, name=sent.name, **binding)
        except (UsageError, InvalidModelError):
            continue
        if model.digest == sent.sha256 and model.structure.digest == sent.structure:
            return model
    load_model(data, name=sent.name)  # raises the specific error if the file is unreadable
    raise InvalidModelError(
        f"the file of {sent.name!r} is read as another model here (sha256 {sent.sha256[:12]}… was sent): "
        "install the same iosched and onnx on all machines"
    )


def _bindings(sent: SentModel) -> Iterator[Mapping[str, Any]]:
    """Yields candidate bindings of the dynamic dimensions, which the file does not record."""
    yield {}
    yield {"input_shapes": sent.inputs}
    yield {"batch_size": sent.batch_size}
