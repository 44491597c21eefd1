"""Commands and events as lines of JSON: how the driver, the child process and the workers write to each other.

A line is a pair of the name of the command or event and its fields. Messages within are bytes, in base64; nothing is
pickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, cast, get_args

import msgspec

from iosched.jobs.fleet.transport import Command, Event
from iosched.models.prepared import prepare

C = TypeVar("C")

_COMMANDS = {kind.__name__: kind for kind in get_args(Command)}
_EVENTS = {kind.__name__: kind for kind in get_args(Event)}
prepare(*_COMMANDS.values(), *_EVENTS.values())


def encoded(said: object) -> bytes:
    """A command or an event as a line, with its end."""
    return msgspec.json.encode((type(said).__name__, said), enc_hook=_plain) + b"\n"


def command_in(line: bytes) -> Command:
    """The command in a line.

    Raises:
        msgspec.DecodeError: there is none.
    """
    return cast(Command, _decoded(line, _COMMANDS))


def event_in(line: bytes) -> Event:
    """The event in a line.

    Raises:
        msgspec.DecodeError: there is none.
    """
    return cast(Event, _decoded(line, _EVENTS))


def value_in(line: bytes, kind: type[C]) -> C:
    """The dataclass of this one kind in a line.

    Raises:
        msgspec.DecodeError: there is none.
    """
    return cast(C, _decoded(line, {kind.__name__: kind}))


def _decoded(line: bytes, kinds: dict[str, Any]) -> object:
    name, fields = msgspec.json.decode(line, type=tuple[str, msgspec.Raw])
    if name not in kinds:
        raise msgspec.ValidationError(f"there is nothing called {name!r}")
    return msgspec.json.decode(fields, type=kinds[name], dec_hook=_rich)


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value)} is not written")


def _rich(kind: type, value: object) -> object:
    if kind is Path:
        return Path(str(value))
    raise TypeError(f"{kind} is not read")
