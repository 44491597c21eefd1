"""Strict reading of schedule files: every function checks one kind of value and names the place where it is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from iosched.models.errors import InvalidScheduleError
from iosched.scheduler.schedule import Block, Stage, Strategy

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"

STRATEGIES = ("sequential", "greedy", "concurrent", "merge", "both", "dos")
_HEX = frozenset("0123456789abcdef")
_MAX_DIGITS = 18  # of an integer; more is no count, shape or limit, and slow to convert


@dataclass(frozen=True)
class Entry:
    """An object of the file and where it stands: `blocks[0].stages[2]`."""

    content: Mapping[str, JsonValue]
    place: str = ""

    def at(self, key: str) -> str:
        """The place of a member."""
        return f"{self.place}.{key}" if self.place else key


def parse(source: str | bytes) -> Entry:
    """The top-level object.

    Raises:
        InvalidScheduleError: it is no JSON object, nested too deeply, has NaN, or one key twice.
    """
    try:
        content = json.loads(
            source,
            object_pairs_hook=_unique,
            parse_constant=_refuse_constant,
            parse_int=_short_int,
            parse_float=_finite,
        )
    except RecursionError:
        raise InvalidScheduleError("not a schedule: nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidScheduleError(f"not a schedule: no JSON ({error})") from None
    if not isinstance(content, dict):
        raise InvalidScheduleError("not a schedule: the file holds no JSON object")
    return Entry(content)


def _unique(pairs: Sequence[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise InvalidScheduleError(f"broken schedule: key {twice[:80]!r} stands twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidScheduleError(f"broken schedule: {name} is no number")


def _short_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise InvalidScheduleError(f"broken schedule: number {digits[:20]}… is too large")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidScheduleError(f"broken schedule: number {digits[:20]} is too large")
    return value


def _wrong(place: str, wanted: str, value: JsonValue) -> NoReturn:
    shown = json.dumps(value, ensure_ascii=True)
    raise InvalidScheduleError(f"broken schedule: {place} must be {wanted}, not {shown[:60]}")


def _member(entry: Entry, key: str) -> JsonValue:
    if key not in entry.content:
        raise InvalidScheduleError(f"broken schedule: {entry.at(key)} is missing")
    return entry.content[key]


def mapping(entry: Entry, key: str) -> Entry:
    """The object at `key`."""
    value = _member(entry, key)
    if not isinstance(value, dict):
        _wrong(entry.at(key), "an object", value)
    return Entry(value, entry.at(key))


def mappings(entry: Entry, key: str) -> list[Entry]:
    """The list of objects at `key`."""
    found = []
    for index, value in enumerate(_sequence(entry, key)):
        place = f"{entry.at(key)}[{index}]"
        if not isinstance(value, dict):
            _wrong(place, "an object", value)
        found.append(Entry(value, place))
    return found


def _sequence(entry: Entry, key: str) -> list[JsonValue]:
    value = _member(entry, key)
    if not isinstance(value, list):
        _wrong(entry.at(key), "a list", value)
    return value


def integers(entry: Entry, key: str) -> list[int]:
    """The list of integers at `key`, none of them negative."""
    values = _sequence(entry, key)
    found = [value for value in values if isinstance(value, int) and not isinstance(value, bool) and value >= 0]
    if len(found) != len(values):
        _wrong(entry.at(key), "a list of whole numbers", values)
    return found


def strings(entry: Entry, key: str) -> list[str]:
    """The list of strings at `key`."""
    values = _sequence(entry, key)
    found = [value for value in values if isinstance(value, str)]
    if len(found) != len(values):
        _wrong(entry.at(key), "a list of strings", values)
    return found


def text(entry: Entry, key: str) -> str:
    """The string at `key`."""
    value = _member(entry, key)
    if not isinstance(value, str):
        _wrong(entry.at(key), "a string", value)
    return value


def texts(entry: Entry, key: str) -> dict[str, str]:
    """The object of strings at `key`."""
    inner = mapping(entry, key)
    return {name: text(inner, name) for name in inner.content}


def digest(entry: Entry, key: str) -> str:
    """The SHA-256 at `key`: 64 lower-case hexadecimal digits."""
    value = text(entry, key)
    if len(value) != 64 or not _HEX.issuperset(value):
        _wrong(entry.at(key), "64 hexadecimal digits", value)
    return value


def choice(entry: Entry, key: str, options: Sequence[str]) -> str:
    """The string at `key`, one of `options`."""
    value = text(entry, key)
    if value not in options:
        _wrong(entry.at(key), "one of " + ", ".join(options), value)
    return value


def integer(entry: Entry, key: str) -> int:
    """The integer at `key`, not negative."""
    value = _member(entry, key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        _wrong(entry.at(key), "a whole number", value)
    return value


def limit(entry: Entry, key: str) -> int | None:
    """The pruning limit at `key`: at least 1, or null."""
    if _member(entry, key) is None:
        return None
    value = integer(entry, key)
    if value < 1:
        _wrong(entry.at(key), "at least 1 or null", value)
    return value


def flag(entry: Entry, key: str) -> bool:
    """The truth value at `key`."""
    value = _member(entry, key)
    if not isinstance(value, bool):
        _wrong(entry.at(key), "true or false", value)
    return value


def latency(entry: Entry, key: str) -> float | None:
    """The latency at `key`: a number that is not negative, or null."""
    value = _member(entry, key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        _wrong(entry.at(key), "a latency in microseconds or null", value)
    return float(value)


def latencies(entry: Entry, key: str) -> dict[str, float | None]:
    """The object of latencies at `key`."""
    inner = mapping(entry, key)
    return {name: latency(inner, name) for name in inner.content}


def free_form(entry: Entry, key: str) -> dict[str, JsonValue]:
    """The object at `key`, as it is."""
    return dict(mapping(entry, key).content)


def device(entry: Entry) -> dict[str, str]:
    """The device: strings, among them its kind and name."""
    found = texts(entry, "device")
    for key in ("kind", "name"):
        if key not in found:
            raise InvalidScheduleError(f"broken schedule: device.{key} is missing")
    return found


def shapes(entry: Entry, key: str) -> dict[str, tuple[int, ...]]:
    """The object of shapes at `key`."""
    inner = mapping(entry, key)
    return {name: _shape(inner, name) for name in inner.content}


def _shape(entry: Entry, key: str) -> tuple[int, ...]:
    sizes = _sequence(entry, key)
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            _wrong(entry.at(key), "a list of sizes", sizes)
    return tuple(size for size in sizes if isinstance(size, int))


def blocks(entry: Entry) -> tuple[Block, ...]:
    """The blocks of a schedule; each is numbered by its place and no operator stands in two stages."""
    found = []
    for position, inner in enumerate(mappings(entry, "blocks")):
        if integer(inner, "index") != position:
            _wrong(inner.at("index"), str(position), inner.content["index"])
        stages = tuple(_stage(stage) for stage in mappings(inner, "stages"))
        if not stages:
            raise InvalidScheduleError(f"broken schedule: {inner.at('stages')} is empty")
        found.append(Block(position, stages, flag(inner, "optimal")))
    _refuse_twice(name for block in found for stage in block.stages for name in stage.operators)
    return tuple(found)


def _stage(entry: Entry) -> Stage:
    strategy = Strategy(choice(entry, "strategy", [strategy.value for strategy in Strategy]))
    groups = tuple(_group(entry, index, value) for index, value in enumerate(_sequence(entry, "groups")))
    if not groups:
        raise InvalidScheduleError(f"broken schedule: {entry.at('groups')} is empty")
    if strategy is Strategy.MERGE and (len(groups) < 2 or any(len(group) > 1 for group in groups)):
        raise InvalidScheduleError(
            f"broken schedule: {entry.at('groups')} of a merge stage must be two or more single operators"
        )
    known = mapping(entry, "latency_us")
    return Stage(strategy, groups, latency(known, "predicted"), latency(known, "measured"))


def _group(entry: Entry, index: int, value: JsonValue) -> tuple[str, ...]:
    names = value if isinstance(value, list) else []
    found = tuple(name for name in names if isinstance(name, str))
    if not found or len(found) != len(names):
        _wrong(f"{entry.at('groups')}[{index}]", "a list of operator names", value)
    return found


def _refuse_twice(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidScheduleError(f"broken schedule: operator {name[:80]!r} stands twice")
        seen.add(name)
