"""Stands in for a fleet: workers in this process, each with a thread, which take errands from one queue a device."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import Queue, SimpleQueue
from threading import Lock, Thread
from typing import Any

from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.messages import (
    Asked,
    Call,
    Done,
    InterruptedWorkError,
    Known,
    Measured,
    Opened,
    Stop,
    encoded,
    packet,
    raised,
    returned,
    said,
)
from iosched.jobs.fleet.worker import Worker
from iosched.models.errors import DeviceLostError, ExecutionError
from iosched.profiler.store.tables import Row


@dataclass(frozen=True)
class Up:
    name: str
    device: str


@dataclass(frozen=True)
class Status:
    workers: tuple[Up, ...]


@dataclass(eq=False)
class Task:
    errand: Errand
    future: Future[Any] = field(default_factory=Future)
    told: Queue[bytes] = field(default_factory=Queue)
    stop: Stop | None = None


class ThreadFleet:
    """A fleet of so many workers by device, all of which are the CPU of this machine, whatever they are called.

    Attributes:
        rows: all that was measured.
        errands: all that was asked for, in order.
        loses: errands by number that a worker is lost with, which is the end of that worker.
        poison: errands by number that no worker survives, nor those that are equal to them.
        packets: the sizes of the packets of questions that were answered.
    """

    def __init__(self, workers: Mapping[str, int], threads: int = 2) -> None:
        self.rows: list[Row] = []
        self.errands: list[Errand] = []
        self.loses: set[int] = set()
        self.poison: set[int] = set()
        self.packets: list[int] = []
        self._lock = Lock()
        self._tasks: dict[str, SimpleQueue[Task | None]] = {device: SimpleQueue() for device in workers}
        self._open: list[Task] = []
        self._up: dict[str, tuple[str, Worker]] = {}
        for device, count in workers.items():
            for number in range(count):
                name = f"{device}-{number}"
                self._up[name] = (device, Worker("cpu", threads))
                Thread(target=self._serve, args=(name, device), daemon=True).start()

    def devices(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def count(self, device: str) -> int:
        return sum(each == device for each, _ in list(self._up.values()))

    def status(self) -> Status:
        return Status(tuple(Up(name, device) for name, (device, _) in list(self._up.items())))

    def submit(self, errand: Errand) -> Future[Any]:
        task = Task(errand)
        with self._lock:
            self.errands.append(errand)
            self._open.append(task)
        self._tasks[errand.device].put(task)
        return task.future

    def tell(self, future: Future[Any], stop: Stop) -> None:
        (task,) = (each for each in self._open if each.future is future)
        task.stop = stop
        task.told.put(encoded(stop))

    def close(self) -> None:
        for _, (device, _) in self._up.items():
            self._tasks[device].put(None)

    def _serve(self, name: str, device: str) -> None:
        while (task := self._tasks[device].get()) is not None:
            if self.errands.index(task.errand) in self.loses:
                self.loses.discard(self.errands.index(task.errand))
                del self._up[name]
                if any(each == device for each, _ in self._up.values()):
                    self._tasks[device].put(task)
                else:
                    task.future.set_exception(DeviceLostError(f"all workers of {device} were lost"))
                return
            if self.errands.index(task.errand) in self.poison:
                task.future.set_exception(ExecutionError("workers were lost again and again as they did it"))
                continue
            if task.stop is not None:
                task.future.set_exception(InterruptedWorkError("interrupted"))
                continue
            answer = self._called(self._up[name][1], task)
            if isinstance(answer, Done):
                task.future.set_result(answer.result)
            else:
                task.future.set_exception(raised(answer))

    def _called(self, worker: Worker, task: Task) -> Any:
        errand = task.errand
        assert isinstance(errand.file, bytes)
        call = Call(kind=errand.kind, work=errand.work, model=errand.model, rows=(*errand.rows, *self.rows))
        files = {errand.model.file: errand.file}

        def hear(message: bytes) -> None:
            heard = said(message)
            if isinstance(heard, Measured):
                with self._lock:
                    self.rows.extend(heard.rows)
            elif isinstance(heard, Opened):
                if errand.budget is not None:
                    errand.budget.open(time.monotonic())
            elif isinstance(heard, Asked):
                Thread(target=self._answer, args=(task, heard, files), daemon=True).start()
            else:
                errand.on_said(heard)

        return returned(worker.call(encoded(call), files, hear, task.told))

    def _answer(self, task: Task, asked: Asked, files: Mapping[str, bytes]) -> None:
        """Deals the questions out one by one to the workers of the device."""
        workers = [worker for device, worker in self._up.values() if device == task.errand.device]
        rows: list[Row] = []
        threads = []
        for number, worker in enumerate(workers):
            mine = asked.questions[number :: len(workers)]
            thread = Thread(target=self._packet, args=(worker, task, asked, mine, files, rows), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        task.told.put(encoded(Known(number=asked.number, rows=tuple(rows))))

    def _packet(
        self, worker: Worker, task: Task, asked: Asked, mine: Sequence[Any], files: Mapping[str, bytes], rows: list[Row]
    ) -> None:
        if not mine:
            return
        work = packet(asked, mine)
        call = Call(kind="questions", work=work, model=task.errand.model, rows=tuple(self.rows))

        def hear(message: bytes) -> None:
            heard = said(message)
            if isinstance(heard, Measured):
                with self._lock:
                    self.rows.extend(heard.rows)
                    rows.extend(heard.rows)

        answer = returned(worker.call(encoded(call), files, hear, Queue()))
        assert isinstance(answer, Done), answer
        self.packets.append(len(mine))


@contextmanager
def thread_fleet(**workers: int) -> Iterator[ThreadFleet]:
    fleet = ThreadFleet(workers)
    try:
        yield fleet
    finally:
        fleet.close()
