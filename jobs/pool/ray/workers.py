"""Workers of the child process as Ray actors. All calls of Ray run on one thread."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from iosched.jobs.pool.ray.actor import WorkerActor
from iosched.jobs.pool.ray.nodes import Node, request
from iosched.jobs.pool.ray.reach import reason
from iosched.jobs.pool.transport import Event, Lost, ModelFile, Place, Said, Send, Start

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

    def start(self, command: Start, nodes: Mapping[Place, Node]) -> None:
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
            _kill(running)

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
            self._tell(Said(worker, message))
        self._await_answer(worker, running.actor.said.remote())

    def _lose(self, worker: str, why: str) -> None:
        running = self._running[worker]
        if running.reason is None:
            running.reason, running.until = why, time.monotonic() + END_S
            _kill(running)
            self._await_answer(worker, running.actor.said.remote())

    def _report_lost(self, worker: str, why: str, has_ended: bool) -> None:
        del self._running[worker]
        self._tell(Lost(worker, why, has_ended))

    def _reference(self, model: ModelFile) -> Any:
        if model.digest not in self._models:
            self._models[model.digest] = ray.put(Path(model.path).read_bytes())
        self._models.move_to_end(model.digest)
        if len(self._models) > MODELS:
            self._models.popitem(last=False)
        return self._models[model.digest]


def _kill(running: _RunningActor) -> None:
    with suppress(Exception):  # it may have ended already
        ray.kill(running.actor)
