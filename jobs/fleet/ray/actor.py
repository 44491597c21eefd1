"""A worker as a Ray actor: a process on one device, which is sent calls and messages, and is asked what it says.

Ray is imported here only where a model is fetched: the child process makes an actor of the class.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol

from iosched.jobs.fleet.ray.binding import bind
from iosched.jobs.fleet.ray.outbox import Outbox
from iosched.jobs.fleet.ray.wire import command_in, encoded
from iosched.jobs.fleet.transport import Call, Returned, Said, Tell, WorkerUp

WORKER = "iosched.jobs.fleet.worker:Worker"
_MOST_WAIT_S = 20.0


class Works(Protocol):
    """What runs the calls: see `jobs/fleet/worker.py`."""

    def facts(self) -> bytes:
        """What the worker is, as JSON."""
        ...

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: queue.Queue[bytes]
    ) -> bytes:
        """Does what the message asks for and returns the result; `told` brings what it is told meanwhile."""
        ...


class WorkerActor:
    """One worker. What is sent to it bears numbers, since Ray may deliver a large message after a small later one."""

    def __init__(self, worker: str, device: str, threads: int, cores: tuple[int, ...], made_by: str) -> None:
        """Binds the process to its processors, then makes the worker.

        Args:
            worker: its name.
            device: what it holds; see `Place`.
            threads: how many it may use.
            cores: the processors; none for all.
            made_by: "module:name" of a function of `device` and `threads` that returns a `Works`.
        """
        bind(cores)
        module, _, name = made_by.partition(":")
        self._name = worker
        self._works: Works = getattr(import_module(module), name)(device, threads)
        self._told: dict[str, queue.Queue[bytes]] = {}
        self._waiting: dict[int, tuple[bytes, Mapping[str, Any]]] = {}
        self._done = 0
        self._outbox: Outbox | None = None

    async def up(self) -> bytes:
        """The first thing to be asked: `WorkerUp`, as a line."""
        self._outbox = Outbox()
        return encoded(WorkerUp(self._name, await asyncio.to_thread(self._works.facts)))

    async def do(self, number: int, line: bytes, models: Mapping[str, Any]) -> None:
        """Takes a `Call` or `Tell`, after those of smaller numbers, which count from 1.

        Args:
            number: the number.
            line: the command.
            models: the references of the models that a call names.
        """
        self._waiting[number] = (line, models)
        while self._done + 1 in self._waiting:
            self._done += 1
            self._begin(*self._waiting.pop(self._done))

    async def said(self, number: int) -> list[bytes]:
        """What was said and returned after the first `number` lines; waits until there is something, for some time.

        Raises:
            Exception: what a call has raised, which none is to raise.
        """
        assert self._outbox is not None
        return await self._outbox.after(number, _MOST_WAIT_S)

    def _begin(self, line: bytes, models: Mapping[str, Any]) -> None:
        command = command_in(line)
        if isinstance(command, Call):
            self._told[command.call] = queue.Queue()
            threading.Thread(target=self._run, args=(command, Fetched(models)), daemon=True).start()
        elif isinstance(command, Tell) and command.call in self._told:
            self._told[command.call].put(command.message)

    def _run(self, call: Call, models: Mapping[str, bytes]) -> None:
        outbox = self._outbox
        assert outbox is not None

        def say(message: bytes) -> None:
            outbox.add(encoded(Said(self._name, call.call, message)))

        try:
            returned = self._works.call(call.message, models, say, self._told[call.call])
            outbox.add(encoded(Returned(self._name, call.call, returned)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver hears of it
            outbox.fail(error)
        finally:
            self._told.pop(call.call, None)


class Fetched(Mapping[str, bytes]):
    """Models by their digests, each fetched from Ray's store of this node when it is asked for, and not kept."""

    def __init__(self, references: Mapping[str, Any]) -> None:
        """Fetches nothing yet."""
        self._references = references

    def __getitem__(self, digest: str) -> bytes:
        import ray

        found: bytes = ray.get(self._references[digest])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._references)

    def __len__(self) -> int:
        return len(self._references)
