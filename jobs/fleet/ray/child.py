"""The process that talks to Ray: the driver writes commands to its standard input, and reads events from its output.

Ray ends a process that has lost its head node, without an exception, and prints where it likes. So it has this process
to itself, which keeps nothing: the driver starts another. It ends when its input does, as when the driver has died.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, NoReturn

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iosched.jobs.fleet.ray import session
from iosched.jobs.fleet.ray.actor import WorkerActor
from iosched.jobs.fleet.ray.nodes import CPU_RESOURCE, Node, named, nodes_of, places_on, request
from iosched.jobs.fleet.ray.reach import check, known_address, patiently
from iosched.jobs.fleet.ray.reasons import reason, unreached
from iosched.jobs.fleet.ray.setup import Setup
from iosched.jobs.fleet.ray.wire import command_in, encoded, value_in
from iosched.jobs.fleet.transport import (
    Call,
    DropModel,
    Event,
    Place,
    Places,
    PutModel,
    StartWorker,
    StopWorker,
    Tell,
    TransportLost,
    TransportUp,
    WorkerLost,
)

LOOK_S = 1.0
CONNECT_S = 60.0
SILENCE_S = 10.0
START_S = 180.0
_LEAVE_S = 5.0
_STORE_NBYTES = 256 * 2**20

Step = Callable[[], None]


@dataclass
class Held:
    """A worker, and how far talking with it has come.

    Attributes:
        actor: Ray's handle of it.
        begun: when it was asked for, by `time.monotonic`.
        is_up: whether it can be called.
        sent: how many calls and messages it was sent.
        heard: how many lines came from it.
    """

    actor: Any
    begun: float
    is_up: bool = False
    sent: int = 0
    heard: int = 0


class Channel:
    """The two pipes of the driver. Whatever else reads standard input or prints does so elsewhere from then on."""

    def __init__(self) -> None:
        """Takes both over."""
        self.inlet: IO[bytes] = os.fdopen(os.dup(0), "rb")
        self._outlet = os.fdopen(os.dup(1), "wb", buffering=0)
        self._lock = threading.Lock()
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted
            os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)

    def write(self, *lines: bytes) -> None:
        """Writes lines; a driver that is gone hears nothing."""
        rest = b"".join(lines)
        with self._lock, suppress(OSError):
            while rest:
                rest = rest[self._outlet.write(rest) or 0 :]

    def tell(self, event: Event) -> None:
        """Writes an event."""
        self.write(encoded(event))


class Child:
    """Does what the driver commands. All that calls Ray runs on one thread, but looking at the nodes."""

    def __init__(self, setup: Setup, channel: Channel) -> None:
        """Begins without a cluster."""
        self._setup = setup
        self._channel = channel
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._workers: dict[str, Held] = {}
        self._models: dict[str, Any] = {}
        self._nodes: dict[Place, Node] = {}
        self._called: dict[str, str] = {}
        self._told: tuple[Place, ...] | None = None
        self._deadline = time.monotonic() + CONNECT_S

    def run(self) -> None:
        """Serves until the driver closes its end; from a cluster that is not its own it takes leave."""
        for target in (self._read, self._watch):
            threading.Thread(target=target, daemon=True).start()
        try:
            patiently(self._connect)
        except Exception as error:  # noqa: BLE001 - Ray raises what it likes
            self._channel.tell(TransportLost(unreached(error)))
            leave(self._setup)
        self._channel.tell(TransportUp())
        threading.Thread(target=self._look, daemon=True).start()
        while (step := self._steps.get()) is not None:
            step()
        ray.shutdown()
        leave(self._setup)

    def _connect(self) -> None:
        self._deadline = time.monotonic() + CONNECT_S
        _connect(self._setup)

    def _read(self) -> None:
        for line in self._channel.inlet:
            self._steps.put(partial(self._obey, line))
        if self._setup.address is not None:
            self._steps.put(None)
            time.sleep(_LEAVE_S)
        leave(self._setup)

    def _look(self) -> None:
        while True:
            with suppress(Exception):
                told = ray.nodes()
                self._deadline = time.monotonic() + SILENCE_S
                self._steps.put(partial(self._looked, nodes_of(told)))
            time.sleep(LOOK_S)

    def _watch(self) -> None:
        """Leaves where the cluster has not answered in time: soon after, Ray would end this process."""
        while time.monotonic() < self._deadline:
            time.sleep(LOOK_S / 2)
        self._channel.tell(TransportLost("the head of the Ray cluster does not answer"))
        leave(self._setup)

    def _looked(self, nodes: Sequence[Node]) -> None:
        own = self._setup.places
        self._called = named(nodes, self._called)
        self._nodes = dict.fromkeys(own, nodes[0]) if own and nodes else places_on(nodes, self._called)
        if tuple(self._nodes) != self._told:
            self._told = tuple(self._nodes)
            self._channel.tell(Places(self._told))
        late = [name for name, held in self._workers.items() if not held.is_up and _age_s(held) > START_S]
        for name in late:
            self._lose(name, f"it did not come up within {START_S:.0f} s: somebody else may have the device")

    def _obey(self, line: bytes) -> None:
        command = command_in(line)
        if isinstance(command, Call | Tell):
            self._send(command, line)
        elif isinstance(command, StartWorker):
            self._start(command)
        elif isinstance(command, StopWorker):
            self._stop(command.worker)
        elif isinstance(command, PutModel) and command.digest not in self._models:
            with suppress(OSError):  # calls that name it are told
                self._models[command.digest] = ray.put(command.path.read_bytes())
        elif isinstance(command, DropModel):
            self._models.pop(command.digest, None)

    def _start(self, command: StartWorker) -> None:
        place, node = command.place, self._nodes.get(command.place)
        if node is None:
            self._channel.tell(WorkerLost(command.worker, "its machine left the cluster"))
            return
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        asked = ray.remote(WorkerActor).options(scheduling_strategy=there, **request(place, node))
        actor = asked.remote(command.worker, place.device, place.threads, place.cores, self._setup.made_by)
        self._workers[command.worker] = Held(actor, time.monotonic())
        self._then(command.worker, actor.up.remote(), self._up)

    def _up(self, worker: str, line: bytes) -> None:
        self._workers[worker].is_up = True
        self._channel.write(line)
        self._listen(worker)

    def _listen(self, worker: str) -> None:
        held = self._workers[worker]
        self._then(worker, held.actor.said.remote(held.heard), self._heard)

    def _heard(self, worker: str, lines: Sequence[bytes]) -> None:
        self._workers[worker].heard += len(lines)
        self._channel.write(*lines)
        self._listen(worker)

    def _send(self, command: Call | Tell, line: bytes) -> None:
        held = self._workers.get(command.worker)
        if held is None:
            return
        named = command.models if isinstance(command, Call) else ()
        if missing := [digest for digest in named if digest not in self._models]:
            self._lose(command.worker, f"the file of model {missing[0][:12]} cannot be read")
            return
        held.sent += 1
        models = {digest: self._models[digest] for digest in named}
        self._then(command.worker, held.actor.do.remote(held.sent, line, models), lambda worker, nothing: None)

    def _then(self, worker: str, asked: Any, answered: Callable[[str, Any], None]) -> None:
        """Goes on with what a worker answers, on the thread of all steps; one that cannot is lost."""

        def step(future: Future[Any]) -> None:
            if worker not in self._workers:
                return
            error = future.exception()
            if error is None:
                answered(worker, future.result())
            else:
                self._lose(worker, reason(error))

        asked.future().add_done_callback(lambda future: self._steps.put(partial(step, future)))

    def _lose(self, worker: str, why: str) -> None:
        self._stop(worker)
        self._channel.tell(WorkerLost(worker, why))

    def _stop(self, worker: str) -> None:
        held = self._workers.pop(worker, None)
        if held is not None:
            with suppress(Exception):  # it may have ended by itself
                ray.kill(held.actor)


def _age_s(held: Held) -> float:
    return time.monotonic() - held.begun


def _connect(setup: Setup) -> None:
    """Starts a cluster or joins one.

    Raises:
        Exception: of any kind, where that cannot be done.
    """
    quietly = {"log_to_driver": False, "configure_logging": False}
    if setup.address is None:
        workers = len(setup.places)
        ray.init(
            "local",
            num_cpus=workers,
            num_gpus=0,
            resources={CPU_RESOURCE: workers},
            object_store_memory=_STORE_NBYTES,
            include_dashboard=False,
            _temp_dir=str(Path(setup.folder, "ray")),  # Ray opens it to everybody, who cannot reach it there
            **quietly,
        )
        return
    check(known_address() if setup.address == "auto" else setup.address)
    ray.init(setup.address, **quietly)


def leave(setup: Setup) -> NoReturn:
    """Ends this process and all that it has started."""
    session.end(os.getpid(), but=os.getpid())  # the session that it leads
    shutil.rmtree(setup.folder, ignore_errors=True)
    os._exit(0)


def main() -> None:
    """Reads the setup, then serves."""
    channel = Channel()
    setup = value_in(channel.inlet.readline(), Setup)
    Child(setup, channel).run()


if __name__ == "__main__":
    main()
