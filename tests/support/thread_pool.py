"""A pool whose workers are in this process, and which keeps what happens. Real workers all measure on its CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from thread_cluster import PATIENCE_S, Fetch, Made, Say, ThreadTransport

from iosched.jobs.pool.cluster import ClusterPool, PoolStatus
from iosched.jobs.pool.messages import QUESTIONS, Call
from iosched.jobs.pool.task import Pending, Task
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import Place, Transport
from iosched.jobs.worker import Worker

R = TypeVar("R")

QUICK = Timeouts(without_s=PATIENCE_S, reconnect_s=0.01, ending_s=0.05)
BRIEF = Timeouts(without_s=2.0)
"""For devices that are left without a worker."""


class OnTheCpu:
    """A real worker on the CPU of this process, whatever device it says that it is."""

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._there, self._here = f'"device":"{device}"'.encode(), b'"device":"cpu"'
        self._worker = Worker("cpu", threads, lambda message: say(message.replace(self._here, self._there)))

    def take(self, message: bytes, fetch: Fetch) -> None:
        self._worker.take(message.replace(self._there, self._here), fetch)


class ThreadPool(ClusterPool):
    """A `ClusterPool` on `ThreadTransport`s.

    Attributes:
        places: the places of the next transport.
        transports: all that were made, and `transport` the last of them.
        tasks: all that were submitted, and `pending` what came of them.
        on_submit: is called before a task is submitted.
        notes: what the pool told, and `shown` each of its states.
        loses: tasks, by the number in which workers begin them, with which a worker is lost for good; whether it is
            known to have ended then is `has_ended`.
        poison: tasks, by the number in which they are submitted, of whose models no worker survives one.
    """

    def __init__(self, path: Path | None, places: Sequence[Place], made: Made, timeouts: Timeouts = QUICK) -> None:
        self.places, self.made = places, made
        self.transports: list[ThreadTransport] = []
        self.tasks: list[Task[Any]] = []
        self.pending: list[Pending[Any]] = []
        self.notes: list[str] = []
        self.shown: list[PoolStatus] = []
        self.loses: set[int] = set()
        self.has_ended = True
        self.poison: set[int] = set()
        self.on_submit: Callable[[Task[Any]], object] = lambda task: None
        self._n_begun = 0
        super().__init__(lambda: self.connect(), path, Kept(self.notes, self.shown), timeouts)

    @property
    def transport(self) -> ThreadTransport:
        return self.transports[-1]

    @property
    def calls(self) -> list[tuple[str, Call]]:
        """All calls of tasks, each with its worker."""
        return [each for each in self._all_calls if each[1].kind != QUESTIONS]

    @property
    def packets(self) -> list[tuple[str, Call]]:
        """All calls of questions, each with its worker."""
        return [each for each in self._all_calls if each[1].kind == QUESTIONS]

    @property
    def workers(self) -> list[str]:
        """The workers that are up."""
        return [each.name for each in self._now().workers]

    @property
    def _all_calls(self) -> list[tuple[str, Call]]:
        return [call for transport in self.transports for call in transport.calls]

    def connect(self) -> Transport:
        """Makes a transport; a test may replace it."""
        self.transports.append(ThreadTransport(self.places, self.made, self._begun))
        return self.transports[-1]

    def submit(self, task: Task[R]) -> Pending[R]:
        self.on_submit(task)
        pending = super().submit(task)
        self.tasks.append(task)
        self.pending.append(pending)
        return pending

    def _begun(self, transport: ThreadTransport, worker: str, call: Call) -> None:
        if call.kind == QUESTIONS:
            return
        number, self._n_begun = self._n_begun, self._n_begun + 1
        if number in self.loses:
            transport.kill(worker, has_ended=self.has_ended, for_good=True)
        elif call.model.sha256 in {self.tasks[each].model.digest for each in self.poison if each < len(self.tasks)}:
            transport.kill(worker)


class Kept:
    """An observer that keeps what it is told."""

    def __init__(self, notes: list[str], shown: list[PoolStatus]) -> None:
        self.note, self.status = notes.append, shown.append


@contextmanager
def thread_pool(
    path: Path | None = None,
    *,
    made: Made = OnTheCpu,
    threads: int = 2,
    timeouts: Timeouts = QUICK,
    **workers: int,
) -> Iterator[ThreadPool]:
    """A pool of so many workers by device, each on a machine of its own; real ones unless `made` makes others."""
    places = [
        Place(f"{device}-{number}", f"10.0.0.{number}", device, threads=threads)
        for device, count in workers.items()
        for number in range(count)
    ]
    with ThreadPool(path, places, made, timeouts) as pool:
        assert isinstance(pool, ThreadPool)
        yield pool
