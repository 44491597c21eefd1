"""The workers of the child process as actors of Ray. All that calls Ray here runs on one thread."""

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
_THREADS = 2  # one answers `said`, one takes messages


@dataclass
class _Held:
    """A worker.

    Attributes:
        actor: Ray's handle of it.
        until: when it is lost unless it has said something; once it is being ended, when that is given up.
        reason: why it is being ended.
    """

    actor: Any
    until: float
    reason: str | None = None


class Workers:
    """Starts workers, passes messages and reports the lost.

    A worker that fails is killed, and asked until Ray says that it died: only then its process is known to have ended.
    """

    def __init__(self, made_by: str, tell: Callable[[Event], None], post: Callable[[Callable[[], None]], None]) -> None:
        """Begins without workers.

        Args:
            made_by: see `WorkerActor`.
            tell: reports an event.
            post: has the thread of all methods call a function; any thread may call it.
        """
        self._made_by = made_by
        self._tell = tell
        self._post = post
        self._held: dict[str, _Held] = {}
        self._models: OrderedDict[str, Any] = OrderedDict()

    def start(self, command: Start, nodes: Mapping[Place, Node]) -> None:
        """Asks Ray for an actor on the node of a place."""
        worker, place = command.worker, command.place
        if place not in nodes:
            self._tell(Lost(worker, "its machine left the cluster", has_ended=True))
            return
        node = nodes[place]
        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        wanted = {"scheduling_strategy": there, "max_concurrency": _THREADS, **request(place, node)}
        kind = ray.remote(WorkerActor).options(**wanted)
        actor = kind.remote(place.device, place.threads, place.cores, self._made_by)
        self._held[worker] = _Held(actor, time.monotonic() + START_S)
        self._ask(worker, actor.said.remote())

    def send(self, command: Send) -> None:
        """Passes a message on; puts its model into Ray's store unless that is among the last `MODELS`."""
        worker, model = command.worker, command.model
        if worker not in self._held:
            return
        try:
            models = [] if model is None else [self._reference(model)]
        except OSError as error:
            self._lose(worker, f"the file of its model cannot be read: {error}")
            return
        self._ask(worker, self._held[worker].actor.take.remote(command.message, models))

    def stop(self, worker: str) -> None:
        """Kills a worker, of which nothing more is reported."""
        held = self._held.pop(worker, None)
        if held is not None:
            _kill(held)

    def check(self) -> None:
        """Loses workers that did not come up in time, and asks those being ended again; to be called each second."""
        for worker, held in list(self._held.items()):
            is_late = time.monotonic() > held.until
            if held.reason is None and is_late:
                self._lose(worker, f"it did not come up within {START_S:.0f} s: somebody else may have the device")
            elif held.reason is not None and is_late:
                self._forget(worker, held.reason, has_ended=False)
            elif held.reason is not None:
                self._ask(worker, held.actor.said.remote())

    def _ask(self, worker: str, asked: Any) -> None:
        """Continues with a worker's answer, on the thread of all methods."""
        asked.future().add_done_callback(lambda future: self._post(partial(self._answered, worker, future)))

    def _answered(self, worker: str, future: Future[object]) -> None:
        held, error = self._held.get(worker), future.exception()
        if held is None:
            return
        if isinstance(error, ActorDiedError):
            self._forget(worker, held.reason or reason(error), has_ended=True)
        elif error is not None:
            self._lose(worker, reason(error))
        elif future.result() is not None:  # of `said`
            self._heard(worker, held, future.result())

    def _heard(self, worker: str, held: _Held, said: object) -> None:
        if not isinstance(said, list) or any(type(message) is not bytes for message in said):
            self._lose(worker, "it answered with something that is not bytes")
            return
        if said and held.reason is None:
            held.until = math.inf
        for message in said:
            self._tell(Said(worker, message))
        self._ask(worker, held.actor.said.remote())

    def _lose(self, worker: str, why: str) -> None:
        held = self._held[worker]
        if held.reason is None:
            held.reason, held.until = why, time.monotonic() + END_S
            _kill(held)
            self._ask(worker, held.actor.said.remote())

    def _forget(self, worker: str, why: str, has_ended: bool) -> None:
        del self._held[worker]
        self._tell(Lost(worker, why, has_ended))

    def _reference(self, model: ModelFile) -> Any:
        if model.digest not in self._models:
            self._models[model.digest] = ray.put(Path(model.path).read_bytes())
        self._models.move_to_end(model.digest)
        if len(self._models) > MODELS:
            self._models.popitem(last=False)
        return self._models[model.digest]


def _kill(held: _Held) -> None:
    with suppress(Exception):  # it may have ended by itself
        ray.kill(held.actor)
