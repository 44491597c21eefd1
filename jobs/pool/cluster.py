"""A pool of the workers of a cluster. Tasks, what was measured and who does what are the driver's, and on one thread:
whoever waits for a result has messages read, rows written and works assigned meanwhile.

A transport may end at any time; another is made, and what was not answered is asked again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from iosched.jobs.pool import messages, transport
from iosched.jobs.pool.budget import Budget
from iosched.jobs.pool.messages import Asked, Done, Facts, Failed, Measured, Opened, Progress, Step, Unusable
from iosched.jobs.pool.row_writer import RowWriter
from iosched.jobs.pool.rows import RowLog, family_of, is_of_gpu
from iosched.jobs.pool.scheduling import Assignment, WorkerInfo
from iosched.jobs.pool.status import PoolObserver, PoolStatus, Silence, WorkerStatus
from iosched.jobs.pool.task import POLL_S, How, Pending, Target, Task
from iosched.jobs.pool.task_registry import Submitted, TaskRegistry, what_of
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import Lost, ModelFile, Places, Reached, Said, Send, Transport, Unreached
from iosched.jobs.pool.worker_slots import ActiveWorker, WorkerSlots
from iosched.models.errors import DeviceError, ExecutionError, IoschedError, UsageError
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.store.database import ProfileDatabase, default_path, is_there

R = TypeVar("R")

_STEP_S, _ROUND_S = 0.25, 0.2
_LONGEST_PAUSE_S = 30.0


@dataclass(frozen=True)
class ClusterTimeouts:
    """How long the driver waits.

    Attributes:
        scheduling: see `Timeouts`.
        without_s: for some worker of a device, before the tasks for it fail.
        reconnect_s: before another transport is made; twice as long each time.
        ending_s: until nothing is left of a score command whose worker has ended.
    """

    scheduling: Timeouts = field(default_factory=Timeouts)
    without_s: float = 180.0
    reconnect_s: float = 1.0
    ending_s: float = 8.0


class ClusterPool:
    """Workers of a cluster; a context manager, and a `Pool`.

    Args:
        connect: makes a transport; called again where one has ended. Raises `DeviceError` where there can be none.
        path: the profile database that all that is measured comes to; None for one in memory.
        observer: is shown what happens.
        timeouts: how long to wait for what.
    """

    n_spare = 1

    def __init__(
        self,
        connect: Callable[[], Transport],
        path: Path | None,
        observer: PoolObserver | None = None,
        timeouts: ClusterTimeouts | None = None,
    ) -> None:
        self._connect, self._observer = connect, observer or Silence()
        self._timeouts = timeouts or ClusterTimeouts()
        self._writer, self._log = RowWriter(path), RowLog()
        self._slots = WorkerSlots(self._send, self._observer.note)
        self._tasks = TaskRegistry(self._timeouts.scheduling, self._tell, self._unseen)
        self._ends: list[tuple[int, Callable[[], None]]] = []  # after so many rows are written
        self._leaves: list[tuple[float, Callable[[float], None]]] = []  # at such times
        self._transport: Transport | None = None
        self._events: deque[transport.Event] = deque()
        self._was_reached = False
        self._connect_at_s = self._round_at_s = 0.0
        self._pause_s = self._timeouts.reconnect_s
        self._without: dict[str, float] = {}
        self._trouble = ""
        self._longest_s = 0.0
        self._status = PoolStatus()

    def __enter__(self) -> ClusterPool:
        """Waits until the cluster has said what it has.

        Raises:
            DeviceError: there is no cluster.
        """
        try:
            while not self._slots.is_known:
                self._turn(_STEP_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name."""
        return self._slots.devices

    def target(self, text: str, profile_db: Path | None = None, *, may_simulate: bool = True) -> Target:
        """The device that a text means; "auto" is a GPU where there is one, and CPUs simulate a GPU that is not there.

        Raises:
            UsageError: the cluster has no such device, and cannot simulate it.
        """
        there = sorted(self.devices, key=lambda device: (device == "cpu", device))
        wanted, gpu = text.strip().lower(), gpu_named(text)
        if wanted == "auto" and there:
            wanted = there[0]
        elif gpu is not None and gpu.key in there:
            wanted = gpu.key
        elif may_simulate and gpu is not None and "cpu" in there:
            return Target(gpu.key, gpu.key, "cpu", is_elsewhere=True, rows=_rows_of_gpus(profile_db))
        if wanted in there:
            return Target(wanted, wanted, wanted, is_elsewhere=True)
        has = ", ".join(there) or "no device at all"
        raise UsageError(f"the cluster has no device {text!r}: it has {has}")

    def count(self, device: str) -> int:
        """How many workers a device can have, whether or not they are up."""
        return self._slots.count(device)

    def n_up(self, devices: Iterable[str]) -> int:
        """How many workers the best equipped of these devices has now; at least one, which may be on its way."""
        up = [member.facts.device for member in self._slots.active.values()]
        return max((up.count(device) for device in devices), default=0) or 1

    def budget(self, seconds: float | None) -> Budget | None:
        """The budget of a job, which begins when a first worker has a model open."""
        return None if seconds is None else Budget(seconds)

    def status(self) -> PoolStatus:
        """What the pool does now; once it is closed, what it did last."""
        return self._status

    def submit(self, task: Task[R]) -> Pending[R]:
        """Has a worker do a task.

        The result may be an error: of the worker's, of the same class; `ExecutionError` where too many workers were
        lost with this task, or it is over its budget; `DeviceLostError` where all workers of the device were lost;
        `DeviceError` where there never was one; `InterruptedTaskError` where it was told to stop.

        Raises:
            UsageError: its model is too large to be sent.
        """
        self._slots.wanted.add(task.device)
        self._round_at_s = 0.0
        return self._tasks.submit(task)

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Has a task end in this way; one that no worker has begun ends at once, without a result."""
        self._tasks.stop(pending, how)

    def wait(self, pending: Sequence[Pending[Any]], timeout_s: float = POLL_S) -> None:
        """Waits until one of these tasks is done, at most so long; messages are read meanwhile.

        Raises:
            DeviceError: there is no cluster.
            IoschedError: what was measured can never be written to the database.
        """
        until = time.monotonic() + timeout_s
        self._turn(0.0)
        while not any(each.is_done for each in pending) and (left_s := until - time.monotonic()) > 0:
            self._turn(min(left_s, _STEP_S))

    def close(self) -> None:
        """Ends all workers, and waits until all that was measured is written; may be called twice.

        Raises:
            IoschedError: something that was measured could not be written to the database.
        """
        self._status = self._now()
        there, self._transport = self._transport, None
        if there is not None:
            there.close()
            for event in (*self._events, *there.receive(0.0)):
                if isinstance(event, Said):
                    self._keep_measured(event)
        try:
            self._writer.close()
        finally:
            self._tasks.close()

    def _keep_measured(self, event: Said) -> None:
        """Keeps rows that came when nothing else was to be done."""
        with suppress(ExecutionError):
            said = messages.said(event.message)
            if isinstance(said, Measured) and event.worker in self._slots.active:
                self._writer.add(self._log.add(said.rows, event.worker))

    def _turn(self, wait_s: float) -> None:
        """Does what has come, or waits so long for something; then gives out work."""
        if self._transport is None:
            self._reach(wait_s)
        if self._transport is not None:
            self._events += self._transport.receive(0.0 if self._events else wait_s)
        while self._events:  # also those that were left when the user interrupted
            self._handle(self._events.popleft(), time.monotonic())
        now_s = time.monotonic()
        is_round = now_s >= self._round_at_s
        if is_round:
            self._round_at_s = now_s + _ROUND_S
            self._look_round(now_s)
        self._tasks.end_budgets(now_s, self._longest_s, self._slots.why)
        self._tasks.give(self._slots.active, now_s)
        if is_round and (status := self._now()) != self._status:
            self._status = status
            self._observer.status(status)
        self._write()

    def _reach(self, wait_s: float) -> None:
        """Makes a transport, unless one has just failed."""
        now_s = time.monotonic()
        if now_s < self._connect_at_s:
            time.sleep(min(wait_s, self._connect_at_s - now_s))
            return
        self._connect_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        try:
            self._transport = self._connect()
        except IoschedError as error:
            if not self._was_reached:
                raise
            self._observer.note(f"the cluster is not reached: {error}")

    def _handle(self, event: transport.Event, now_s: float) -> None:
        match event:
            case Reached():
                self._was_reached, self._pause_s = True, self._timeouts.reconnect_s
            case Places(places):
                self._slots.change(places)
                self._round_at_s = 0.0
            case Lost(worker, reason, has_ended):
                self._slots.lost(worker, reason, now_s)
                self._leave(worker, now_s, reason, is_blamed=True, has_ended=has_ended)
            case Unreached(reason, has_ended):
                self._lose(reason, now_s, has_ended=has_ended)
            case Said(worker, message):
                try:
                    self._hear(worker, messages.said(message), now_s)
                except ExecutionError as error:
                    self._slots.refuse(worker, f"it says what is not understood here: {error}")
                    self._leave(worker, now_s, "it was refused")

    def _hear(self, worker: str, said: messages.SaidMessage, now_s: float) -> None:
        member = self._slots.active.get(worker)
        if isinstance(said, Facts):
            self._arrive(worker, said, now_s)
        elif isinstance(said, Unusable):
            self._send(transport.Stop(worker))
            self._slots.lost(worker, said.reason, now_s)
            self._leave(worker, now_s, said.reason, is_blamed=True, has_ended=True)
        elif member is not None:
            took_s, member.heard_s = now_s - member.heard_s, now_s
            if isinstance(said, Measured):
                self._longest_s = max(self._longest_s, took_s)
                self._writer.add(self._log.add(said.rows, worker))
                member.measured(said.rows)
            elif isinstance(said, Done | Failed):
                member.done += 1
                self._slots.proved(worker)
                self._ends.append((self._writer.n_added, self._tasks.take(said, worker, now_s)))
            elif (submitted := self._tasks.task_of(said.call, worker)) is not None:
                self._hear_of(submitted, said, member, now_s)

    def _hear_of(
        self, of: Submitted, said: Asked | Opened | Progress | Step, member: ActiveWorker, now_s: float
    ) -> None:
        if isinstance(said, Asked):
            self._tasks.ask(of, said, member.facts.key, now_s)
        elif not isinstance(said, Opened):
            of.task.on_said(said)
        elif of.task.budget is not None:
            of.task.budget.open(now_s)

    def _arrive(self, worker: str, facts: Facts, now_s: float) -> None:
        """A worker is up; it is given tasks if it is of use."""
        member = self._slots.arrive(worker, facts, now_s)
        if member is None:
            return
        if not self._log.has(family := family_of(facts.key)):
            self._log.begin(family, self._writer.all_rows())
        self._writer.add(self._log.add(facts.yardstick, None))
        side = "cpu" if facts.device == "cpu" else "gpu"
        self._tasks.scheduler.join(WorkerInfo(worker, (facts.device, facts.key), member.place.node, side))

    def _lose(self, reason: str, now_s: float, *, has_ended: bool) -> None:
        """The transport has ended, and all workers with it: no task's fault."""
        assert self._transport is not None
        self._transport.close()
        self._transport = None
        for worker in list(self._slots.active):
            self._leave(worker, now_s, reason, has_ended=has_ended)
        self._slots.clear()
        if not self._was_reached:
            raise DeviceError(reason)
        self._connect_at_s = now_s + self._pause_s
        self._observer.note(f"the cluster is not reached any more ({reason}); trying again")

    def _leave(
        self, worker: str, now_s: float, reason: str, *, is_blamed: bool = False, has_ended: bool = False
    ) -> None:
        """Others get what a worker had; a score command not before all is over that it may have left."""
        self._slots.active.pop(worker, None)
        leave = partial(self._tasks.leave, worker, reason=reason, is_blamed=is_blamed, has_ended=has_ended)
        if has_ended and self._tasks.scores_on(worker):
            self._leaves.append((now_s + self._timeouts.ending_s, leave))
        else:
            leave(now_s)

    def _look_round(self, now_s: float) -> None:
        """Starts workers, gives to others what is late, and gives up what waited too long."""
        due = [leave for when_s, leave in self._leaves if when_s <= now_s]
        self._leaves = [each for each in self._leaves if each[0] > now_s]
        for leave in due:
            leave(now_s)
        for worker in self._slots.give_up_noisy(now_s):
            self._leave(worker, now_s, "its machine is noisy")
        self._slots.start(now_s)
        for call in self._tasks.scheduler.late(now_s):
            self._observer.note(f"{call.worker} takes long for {what_of(call)}: another is asked, too")
        self._give_up(now_s)

    def _give_up(self, now_s: float) -> None:
        """Fails what has waited too long for any worker of its device; who asks again later waits as long again."""
        served = {member.facts.device for member in self._slots.active.values()}
        without = {each.task.device for each in self._tasks.submitted} - served
        self._without = {device: self._without.get(device, now_s) for device in without}
        for each in self._tasks.submitted:
            device = each.task.device
            if now_s - self._without.get(device, now_s) >= self._timeouts.without_s:
                self._tasks.fail(each, self._slots.no_worker(device, self._timeouts.without_s))

    def _unseen(self, worker: str) -> messages.Rows:
        return self._log.unseen(worker, family_of(self._slots.active[worker].facts.key))

    def _write(self) -> None:
        """Goes on writing rows, and ends tasks of which all is written."""
        trouble = self._writer.step()
        if trouble is not None and trouble != self._trouble:
            self._trouble = trouble
            self._observer.note(f"{trouble.splitlines()[0]} Nothing is lost: it is tried again.")
        while self._ends and self._ends[0][0] <= self._writer.n_written:
            self._ends.pop(0)[1]()

    def _tell(self, call: Assignment, message: messages.ToldMessage, file: ModelFile | None) -> None:
        self._send(Send(call.worker, messages.encoded(message), file))

    def _send(self, command: transport.Command) -> None:
        if self._transport is not None:
            self._transport.send(command)

    def _now(self) -> PoolStatus:
        workers = tuple(
            WorkerStatus(
                name,
                member.place.address,
                member.facts.device,
                member.facts.name,
                self._tasks.doing(name),
                member.done,
            )
            for name, member in self._slots.active.items()
        )
        calls = self._tasks
        numbers = (calls.scheduler.waiting(), calls.n_under_way(), calls.n_done)
        return PoolStatus(workers, *numbers, tuple(self._slots.losses))


def _rows_of_gpus(profile_db: Path | None) -> messages.Rows:
    """What was measured on GPUs, in the profile database."""
    path = profile_db or default_path()
    if path is None or not is_there(path):
        return ()
    with ProfileDatabase(path) as database:
        return tuple(filter(is_of_gpu, database.rows()))
