"""What `kinds.py` has to know of a kind of work: each file of this folder says it in a constant `KIND`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from iosched.jobs.fleet.conversation import Conversation
from iosched.jobs.fleet.messages import SentModel
from iosched.jobs.fleet.station import Station

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True)
class Order(Generic[W]):
    """One call, as a kind of work gets it.

    Attributes:
        work: what is to be done.
        sent: what model it is about.
        files: the bytes of ONNX files by their digests; fetched when they are asked for.
        station: the device, and all that is kept there.
        conversation: what is said meanwhile.
        left_s: see `Call`.
    """

    work: W
    sent: SentModel
    files: Mapping[str, bytes]
    station: Station
    conversation: Conversation
    left_s: float | None


@dataclass(frozen=True)
class Kind(Generic[W, R]):
    """One kind of work.

    Attributes:
        name: what calls name it by.
        work: what says what is to be done; travels as JSON.
        result: what comes of it; likewise.
        do: does it. Raises `IoschedError`s, which travel, and `KeyboardInterrupt` where it was told to stop.
    """

    name: str
    work: type[W]
    result: type[R]
    do: Callable[[Order[W]], R]
