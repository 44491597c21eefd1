"""A model on its way: the bytes of an ONNX file, and the same model read from them on another machine."""

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
    """The model as it is sent: the file that it was read from, where it stands in one, else the one it would be.

    Raises:
        UsageError: its weights are too large for one file.
        InvalidModelError: the file that it was read from is gone.
    """
    data = _original(model) or write_model(model.proto, model.weights, None) or b""
    shapes = {name: tuple(shape) for name, shape in model.bindings.items()}
    digests = (sha256(data).hexdigest(), model.digest, model.structure.digest)
    return SentModel(*digests, model.name, model.batch_size, shapes), data


def _original(model: Model) -> bytes | None:
    """The file that a model was read from; None where it has none, or its weights stand outside of it."""
    if not isinstance(model.original, Path):
        return model.original
    weights = read_proto(model.original).graph.initializer
    if any(tensor.data_location == TensorProto.EXTERNAL for tensor in weights):
        return None
    return model.original.read_bytes()


def unpacked(sent: SentModel, data: bytes) -> Model:
    """The model that was sent, and no other: its digests are those that it had where it came from.

    Weights outside of the file are never looked for.

    Raises:
        InvalidModelError: the bytes are no model, or another one.
    """
    if sha256(data).hexdigest() != sent.file:
        raise InvalidModelError(f"the file of {sent.name!r} was changed on its way, or since it was read: start again")
    for how in _ways(sent):
        try:
            model = load_model(data, name=sent.name, **how)
        except (UsageError, InvalidModelError):
            continue
        if model.digest == sent.sha256 and model.structure.digest == sent.structure:
            return model
    load_model(data, name=sent.name)  # says what is wrong, where it cannot be read at all
    raise InvalidModelError(
        f"the file of {sent.name!r} is read as another model here (sha256 {sent.sha256[:12]}… was sent): "
        "install the same iosched and onnx on all machines"
    )


def _ways(sent: SentModel) -> Iterator[Mapping[str, Any]]:
    """How dynamic dimensions may have been bound where the model comes from; the file alone does not say it."""
    yield {}
    yield {"input_shapes": sent.inputs}
    yield {"batch_size": sent.batch_size}
