"""A worker as a Ray actor: a process on one device, which takes messages and is asked for those of its worker.

Ray is imported here only where a model is fetched: the child process makes an actor of the class.
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
    """A worker, which is made with its device, its number of threads and `say`.

    `say` passes a message, bytes, to the driver; any thread may call it. The first message describes the worker.
    """

    def take(self, message: bytes, fetch: Callable[[], bytes]) -> None:
        """Accepts a message and returns at once; an exception ends the worker.

        Args:
            message: from the driver.
            fetch: returns the model that was sent with it; any thread may call it.
        """
        ...


class WorkerActor:
    """One worker. Answers `said` on one thread while another takes messages."""

    def __init__(self, device: str, threads: int, cores: tuple[int, ...], made_by: str) -> None:
        """Binds the process to its processors, then makes the worker.

        Args:
            device: what it holds; see `Place`.
            threads: how many it may use.
            cores: the processors; empty for all.
            made_by: "module:name" of what makes a `Works`.
        """
        bind(cores)
        module, _, name = made_by.partition(":")
        self._said: SimpleQueue[bytes] = SimpleQueue()
        self._works: Works = getattr(import_module(module), name)(device, threads, self._said.put)

    def take(self, message: bytes, models: Sequence[Any]) -> None:
        """Passes a message on; `models` holds the reference of its model, in a list so that Ray does not fetch it."""
        self._works.take(message, lambda: _fetched(models))

    def said(self) -> list[bytes]:
        """Returns the messages since the last call; waits for one, but not for ever.

        Raises:
            TypeError: one is not bytes; the child process would unpickle it.
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
    """Binds all threads of this process, and those to come, to these processors; none means all."""
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
