"""Commands to the workers of a cluster and events from them; `jobs/pool/ray` carries them, and alone knows Ray.

Messages within are bytes that no transport parses. A transport keeps no state that its user lacks: when it is
unreached, the user opens another. A lost answer is a lost worker; nothing is sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec


@dataclass(frozen=True)
class Place:
    """Devices of one kind on one machine of a cluster.

    Attributes:
        node: unique among the machines of the cluster.
        address: where people find the machine.
        device: "cpu", or the key of a GPU as `iosched devices` spells it ("v100").
        count: number of such devices; a worker holds one of them whole.
        threads: processor threads that a worker there may use.
        cores: numbers of the processors that a worker there is bound to; empty for all.
    """

    node: str
    address: str
    device: str
    count: int = 1
    threads: int = 1
    cores: tuple[int, ...] = ()


class ModelFile(msgspec.Struct, frozen=True):
    """An ONNX file without external data, by its SHA-256; each node receives it once."""

    digest: str
    path: str


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a worker on one device of `place`. The first message that it says describes it; else `Lost` follows.

    Attributes:
        worker: a name that this driver has not used before.
    """

    worker: str
    place: Place


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Kill a worker; no event of it follows."""

    worker: str


class Send(msgspec.Struct, frozen=True, tag=True):
    """Pass a message to a worker, with the model that it may fetch. Messages may overtake each other."""

    worker: str
    message: bytes
    model: ModelFile | None = None


Command = Start | Stop | Send


class Reached(msgspec.Struct, frozen=True, tag=True):
    """The cluster is reached."""


class Unreached(msgspec.Struct, frozen=True, tag=True):
    """The cluster and all its workers are lost; the last event.

    Attributes:
        reason: for people.
        has_ended: whether the processes of its workers are known to have ended.
    """

    reason: str
    has_ended: bool


class Places(msgspec.Struct, frozen=True, tag=True):
    """All devices of the cluster: follows `Reached`, and every change."""

    places: tuple[Place, ...]


class Said(msgspec.Struct, frozen=True, tag=True):
    """A message from a worker, in the order in which it said them."""

    worker: str
    message: bytes


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A worker ended, failed or cannot be reached; its last event.

    Attributes:
        reason: for people.
        has_ended: whether its process is known to have ended, or its node is gone.
    """

    worker: str
    reason: str
    has_ended: bool


Event = Reached | Unreached | Places | Said | Lost


class Transport(Protocol):
    """Carries commands and events between one driver and one cluster. Any thread may use it."""

    def send(self, command: Command) -> None:
        """Passes a command on and returns at once, even after `Unreached`."""
        ...

    def receive(self, timeout_s: float) -> Sequence[Event]:
        """Returns the events since the last call, in order; waits for one, at most `timeout_s`."""
        ...

    def close(self) -> None:
        """Ends all workers of this driver, in bounded time; may be called twice."""
        ...
