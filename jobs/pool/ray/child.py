"""The process that talks to Ray: the driver writes commands to its standard input and reads events from its output.

Ray ends a process that has lost its head node, without an exception, and prints where it likes. So it has this process
to itself, which keeps no state: the driver starts another. It ends when its input does, as when the driver has died.
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
    """The two pipes of the driver. Whatever else reads standard input or prints does so elsewhere from then on."""

    def __init__(self) -> None:
        """Takes both over."""
        self.inlet = os.fdopen(os.dup(0), "rb")
        self._outlet = os.fdopen(os.dup(1), "wb")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)

    def tell(self, event: Event) -> None:
        """Writes an event; any thread may call it, also after the driver has ended."""
        with suppress(OSError):
            self._outlet.write(encoded(event))
            self._outlet.flush()


class Child:
    """Obeys the driver. One thread calls Ray; another looks at the nodes."""

    def __init__(self, setup: Setup, channel: Channel) -> None:
        """Begins without a cluster."""
        self._setup = setup
        self._channel = channel
        self._steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._workers = Workers(setup.made_by, channel.tell, self._steps.put)
        self._nodes: dict[Place, Node] = {}
        self._names: dict[str, str] = {}
        self._told: Places | None = None
        self._deadline = time.monotonic() + CONNECT_S

    def run(self) -> None:
        """Serves until the driver closes its end."""
        for target in (self._read, self._watch):
            threading.Thread(target=target, daemon=True).start()
        try:
            patiently(self._connect)
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            self._leave(unreached(error))
        self._channel.tell(Reached())
        threading.Thread(target=self._look, daemon=True).start()
        while (step := self._steps.get()) is not None:
            step()
        ray.shutdown()
        self._leave()

    def _connect(self) -> None:
        """Starts a cluster or joins one; raises what Ray likes where that cannot be done."""
        setup = self._setup
        self._deadline = time.monotonic() + CONNECT_S
        if setup.address is not None:
            check(known_address() if setup.address == "auto" else setup.address)
            ray.init(setup.address, **_QUIETLY)
            return
        count, folder = len(setup.places), Path(setup.folder, "ray")  # Ray opens it to all, but not the one above
        ray.init("local", num_cpus=count, resources={CPU_RESOURCE: count}, _temp_dir=str(folder), **_OWN)

    def _read(self) -> None:
        for line in self._channel.inlet:
            self._steps.put(partial(self._obey, msgspec.json.decode(line, type=Command)))
        if self._setup.address is not None:  # Ray takes leave of a cluster that is not its own
            self._steps.put(None)
            time.sleep(_LEAVE_S)
        self._leave()

    def _obey(self, command: Command) -> None:
        match command:
            case Start():
                self._workers.start(command, self._nodes)
            case Send():
                self._workers.send(command)
            case Stop():
                self._workers.stop(command.worker)

    def _look(self) -> None:
        while True:
            with suppress(Exception):
                told = ray.nodes()
                self._deadline = time.monotonic() + SILENCE_S
                self._steps.put(partial(self._looked, nodes_of(told)))
            time.sleep(LOOK_S)

    def _looked(self, nodes: Sequence[Node]) -> None:
        own = self._setup.places
        self._names = named(nodes, self._names)
        self._nodes = dict.fromkeys(own, nodes[0]) if own and nodes else places_on(nodes, self._names)
        found = Places(tuple(self._nodes))
        if found != self._told:
            self._told = found
            self._channel.tell(found)
        self._workers.check()

    def _watch(self) -> None:
        """Leaves where the cluster has not answered in time: soon after, Ray would end this process."""
        while time.monotonic() < self._deadline:
            time.sleep(LOOK_S / 2)
        self._leave("the head of the Ray cluster does not answer")

    def _leave(self, reason: str | None = None) -> NoReturn:
        """Ends this process and all that it has started."""
        if reason is not None:
            self._channel.tell(Unreached(reason, has_ended=False))
        session.end(os.getpid(), but=os.getpid())  # the session that it leads
        shutil.rmtree(self._setup.folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    pipes = Channel()
    Child(msgspec.json.decode(pipes.inlet.readline(), type=Setup), pipes).run()
