"""The text of schedule files: JSON that is the same for the same content, and is read strictly."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from iosched.models.errors import InvalidScheduleError

FORMAT = "iosched.schedule"
VERSION = 1
BATCHES_VERSION = 2
"""Of files with schedules for several batch sizes (`batch_schedules.py`), each of which is one of version 1."""

_MAX_NCHARS = 64 << 20
_MAX_NUMBER = 1e18  # more is no count, size or latency, and slow to convert

S = TypeVar("S", bound=Struct)


def file_text(file: Struct) -> str:
    """Deterministic JSON: sorted keys, one trailing newline.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    content = _plain(file)
    return json.dumps(content, default=_plain, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _plain(entry: Any) -> dict[str, object]:
    found = msgspec.structs.asdict(entry) if isinstance(entry, Struct) else asdict(entry)
    return {key: value for key, value in found.items() if value is not UNSET}


def version_of(content: object) -> int:
    """The version of a schedule file, of those that are known: 1, or 2 for several batch sizes.

    Raises:
        InvalidScheduleError: it is no schedule file, or of a newer version.
    """
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InvalidScheduleError(f'not a schedule: no "format": "{FORMAT}" at its top')
    version = content.get("version")
    if version not in (VERSION, BATCHES_VERSION) or isinstance(version, bool):
        raise InvalidScheduleError(
            f"schedule version {ascii(version)[:20]} is not known here ({VERSION} and {BATCHES_VERSION} are); "
            "upgrade iosched"
        )
    return int(version)


def converted(content: object, kind: type[S]) -> S:
    """A part of a schedule file as what it is said to be.

    Raises:
        InvalidScheduleError: it is broken; says where.
    """
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        shown = str(error).encode("unicode_escape").decode()  # what a stranger wrote may hold anything
        raise broken(shown if len(shown) <= 160 else f"{shown[:80]}…{shown[-80:]}") from None


def broken(what: str) -> InvalidScheduleError:
    """The error of a file that has the right form but not the right content: what is wrong where, and the way out."""
    return InvalidScheduleError(f"broken schedule: {what}; make it anew with 'iosched optimize'")


def parsed(text: str | bytes) -> object:
    """The JSON of a schedule file, in which no key stands twice and all numbers are finite.

    Raises:
        InvalidScheduleError: it is no JSON, or too large.
    """
    if len(text) > _MAX_NCHARS:
        raise InvalidScheduleError(f"not a schedule: larger than {_MAX_NCHARS >> 20} MiB")
    try:
        content = json.loads(
            text, object_pairs_hook=_unique, parse_int=_number, parse_float=_number, parse_constant=_number
        )
        json.dumps(content, ensure_ascii=False).encode()  # half a surrogate pair is no text, and raises here
    except RecursionError:
        raise InvalidScheduleError("not a schedule: nested too deeply") from None
    except ValueError as error:
        raise InvalidScheduleError(f"not a schedule: no JSON ({error})") from None
    return content


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:60]!r} stands twice in one object")
        found[key] = value
    return found


def _number(digits: str) -> int | float:
    """Refuses NaN and infinity too, which are greater than no number."""
    if not abs(float(digits)) < _MAX_NUMBER:
        raise ValueError(f"{digits[:20]} is too large, or no number")
    return float(digits) if digits.strip("-0123456789") else int(digits)
