"""A driver of a Ray cluster whose workers are `Standin`s."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
import session

from iosched.jobs.pool.ray.address import Cluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.transport import Event, Lost, Place, Places, Said, Send, Start, Unreached

STANDIN = "ray_workers:Standin"
PATIENCE_S = 60.0
WORKER = "ray::WorkerAct"  # as Linux has the name of a worker's process: 15 characters

E = TypeVar("E", bound=Event)


class Driver:
    """One transport and its events."""

    def __init__(self, cluster: Cluster) -> None:
        self.transport = RayTransport(cluster, made_by=STANDIN)
        self.heard: list[Event] = []
        self._unread: list[Event] = []
        self._numbers = count()

    def next(self, kind: type[E], which: Callable[[E], bool] = lambda event: True) -> E:
        """The next event of this kind that was not returned before."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for event in self._unread:
                if isinstance(event, kind) and which(event):
                    self._unread.remove(event)
                    return event
                assert not isinstance(event, Unreached), event
            came = self.transport.receive(0.5)
            self.heard += came
            self._unread += came
        raise AssertionError(f"no {kind.__name__} after {self.heard[-5:]}")

    def places(self) -> tuple[Place, ...]:
        return self.next(Places).places

    def up(self, place: Place) -> tuple[str, dict[str, Any]]:
        """A new worker at this place, and its description of itself."""
        name = f"w{next(self._numbers)}"
        self.transport.send(Start(name, place))
        return name, self.said(name)

    def ask(self, worker: str, model: str | None = None, **message: object) -> None:
        self.transport.send(Send(worker, json.dumps(message).encode(), model))

    def said(self, worker: str) -> Any:
        return json.loads(self.next(Said, lambda event: event.worker == worker).message)

    def lost(self, worker: str) -> Lost:
        return self.next(Lost, lambda event: event.worker == worker)


@contextmanager
def driver(cluster: Cluster) -> Iterator[Driver]:
    """A driver, whose transport leaves nothing behind."""
    found = Driver(cluster)
    try:
        yield found
    finally:
        found.transport.close()
    assert session.members(found.transport.pid) == ()


@contextmanager
def surroundings(home: Path, **more: str) -> Iterator[None]:
    """An environment in which child processes find `Standin` and have `home` as their home folder."""
    search = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(search))
        patch.setenv("HOME", str(home))
        for name, value in more.items():
            patch.setenv(name, value)
        yield


def soon(condition: Callable[[], Any]) -> None:
    """Waits until it holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def kill(leader: int, name: str) -> None:
    """Kills the one process of a session with this name."""
    (pid,) = named(leader, name)
    session.kill(pid, leader)


def named(leader: int, name: str) -> list[int]:
    """The processes of a session whose names begin with this."""
    found = []
    for pid in session.members(leader):
        with suppress(OSError):  # it has ended
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                found.append(pid)
    return found
