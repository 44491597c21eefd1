"""Encodes values as JSON and decodes them without loss.

msgspec converts frozen dataclasses and structs by their annotations and validates them on decoding. JSON has no
infinity and no NaN, and msgspec would write null. This module writes such a number as an object with the single key
`NUMBER`, for example {"$number": "inf"}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from iosched.models.errors import ExecutionError
from iosched.models.prepared import prepare

T = TypeVar("T")

NUMBER = "$number"
LONGEST = 2**28
"""Maximum message size in bytes. The largest messages are results with samples of whole models: a few megabytes."""

_SHOWN = 200
_NON_FINITE = {text: float(text) for text in ("inf", "-inf", "nan")}


def written(value: object) -> bytes:
    """Encodes a value as JSON.

    Raises:
        TypeError: the value contains a type that cannot be sent, such as a path.
        ValueError: a mapping in the value has the key `NUMBER`.
    """
    return msgspec.json.encode(_replaced(msgspec.to_builtins(value), _marked))


def read(text: bytes, kind: type[T]) -> T:
    """Decodes a value that `written` encoded. The text may be untrusted.

    Raises:
        ExecutionError: the text is not a valid `kind`.
    """
    try:
        if len(text) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST:,} bytes")
        plain = _replaced(msgspec.json.decode(text), _unmarked)
    except (ValueError, RecursionError) as error:  # of msgspec too
        raise broken(error) from error
    return read_as(plain, kind)


def read_as(plain: object, kind: type[T]) -> T:
    """Converts untrusted plain dictionaries and lists to a value of type `kind`.

    Raises:
        ExecutionError: the data is not a valid `kind`.
    """
    prepare(kind)
    try:
        return msgspec.convert(plain, kind)
    except (ValueError, RecursionError, OverflowError) as error:
        raise broken(error) from error


def broken(error: Exception) -> ExecutionError:
    """Returns an error for an unreadable message."""
    said = " ".join(str(error).split())[:_SHOWN]
    return ExecutionError(f"a message between this process and a worker is broken: {said}")


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Applies `change` to each number and each mapping in plain data, innermost first."""
    if isinstance(value, dict):
        return change({key: _replaced(item, change) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return [_replaced(item, change) for item in value]
    return change(value) if isinstance(value, float) else value


def _marked(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else {NUMBER: str(value)}
    if NUMBER in value:
        raise ValueError(f"the key {NUMBER!r} stands for a number that JSON does not have")
    return value


def _unmarked(value: Any) -> Any:
    if isinstance(value, float) or NUMBER not in value:
        return value
    text = value[NUMBER]
    if len(value) > 1 or not isinstance(text, str) or text not in _NON_FINITE:
        raise ValueError(f"{NUMBER!r} marks what is no number that JSON does not have")
    return _NON_FINITE[text]
