"""The child process that calls Ray. It reads commands from standard input and writes events to standard output.

Ray ends a process that has lost its head node without an exception, and prints to any stream. A separate process
without state isolates the driver, which starts another one. The process ends when its input is closed, also when the
driver dies.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import msgspec
import ray

from iosched.jobs.pool.ray import session
from iosched.jobs.pool.ray.nodes import CPU_RESOURCE, Node, named, nodes_of, places_on
from iosched.jobs.pool.ray.reach import check, known_address, patiently, unreached
from iosched.jobs.pool.ray.transport import Setup, encoded
from iosched.jobs.pool.ray.workers import Workers
from iosched.jobs.pool.transport import Command, Event, Place, Places, Reached, Send, Start, Stop, Unreached

LOOK_S = 1.0
CONNECT_S = 60.0
SILENCE_S = 10.0
_LEAVE_S = 5.0
_QUIETLY = {"log_to_driver": False, "configure_logging": False}
_OWN = {"num_gpus": 0, "object_store_memory": 256 * 2**20, "include_dashboard": False, **_QUIETLY}


class Channel:
    """The pipes to the driver. Other code in this process reads /dev/null and prints to standard error."""

    def __init__(self) -> None:
        """Redirects standard input and output."""
        self.inlet = os.fdopen(os.dup(0), "rb")
        self._outlet = os.fdopen(os.dup(1), "wb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)

    def tell(self, event: Event) -> None:
        """Writes an event. Thread-safe; does nothing after the driver has ended."""
        with suppress(OSError):
            self._outlet.write(encoded(event))
            self._outlet.flush()


class Child:
    """Executes the driver's commands. One thread calls Ray; another polls the nodes."""

    def __init__(self, setup: Setup, channel: Channel) -> None:
        self._setup = setup
        self._channel = channel
        self._steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._workers = Workers(setup.made_by, channel.tell, self._steps.put)
        self._nodes: dict[Place, Node] = {}
        self._names: dict[str, str] = {}
        self._reported: Places | None = None
        self._deadline = time.monotonic() + CONNECT_S

    def run(self) -> None:
        """Runs until the driver closes its end."""
        for target in (self._read, self._watch):
            threading.Thread(target=target, daemon=True).start()
        try:
            patiently(self._connect)
        except Exception as error:  # noqa: BLE001 - Ray raises many types
            self._leave(unreached(error))
        self._channel.tell(Reached())
        threading.Thread(target=self._poll_nodes, daemon=True).start()
        while (step := self._steps.get()) is not None:
            step()
        ray.shutdown()
        self._leave()

    def _connect(self) -> None:
        """Starts a local cluster or joins a running one; raises any of Ray's exceptions."""
        setup = self._setup
        self._deadline = time.monotonic() + CONNECT_S
        if setup.address is not None:
            check(known_address() if setup.address == "auto" else setup.address)
            ray.init(setup.address, **_QUIETLY)
            return
        count, folder = len(setup.places), Path(setup.folder, "ray")  # world-readable in a private parent folder
        ray.init("local", num_cpus=count, resources={CPU_RESOURCE: count}, _temp_dir=str(folder), **_OWN)

    def _read(self) -> None:
        for line in self._channel.inlet:
            self._steps.put(partial(self._execute, msgspec.json.decode(line, type=Command)))
        if self._setup.address is not None:  # let Ray disconnect from a running cluster
            self._steps.put(None)
            time.sleep(_LEAVE_S)
        self._leave()

    def _execute(self, command: Command) -> None:
        match command:
            case Start():
                self._workers.start(command, self._nodes)
            case Send():
                self._workers.send(command)
            case Stop():
                self._workers.stop(command.worker)

    def _poll_nodes(self) -> None:
        while True:
            with suppress(Exception):
                told = ray.nodes()
                self._deadline = time.monotonic() + SILENCE_S
                self._steps.put(partial(self._update_nodes, nodes_of(told)))
            time.sleep(LOOK_S)

    def _update_nodes(self, nodes: Sequence[Node]) -> None:
        own = self._setup.places
        self._names = named(nodes, self._names)
        self._nodes = dict.fromkeys(own, nodes[0]) if own and nodes else places_on(nodes, self._names)
        found = Places(tuple(self._nodes))
        if found != self._reported:
            self._reported = found
            self._channel.tell(found)
        self._workers.check()

    def _watch(self) -> None:
        """Leaves when the cluster stops answering, before Ray ends this process."""
        while time.monotonic() < self._deadline:
            time.sleep(LOOK_S / 2)
        self._leave("the head of the Ray cluster does not answer")

    def _leave(self, reason: str | None = None) -> NoReturn:
        if reason is not None:
            self._channel.tell(Unreached(reason, has_ended=False))
        session.end(os.getpid(), but=os.getpid())  # this process leads its session
        shutil.rmtree(self._setup.folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    pipes = Channel()
    Child(msgspec.json.decode(pipes.inlet.readline(), type=Setup), pipes).run()
