"""The status of a pool, for display."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class WorkerStatus:
    """A running worker.

    Attributes:
        node: address of its machine.
        device: "cpu", or the key of a GPU.
        doing: the current task, such as "optimize resnet50"; empty if idle.
        done: number of completed assignments.
    """

    name: str
    node: str
    device: str
    doing: str
    done: int


@dataclass(frozen=True)
class PoolStatus:
    """A snapshot of a pool.

    Attributes:
        waiting: number of queued tasks, including questions of searches.
        done: number of answered tasks.
        lost: one line per lost worker.
    """

    workers: tuple[WorkerStatus, ...] = ()
    waiting: int = 0
    done: int = 0
    lost: tuple[str, ...] = ()


class PoolObserver(Protocol):
    """Receives the events of a pool."""

    def note(self, text: str) -> None:
        """Reports an event, such as a new or lost worker, in one line."""
        ...

    def status(self, status: PoolStatus) -> None:
        """Reports a change of status."""
        ...


class Silence:
    """An observer that ignores all events."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def status(self, status: PoolStatus) -> None:
        """Does nothing."""
