"""Metadata of models and nodes: text by keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
import onnx

T = TypeVar("T")

METADATA_PREFIX = "io.iosched."
"""The keys of all metadata that iosched writes begin with this."""

SCHEDULE_KEY = "io.iosched.schedule"
"""Model metadata under which an optimized model carries its schedule."""

SCHEDULES_KEY = "io.iosched.schedules"
"""Model metadata under which a model whose batch is dynamic carries its schedules for several batch sizes."""


def metadata_of(proto: onnx.ModelProto, key: str) -> str | None:
    """The metadata of a model under `key`, or None."""
    return next((item.value for item in proto.metadata_props if item.key == key), None)


def decoded(text: str | msgspec.Raw, kind: type[T]) -> T | None:
    """What JSON in metadata says; None where it is not of this kind."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def write_metadata(
    message: onnx.ModelProto | onnx.NodeProto, new: Mapping[str, str], *, drops: Callable[[str], bool] | None = None
) -> None:
    """Write `new` behind the metadata that a model or node has, without the keys of `new` and those that it `drops`."""
    present = [(item.key, item.value) for item in message.metadata_props]
    kept = [(key, value) for key, value in present if key not in new and not (drops and drops(key))]
    del message.metadata_props[:]
    for key, value in (*kept, *new.items()):
        message.metadata_props.add(key=key, value=value)


def is_ours(key: str) -> bool:
    """Whether iosched writes what is under `key`."""
    return key.startswith(METADATA_PREFIX)
