"""Differences in machine, versions, seeds and load between two results, by their `provenance`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_LONGEST = 60
_MOST = 6
_SHORT_COMMIT = 10


def unlike_places(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    """Ends of sentences that begin with "the two are"; none if all is equal or unknown.

    Args:
        one: the `provenance` of an untrusted file; empty in files of versions without it.
        other: that of the other file.
    """
    for key, words in (
        ("machine", "from different machines"),
        ("versions", "from different versions"),
        ("seeds", "from different seeds"),
    ):
        before, after = one.get(key), other.get(key)
        if not isinstance(before, dict) or not isinstance(after, dict):
            continue
        found = list(_changes(_flat(before), _flat(after)))
        if found:
            more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
            yield f"{words} ({'; '.join(found[:_MOST])}{more})"
    loads = [str(each.get("background_load", 0))[:_LONGEST] for each in (one, other)]
    if loads[0] != loads[1]:
        yield f"measured under different background loads ({' and '.join(loads)})"


def _flat(values: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value)
        else:
            found[str(key)] = _text(str(key), value)
    return found


def _text(key: str, value: object) -> str:
    if key == "cores" and isinstance(value, list):
        return str(len(value))
    text = str(value)
    return text[: _SHORT_COMMIT if key == "commit" else _LONGEST]


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in dict.fromkeys((*before, *after)):
        one, other = before.get(key, "none"), after.get(key, "none")
        if one != other:
            yield f"{key[:_LONGEST]} {one} and {other}"
