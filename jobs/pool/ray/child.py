"""The child process that calls Ray. It reads commands from standard input and writes events to standard output.

Ray ends a process that has lost its head node without an exception, and prints to any stream. A separate process
without state isolates the driver, which starts another one. The process ends when its input is closed, also when the
driver dies.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

import msgspec
import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iosched.jobs.pool import transport
from iosched.jobs.pool.ray.actor import WorkerActor
from iosched.jobs.pool.ray.places import CPU_RESOURCE, ClusterNode, named, nodes_of, places_on, request
from iosched.jobs.pool.ray.ray_transport import Setup, encoded
from iosched.jobs.pool.ray.reach import check, known_address, patiently, reason, unreached
from iosched.jobs.pool.transport import Event, Lost, Place, Send, Start

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
LOOK_S = 1.0
CONNECT_S = 60.0
SILENCE_S = 10.0
_LEAVE_S = 5.0
_QUIETLY = {"log_to_driver": False, "configure_logging": False}
_OWN = {"num_gpus": 0, "object_store_memory": 256 * 2**20, "include_dashboard": False, **_QUIETLY}
START_S = 180.0
END_S = 10.0
MODELS = 8
_THREADS = 2  # one answers `said`, one runs `take`


@dataclass
class _RunningActor:
    """A worker that has not been stopped or lost.

    Attributes:
        actor: Ray's handle.
        until: the deadline of its first message; while it is being killed, the deadline of its end.
        reason: why it is being killed; None if it is not.
    """

    actor: Any
    until: float
    reason: str | None = None


class Workers:
    """Starts workers, passes messages, and reports lost workers.

    A failed worker is killed and polled until Ray reports its death, which proves that its process has ended.
    """

    def __init__(self, made_by: str, tell: Callable[[Event], None], post: Callable[[Callable[[], None]], None]) -> None:
        """Starts without workers. `post` runs a function on the thread of all methods and is thread-safe."""
        self._made_by = made_by
        self._tell = tell
        self._post = post
        self._running: dict[str, _RunningActor] = {}
        self._models: OrderedDict[str, Any] = OrderedDict()

    def start(self, command: Start, nodes: Mapping[Place, ClusterNode]) -> None:
        """Requests an actor on the node of a place."""
        worker, place = command.worker, command.place
        if place not in nodes:
            self._tell(Lost(worker, "its machine left the cluster", has_ended=True))
            return
        node = nodes[place]
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        wanted = {"scheduling_strategy": there, "max_concurrency": _THREADS, **request(place, node)}
        kind = ray.remote(WorkerActor).options(**wanted)
        actor = kind.remote(place.device, place.threads, place.cores, self._made_by)
        self._running[worker] = _RunningActor(actor, time.monotonic() + START_S)
        self._await_answer(worker, actor.said.remote())

    def send(self, command: Send) -> None:
        """Sends a message, and puts its model into the object store unless it is among the last `MODELS` models."""
        worker, model = command.worker, command.model
        if worker not in self._running:
            return
        try:
            models = [] if model is None else [self._reference(model)]
        except OSError as error:
            self._lose(worker, f"the file of its model cannot be read: {error}")
            return
        self._await_answer(worker, self._running[worker].actor.take.remote(command.message, models))

    def stop(self, worker: str) -> None:
        """Kills a worker without further events."""
        running = self._running.pop(worker, None)
        if running is not None:
            self._kill(running)

    def check(self) -> None:
        """Reports workers that did not start in time, and polls those being killed. Call it every second."""
        for worker, running in list(self._running.items()):
            is_late = time.monotonic() > running.until
            if running.reason is None and is_late:
                self._lose(worker, f"it did not come up within {START_S:.0f} s: somebody else may have the device")
            elif running.reason is not None and is_late:
                self._report_lost(worker, running.reason, has_ended=False)
            elif running.reason is not None:
                self._await_answer(worker, running.actor.said.remote())

    def _await_answer(self, worker: str, asked: Any) -> None:
        """Handles the answer of a worker on the thread of all methods."""
        asked.future().add_done_callback(lambda future: self._post(partial(self._answered, worker, future)))

    def _answered(self, worker: str, future: Future[object]) -> None:
        running, error = self._running.get(worker), future.exception()
        if running is None:
            return
        if isinstance(error, ActorDiedError):
            self._report_lost(worker, running.reason or reason(error), has_ended=True)
        elif error is not None:
            self._lose(worker, reason(error))
        elif future.result() is not None:  # the answer of `said`
            self._forward(worker, running, future.result())

    def _forward(self, worker: str, running: _RunningActor, said: object) -> None:
        if not isinstance(said, list) or any(type(message) is not bytes for message in said):
            self._lose(worker, "it answered with something that is not bytes")
            return
        if said and running.reason is None:
            running.until = math.inf
        for message in said:
            self._tell(transport.Said(worker, message))
        self._await_answer(worker, running.actor.said.remote())

    def _lose(self, worker: str, why: str) -> None:
        running = self._running[worker]
        if running.reason is None:
            running.reason, running.until = why, time.monotonic() + END_S
            self._kill(running)
            self._await_answer(worker, running.actor.said.remote())

    def _kill(self, running: _RunningActor) -> None:
        with suppress(Exception):  # it may have ended already
            ray.kill(running.actor)

    def _report_lost(self, worker: str, why: str, has_ended: bool) -> None:
        del self._running[worker]
        self._tell(Lost(worker, why, has_ended))

    def _reference(self, model: str) -> Any:
        if model not in self._models:
            self._models[model] = ray.put(Path(model).read_bytes())
        self._models.move_to_end(model)
        if len(self._models) > MODELS:
            self._models.popitem(last=False)
        return self._models[model]


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
        self._nodes: dict[Place, ClusterNode] = {}
        self._names: dict[str, str] = {}
        self._reported: transport.Places | None = None
        self._deadline = time.monotonic() + CONNECT_S

    def run(self) -> None:
        """Runs until the driver closes its end."""
        for target in (self._read, self._watch):
            threading.Thread(target=target, daemon=True).start()
        try:
            patiently(self._connect)
        except Exception as error:  # noqa: BLE001 - Ray raises many types
            self._leave(unreached(error))
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
        count, folder = len(setup.places), Path.cwd() / "ray"  # world-readable in a private parent folder
        ray.init("local", num_cpus=count, resources={CPU_RESOURCE: count}, _temp_dir=str(folder), **_OWN)

    def _read(self) -> None:
        for line in self._channel.inlet:
            self._steps.put(partial(self._execute, msgspec.json.decode(line, type=transport.Command)))
        if self._setup.address is not None:  # let Ray disconnect from a running cluster
            self._steps.put(None)
            time.sleep(_LEAVE_S)
        self._leave()

    def _execute(self, command: transport.Command) -> None:
        match command:
            case Start():
                self._workers.start(command, self._nodes)
            case Send():
                self._workers.send(command)
            case transport.Stop():
                self._workers.stop(command.worker)

    def _poll_nodes(self) -> None:
        while True:
            with suppress(Exception):
                nodes = ray.nodes()
                self._deadline = time.monotonic() + SILENCE_S
                self._steps.put(partial(self._update_nodes, nodes_of(nodes)))
            time.sleep(LOOK_S)

    def _update_nodes(self, nodes: Sequence[ClusterNode]) -> None:
        own = self._setup.places
        self._names = named(nodes, self._names)
        self._nodes = dict.fromkeys(own, nodes[0]) if own and nodes else places_on(nodes, self._names)
        found = transport.Places(tuple(self._nodes))
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
            self._channel.tell(transport.Unreached(reason, has_ended=False))
        os._exit(0)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end with the supervisor, so that the driver notices
    pipes = Channel()
    Child(msgspec.json.decode(pipes.inlet.readline(), type=Setup), pipes).run()
