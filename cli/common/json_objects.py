"""Results as JSON objects, by a mapping of keys to attributes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from typing import Any

CHECK = "max_abs max_rel passed first_difference"
"""Keys of a comparison of outputs."""


def json_object(source: object, keys: str, **more: object) -> dict[str, object]:
    """JSON object with the attributes of `source`. Scripts rely on its keys.

    Args:
        source: the object.
        keys: `key` or `key=attribute` each. `outer.key` nests. Dots in an attribute lead through attributes and
            mappings; the value is None if one of them is None or missing.
        more: values for `keys`; they override attributes.
    """
    found: dict[str, Any] = {}
    for word in keys.split():
        key, _, attribute = word.partition("=")
        *outer, last = key.split(".")
        inside = found
        for name in outer:
            inside = inside.setdefault(name, {})
        attribute = attribute or last
        inside[last] = more[attribute] if attribute in more else _reached(source, attribute)
    return found


def _reached(source: object, path: str) -> object:
    for name in path.split("."):
        if source is not None:
            source = source.get(name) if isinstance(source, Mapping) else getattr(source, name)
    return source


def json_value(value: object) -> object:
    """A value that JSON can hold: dataclasses become objects, infinity and NaN null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, PathLike):
        return str(value)
    if is_dataclass(value):
        return {field.name.removeprefix("is_"): json_value(getattr(value, field.name)) for field in fields(value)}
    return value
