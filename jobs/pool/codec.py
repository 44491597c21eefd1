"""Values of the house as JSON and back, exactly: what is read is equal to what was written.

msgspec turns frozen dataclasses and structs into JSON by their annotations and checks them when they are read. JSON has
no infinity and no NaN, and msgspec writes null for both, which may mean something else where it is read. Here such a
number is an object with the one key `NUMBER`, as {"$number": "inf"}.
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
"""Bytes of a text at most. The longest are results with the samples of whole models: some megabytes."""

_SHOWN = 200
_NO_JSON_HAS = {text: float(text) for text in ("inf", "-inf", "nan")}


def written(value: object) -> bytes:
    """The value as JSON.

    Raises:
        TypeError: it is of a kind that does not travel, as a path, which means something on one machine alone.
        ValueError: a mapping in it has the key `NUMBER`.
    """
    return msgspec.json.encode(_replaced(msgspec.to_builtins(value), _marked))


def read(text: bytes, kind: type[T]) -> T:
    """The value of this kind in a text of `written`, which may be a stranger's.

    Raises:
        ExecutionError: it is none; says where.
    """
    try:
        if len(text) > LONGEST:
            raise ValueError(f"it is longer than {LONGEST:,} bytes")
        return taken(msgspec.json.decode(text), kind, is_marked=True)
    except (ValueError, RecursionError, OverflowError) as error:  # of msgspec too
        raise broken(error) from error


def taken(plain: object, kind: type[T], *, is_marked: bool = False) -> T:
    """The value of this kind that stands in plain dictionaries and lists, as `read` finds them for `Any`.

    Args:
        is_marked: whether infinities are still as `written` writes them.

    Raises:
        msgspec.ValidationError: it is none; says where. A `ValueError`.
        ValueError: a mark of a number is none.
    """
    prepare(kind)
    return msgspec.convert(_replaced(plain, _unmarked) if is_marked else plain, kind)


def read_as(plain: object, kind: type[T]) -> T:
    """The value of this kind in plain data, which may be a stranger's.

    Raises:
        ExecutionError: it is none; says where.
    """
    try:
        return taken(plain, kind)
    except ValueError as error:
        raise broken(error) from error


def broken(error: Exception) -> ExecutionError:
    """An error that says of a message that it cannot be read."""
    said = " ".join(str(error).split())[:_SHOWN]
    return ExecutionError(f"a message between this process and a worker is broken: {said}")


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """Plain data with each number and each mapping, innermost first, replaced by what `change` makes of it."""
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
    if len(value) > 1 or not isinstance(text, str) or text not in _NO_JSON_HAS:
        raise ValueError(f"{NUMBER!r} marks what is no number that JSON does not have")
    return _NO_JSON_HAS[text]
