"""Damages files as attackers and disks do: arbitrary bytes, fields of protobuf, values of JSON, rows of SQLite.

Everything is drawn from the given `random.Random`, so the number of a case reproduces it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf.message import Message

WHOLE_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 1024, 65536, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 0.5)
TEXTS = (
    *("", "a", "../x", "../../etc/passwd", "/etc/passwd", "..", ".", "-", "a\x00b", "\x1b[31m", "x" * 5000),
    *("\u202e", "y\n", "Relu", "Conv", "Loop", "com.microsoft", "weights.bin", "{", '{"format": "iosched.schedule"}'),
)


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """`data` with one to eight of its places flipped, overwritten, cut out, doubled, moved or cut off."""
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 8))):
        random.choice(_BYTE_EDITS)(changed, random)
    return bytes(changed)


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _overwrite(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    pieces = (b"\x00", b"\xff", b"\x80\x80\x80\x80\x10", random.randbytes(4))
    data[at : at + random.randint(1, 8)] = random.choice(pieces)


def _cut_out(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    del data[at : at + random.randint(1, 64)]


def _double(data: bytearray, random: Random) -> None:
    at = random.randrange(len(data) + 1)
    data[at:at] = data[at : at + random.randint(1, 256)] * random.randint(1, 3)


def _move(data: bytearray, random: Random) -> None:
    at, to = random.randrange(len(data) + 1), random.randrange(len(data) + 1)
    piece = data[at : at + random.randint(1, 256)]
    del data[at : at + len(piece)]
    data[to:to] = piece


def _cut_off(data: bytearray, random: Random) -> None:
    if random.random() < 0.3:  # otherwise most files would only be truncated
        del data[random.randrange(len(data) + 1) :]
    else:
        _flip(data, random)


_BYTE_EDITS: tuple[Callable[[bytearray, Random], None], ...] = (
    *(_flip, _flip, _flip, _flip, _overwrite, _overwrite, _cut_out, _double, _move, _cut_off),
)


def damage_fields(message: Message, random: Random) -> None:
    """Changes one to four fields anywhere in a message."""
    for _ in range(random.choice((1, 1, 2, 4))):
        everywhere = list(_within(message))
        _damage_field(random.choice(everywhere), everywhere, random)


def _within(message: Message) -> Iterator[Message]:
    yield message
    for _, value in message.ListFields():
        if isinstance(value, Message):
            yield from _within(value)
        elif not isinstance(value, (str, bytes, int, float)):
            yield from (inner for item in value if isinstance(item, Message) for inner in _within(item))


def _damage_field(message: Message, everywhere: list[Message], random: Random) -> None:
    listed = [field.name for field, _ in message.ListFields()]
    every = [field.name for field in message.DESCRIPTOR.fields]
    name = random.choice(listed if listed and random.random() < 0.85 else every)
    value = getattr(message, name)
    try:
        if isinstance(value, Message):
            _damage_message(message, name, value, everywhere, random)
        elif isinstance(value, (str, bytes, int, float)):
            setattr(message, name, _other(value, random, _texts_of(everywhere, random)))
        else:
            _damage_list(value, everywhere, random)
    except (ValueError, TypeError):  # a number that does not fit the field's type
        message.ClearField(name)


def _damage_message(message: Message, name: str, value: Message, everywhere: list[Message], random: Random) -> None:
    alike = [each for each in everywhere if each.DESCRIPTOR is value.DESCRIPTOR]
    if alike and random.random() < 0.6:
        value.CopyFrom(type(value).FromString(random.choice(alike).SerializeToString()))
    else:
        message.ClearField(name)


def _damage_list(values: Any, everywhere: list[Message], random: Random) -> None:
    if not values:
        if hasattr(values, "add"):
            values.add()
        else:
            values.append(random.choice(WHOLE_NUMBERS))
        return
    at, other = random.randrange(len(values)), random.randrange(len(values))
    edit = random.choice(("drop", "double", "change", "change", "clear" if len(values) < 3 else "drop", "swap"))
    if edit == "drop":
        del values[at]
    elif edit == "clear":
        del values[:]
    elif edit == "double":
        values.append(values[at])
    elif isinstance(values[at], Message):
        values[at].CopyFrom(type(values[at]).FromString(values[other].SerializeToString()))
    elif edit == "swap":
        values[at], values[other] = values[other], values[at]
    else:
        values[at] = _other(values[at], random, _texts_of(everywhere, random))


def _texts_of(everywhere: list[Message], random: Random) -> list[str]:
    chosen = random.sample(everywhere, min(len(everywhere), 12))
    return [value for each in chosen for _, value in each.ListFields() if isinstance(value, str)]


def _other(value: Any, random: Random, texts: list[str]) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((random.choice(WHOLE_NUMBERS), value + 1, value - 1, value * 2, random.randrange(20)))
    if isinstance(value, float):
        return random.choice((*FLOATS, value * 3))
    if isinstance(value, bytes):
        return damaged_bytes(value, random)
    return random.choice(texts) if texts and random.random() < 0.6 else random.choice((*TEXTS, value + "_"))


def damaged_json(text: str, random: Random) -> str:
    """JSON with one to four values anywhere in it changed, dropped, doubled, swapped or buried."""
    content = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 4))):
        holders = list(_holders(content))
        if holders:
            _damage_holder(random.choice(holders), random)
    return json.dumps(content, ensure_ascii=random.random() < 0.5)


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, (dict, list)):
        if value:
            yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _holders(item)


def _damage_holder(holder: Any, random: Random) -> None:
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    key, other = random.choice(keys), random.choice(keys)
    edit = random.choice(("change", "change", "change", "drop", "swap", "strange", "double"))
    if edit == "drop":
        del holder[key]
    elif edit == "swap":
        holder[key], holder[other] = holder[other], holder[key]
    elif edit == "double" and isinstance(holder, list):
        holder.insert(random.randrange(len(holder) + 1), holder[key])
    elif edit == "change" and not isinstance(holder[key], (dict, list, type(None))):
        holder[key] = _other(holder[key], random, [value for value in (holder[other],) if isinstance(value, str)])
    else:
        holder[key] = random.choice((None, {}, [], "", 0, -1, 1.5, 2**63, 1e300, True, [[[[[]]]]], {"a": {"b": []}}))


def damage_sqlite(path: Path, random: Random) -> None:
    """Changes a value, a row, a column or a table of an SQLite file, by SQL."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("PRAGMA writable_schema = ON")
        for _ in range(random.choice((1, 1, 2))):
            try:
                connection.execute(*_damaging(connection, random))
            except sqlite3.Error:
                connection.execute(f"PRAGMA user_version = {random.choice((0, 1, 5, 99, -1))}")


def _damaging(connection: sqlite3.Connection, random: Random) -> tuple[str, tuple[object, ...]]:
    listed = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    tables = [name for (name,) in listed]
    filled = [name for name in tables if connection.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone()]
    table = random.choice(filled or tables)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = random.choice(columns)
    values = (
        None, 0, -1, 2**62, 1e300, "", "x", "NaN", b"", b"\x00" * 8, random.randbytes(8), b"\xff" * 16, "9999-99-99",
    )  # fmt: skip
    if random.random() < 0.75:
        return f"UPDATE {table} SET {column} = ?", (random.choice(values),)
    damages = (
        f"DROP TABLE {table}", f"DELETE FROM {table}", f"ALTER TABLE {table} DROP COLUMN {column}",
        f"ALTER TABLE {table} ADD COLUMN more TEXT", f"CREATE VIEW other AS SELECT * FROM {table}",
        "PRAGMA application_id = 1",
    )  # fmt: skip
    return random.choice(damages), ()
