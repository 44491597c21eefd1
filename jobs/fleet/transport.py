"""What carries commands to workers on other machines and brings back what they say: the only thing that may know Ray.

A transport keeps nothing that is not kept elsewhere: it may end at any time, and another takes its place. Whoever uses
it knows what was asked of whom, and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Place:
    """Devices of one kind on one machine of a cluster.

    Attributes:
        node: a name that no other machine of the cluster has.
        address: where people find that machine.
        device: "cpu", or the key of a GPU as `iosched devices` spells it ("v100").
        count: how many such devices the machine has; a worker holds one of them whole.
        threads: processor threads that a worker there may use.
        cores: the numbers of the processors that a worker there is bound to; empty where it may use all.
    """

    node: str
    address: str
    device: str
    count: int = 1
    threads: int = 1
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class StartWorker:
    """Start a worker on one device of `place`; `WorkerUp` or `WorkerLost` follows.

    Attributes:
        worker: a name that no other worker of this driver had before.
    """

    worker: str
    place: Place


@dataclass(frozen=True)
class StopWorker:
    """End a worker, whatever it does; nothing of it follows but `WorkerLost`, if anything."""

    worker: str


@dataclass(frozen=True)
class PutModel:
    """Take an ONNX file, without external data, that calls will name by its digest; each node is sent it once."""

    digest: str
    path: Path


@dataclass(frozen=True)
class DropModel:
    """Forget a file: no call will name this digest any more, unless it is put again."""

    digest: str


@dataclass(frozen=True)
class Call:
    """Have a worker do something; `Said` follows any number of times, then `Returned` once, or `WorkerLost`.

    Attributes:
        call: a name that no other call of this driver had before.
        message: JSON.
        models: digests that were put before.
    """

    worker: str
    call: str
    message: bytes
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tell:
    """Hand a message, JSON, to a call under way; nothing happens where the call has ended."""

    worker: str
    call: str
    message: bytes


Command = StartWorker | StopWorker | PutModel | DropModel | Call | Tell


@dataclass(frozen=True)
class Places:
    """All devices of the cluster; comes first, and again whenever they change."""

    places: tuple[Place, ...]


@dataclass(frozen=True)
class WorkerUp:
    """A worker can be called; `facts` is JSON that says what it is, which versions it has, and how steady it is."""

    worker: str
    facts: bytes


@dataclass(frozen=True)
class WorkerLost:
    """A worker has ended or cannot be reached; `reason` is for people."""

    worker: str
    reason: str


@dataclass(frozen=True)
class Said:
    """A call under way says something: JSON."""

    worker: str
    call: str
    message: bytes


@dataclass(frozen=True)
class Returned:
    """A call has ended with this result: JSON."""

    worker: str
    call: str
    message: bytes


@dataclass(frozen=True)
class TransportUp:
    """The cluster is reached."""


@dataclass(frozen=True)
class TransportLost:
    """The cluster is not reached any more, all its workers with it, and this transport does nothing from here on."""

    reason: str


Event = Places | WorkerUp | WorkerLost | Said | Returned | TransportUp | TransportLost


class Transport(Protocol):
    """Carries commands and events between one driver and one cluster, in order for each worker.

    Any thread may use it.
    """

    def send(self, command: Command) -> None:
        """Passes a command on and returns at once, also where nobody is left to take it: then events say so."""
        ...

    def receive(self, timeout_s: float) -> Sequence[Event]:
        """What happened since the last call, in order; waits until something did, at most so long."""
        ...

    def close(self) -> None:
        """Ends all workers of this driver, waits for nothing that does not end, and may be called twice."""
        ...
