"""What a pool is doing, for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class WorkerStatus:
    """A worker that is up.

    Attributes:
        name: of the worker, and `node` of its machine, as people find it.
        device: "cpu", or the key of a GPU; `product` is what its maker calls it.
        doing: what it does, such as "optimize resnet50"; empty where it rests.
        done: works that it has answered.
    """

    name: str
    node: str
    device: str
    product: str
    doing: str
    done: int


@dataclass(frozen=True)
class PoolStatus:
    """A pool at one moment.

    Attributes:
        workers: those that are up.
        waiting: works that wait for a worker, questions of searches among them.
        under_way: works that a worker has.
        done: works that have their answer.
        lost: a line for each worker that was lost.
    """

    workers: tuple[WorkerStatus, ...] = ()
    waiting: int = 0
    under_way: int = 0
    done: int = 0
    lost: tuple[str, ...] = ()


class PoolObserver(Protocol):
    """Is shown what happens in a pool."""

    def note(self, text: str) -> None:
        """A worker came, was lost or is not used, or something is in the way: a line for people."""
        ...

    def status(self, status: PoolStatus) -> None:
        """Something has changed."""
        ...


class Silence:
    """An observer that ignores it all."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def status(self, status: PoolStatus) -> None:
        """Does nothing."""
