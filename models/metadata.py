"""Metadata of models and nodes: strings by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import onnx

T = TypeVar("T")

METADATA_PREFIX = "io.iosched."
"""The prefix of iosched's metadata keys."""

SCHEDULE_KEY = "io.iosched.schedule"
"""Model metadata: the schedule of an optimized model."""

SCHEDULES_KEY = "io.iosched.schedules"
"""Model metadata: the schedules of a model with a dynamic batch."""


def metadata_of(proto: onnx.ModelProto, key: str) -> str | None:
    """The metadata of a model under `key`, or None."""
    return next((item.value for item in proto.metadata_props if item.key == key), None)


def decoded(text: str | msgspec.Raw, kind: type[T]) -> T | None:
    """JSON metadata as a value of type `kind`; None if it is not valid."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def write_metadata(
    message: onnx.ModelProto | onnx.NodeProto, new: Mapping[str, str], *, drops: Callable[[str], bool] | None = None
) -> None:
    """Append `new` to the metadata of a model or node, replacing equal keys and those that `drops` selects."""
    present = [(item.key, item.value) for item in message.metadata_props]
    kept = [(key, value) for key, value in present if key not in new and not (drops and drops(key))]
    del message.metadata_props[:]
    for key, value in (*kept, *new.items()):
        message.metadata_props.add(key=key, value=value)


def is_ours(key: str) -> bool:
    """Whether iosched writes this key."""
    return key.startswith(METADATA_PREFIX)
