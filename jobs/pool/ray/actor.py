"""A worker as a Ray actor: a process on one device that exchanges messages with the child process.

Ray is imported only to fetch a model; the child process turns the class into an actor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

WORKER = "iosched.jobs.worker:Worker"
_MOST_WAIT_S = 20.0


class Works(Protocol):
    """A worker. Its constructor takes the device, the number of threads, and `say`.

    `say` sends a message as bytes to the driver and is thread-safe. The first message describes the worker.
    """

    def take(self, message: bytes, fetch: Callable[[], bytes]) -> None:
        """Queues a message from the driver and returns at once; an exception ends the worker.

        `fetch` returns the model that belongs to the message and is thread-safe.
        """
        ...


class WorkerActor:
    """Hosts one worker. One thread answers `said` while another runs `take`."""

    def __init__(self, device: str, threads: int, cores: tuple[int, ...], made_by: str) -> None:
        """Binds the process to its processors, then creates the worker.

        Args:
            device: see `Place`.
            cores: numbers of the processors; empty for all.
            made_by: "module:name" of a constructor of `Works`.
        """
        bind(cores)
        module, _, name = made_by.partition(":")
        self._said: SimpleQueue[bytes] = SimpleQueue()
        self._works: Works = getattr(import_module(module), name)(device, threads, self._said.put)

    def take(self, message: bytes, models: Sequence[Any]) -> None:
        """Passes a message on. `models` holds the reference of its model, in a list so that Ray does not fetch it."""
        self._works.take(message, lambda: _fetched(models))

    def said(self) -> list[bytes]:
        """Returns the messages since the last call; waits a limited time for one.

        Raises:
            TypeError: a message is not bytes; the child process would unpickle it.
        """
        found: list[bytes] = []
        with suppress(Empty):
            found.append(self._said.get(timeout=_MOST_WAIT_S))
            while True:
                found.append(self._said.get_nowait())
        if any(type(message) is not bytes for message in found):
            raise TypeError("the worker said something that is not bytes")
        return found


def bind(cores: Sequence[int]) -> None:
    """Binds all current and future threads of this process to `cores`; empty for all processors."""
    if not cores:
        return
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), cores)


def _fetched(models: Sequence[Any]) -> bytes:
    import ray

    (model,) = models
    found: bytes = ray.get(model)
    return found
