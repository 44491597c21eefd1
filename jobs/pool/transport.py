"""Commands to the workers of a cluster and events from them. `jobs/pool/ray` implements the transport.

A transport passes messages on as bytes. It holds no unique state: after `Unreached`, the driver opens another. A lost
answer means a lost worker; nothing is sent twice.
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
        address: the network address of the machine.
        device: "cpu", or the key of a GPU as `iosched devices` spells it ("v100").
        count: number of such devices; each worker holds one whole device.
        threads: processor threads per worker.
        cores: numbers of the processors that a worker is bound to; empty for all.
    """

    node: str
    address: str
    device: str
    count: int = 1
    threads: int = 1
    cores: tuple[int, ...] = ()


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a worker, with a new name, on one device of `place`. Its description or `Lost` follows."""

    worker: str
    place: Place


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Kill a worker; it produces no further events."""

    worker: str


class Send(msgspec.Struct, frozen=True, tag=True):
    """Send a message to a worker. The order of messages is not guaranteed.

    Attributes:
        model: path of an ONNX file without external data, which the worker may fetch; other content has another path.
            Each node receives it once.
    """

    worker: str
    message: bytes
    model: str | None = None


Command = Start | Stop | Send


class Unreached(msgspec.Struct, frozen=True, tag=True):
    """The cluster and all its workers are lost. The last event.

    Attributes:
        has_ended: whether the processes of its workers are known to have ended.
    """

    reason: str
    has_ended: bool


class Places(msgspec.Struct, frozen=True, tag=True):
    """All devices of the cluster. The first event of a connected cluster; follows each change."""

    places: tuple[Place, ...]


class Said(msgspec.Struct, frozen=True, tag=True):
    """A message from a worker. Messages of one worker arrive in order."""

    worker: str
    message: bytes


class Lost(msgspec.Struct, frozen=True, tag=True):
    """A worker ended, failed or became unreachable. Its last event.

    Attributes:
        has_ended: whether its process is known to have ended, or its node has left the cluster.
    """

    worker: str
    reason: str
    has_ended: bool


Event = Unreached | Places | Said | Lost


class Transport(Protocol):
    """Carries commands and events between one driver and one cluster. Thread-safe."""

    def send(self, command: Command) -> None:
        """Sends a command and returns at once, even after `Unreached`."""
        ...

    def receive(self, timeout_s: float) -> Sequence[Event]:
        """Returns the events since the last call, in order; waits up to `timeout_s` for one."""
        ...

    def close(self) -> None:
        """Stops all workers of this driver, within bounded time. Idempotent."""
        ...
