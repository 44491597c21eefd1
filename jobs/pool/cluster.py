"""A pool of workers on a cluster.

The driver assigns tasks, reads messages and queues rows on one thread, while a job waits for a result. When a transport
ends, the pool opens another and assigns the unanswered tasks again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from iosched.jobs.pool import messages, transport
from iosched.jobs.pool.messages import Done, Facts, Failed, Measured, Unusable
from iosched.jobs.pool.ray.address import parse_cluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.rows import RowLog, RowWriter, family_of, is_of_gpu
from iosched.jobs.pool.scheduling import Assignment, ScheduledWorker
from iosched.jobs.pool.task import POLL_S, How, JobBudget, Pending, Target, Task
from iosched.jobs.pool.task_registry import TaskRegistry, what_of
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import Lost, Places, Said, Send, Transport, Unreached
from iosched.jobs.pool.worker_slots import WorkerSlots
from iosched.models.errors import DeviceError, ExecutionError, IoschedError, UsageError
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.store.database import ProfileDatabase, default_path, path_exists

R = TypeVar("R")

_STEP_S, _PERIOD_S = 0.25, 0.2
_MAX_RECONNECT_S = 30.0


@dataclass(frozen=True)
class WorkerStatus:
    """A running worker.

    Attributes:
        node: address of its machine.
        device: "cpu", or the key of a GPU.
        doing: the current task, such as "optimize resnet50"; empty if idle.
        done: number of completed assignments.
    """

    name: str
    node: str
    device: str
    doing: str
    done: int


@dataclass(frozen=True)
class PoolStatus:
    """A snapshot of a pool.

    Attributes:
        waiting: number of queued tasks, including questions of searches.
        done: number of answered tasks.
        lost: one line per lost worker.
    """

    workers: tuple[WorkerStatus, ...] = ()
    waiting: int = 0
    done: int = 0
    lost: tuple[str, ...] = ()


class PoolObserver(Protocol):
    """Receives the events of a pool."""

    def note(self, text: str) -> None:
        """Reports an event, such as a new or lost worker, in one line."""
        ...

    def status(self, status: PoolStatus) -> None:
        """Reports a change of status."""
        ...


class ClusterPool:
    """Runs tasks on the workers of a cluster; see `WorkerPool`. A context manager.

    Args:
        connect: opens a transport, also after one has ended. Raises `DeviceError` if that is impossible.
        path: the profile database for all measurements; None for one in memory.
    """

    n_spare = 1

    def __init__(
        self,
        connect: Callable[[], Transport],
        path: Path | None,
        observer: PoolObserver,
        timeouts: Timeouts | None = None,
    ) -> None:
        self._connect, self._observer = connect, observer
        self._timeouts = timeouts or Timeouts()
        self._writer, self._log = RowWriter(path), RowLog()
        self._slots = WorkerSlots(self._send, self._observer.note)
        self._tasks = TaskRegistry(self._timeouts, self._message, self._unseen)
        self._ends: list[tuple[int, Callable[[], None]]] = []  # (row count to wait for, action)
        self._removals: list[tuple[float, Callable[[float], None]]] = []  # (time, action)
        self._transport: Transport | None = None
        self._events: deque[transport.Event] = deque()
        self._connect_at_s = self._next_period_s = 0.0
        self._reconnect_s = self._timeouts.reconnect_s
        self._unserved_since: dict[str, float] = {}
        self._problem = ""
        self._longest_stage_s = 0.0
        self._status = PoolStatus()

    def __enter__(self) -> ClusterPool:
        """Waits for the list of the cluster's devices.

        Raises:
            DeviceError: the cluster cannot be reached.
        """
        try:
            while not self._slots.is_known:
                self._step(_STEP_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def target(self, text: str, profile_db: Path | None = None, *, may_simulate: bool = True) -> Target:
        """Resolves the value of `--device`. "auto" prefers a GPU; CPUs simulate a GPU that the cluster does not have.

        Raises:
            UsageError: the cluster has no such device and cannot simulate it.
        """
        there = sorted(self._slots.devices, key=lambda device: (device == "cpu", device))
        wanted, gpu = text.strip().lower(), gpu_named(text)
        if wanted == "auto" and there:
            wanted = there[0]
        elif gpu is not None and gpu.key in there:
            wanted = gpu.key
        elif may_simulate and gpu is not None and "cpu" in there:
            return Target(gpu.key, gpu.key, "cpu", is_remote=True, rows=_rows_of_gpus(profile_db))
        if wanted in there:
            return Target(wanted, wanted, wanted, is_remote=True)
        has = ", ".join(there) or "no device at all"
        raise UsageError(f"the cluster has no device {text!r}: it has {has}")

    def count(self, device: str) -> int:
        """Returns the maximum number of workers for a device."""
        return self._slots.count(device)

    def n_up(self, devices: Iterable[str]) -> int:
        """Returns the largest number of running workers of any of these devices; at least 1."""
        up = [active.facts.device for active in self._slots.active.values()]
        return max((up.count(device) for device in devices), default=0) or 1

    def budget(self, seconds: float | None) -> JobBudget | None:
        """Creates a job's budget, which starts when the first worker has a model open."""
        return None if seconds is None else JobBudget(seconds)

    def status(self) -> PoolStatus:
        """Returns the current status, or the last one after `close`."""
        return self._status

    def submit(self, task: Task[R]) -> Pending[R]:
        """Queues a task for a worker.

        The task may end with an error: the worker's own; `ExecutionError` if too many workers were lost with it, or its
        budget is exceeded; `DeviceLostError` if all workers of the device were lost; `DeviceError` if none ever
        started; `InterruptedTaskError` if it was stopped.

        Raises:
            UsageError: the model is too large to be sent.
        """
        self._slots.wanted.add(task.device)
        self._next_period_s = 0.0
        return self._tasks.submit(task)

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Stops a task. A task that has not started ends at once, without a result."""
        self._tasks.stop(pending, how)

    def wait(self, pending: Sequence[Pending[Any]], timeout_s: float = POLL_S) -> None:
        """Processes messages until one of these tasks is done, for at most `timeout_s`.

        Raises:
            DeviceError: the cluster cannot be reached.
            IoschedError: rows can never be written to the database.
        """
        until = time.monotonic() + timeout_s
        self._step(0.0)
        while not any(each.is_done for each in pending) and (left_s := until - time.monotonic()) > 0:
            self._step(min(left_s, _STEP_S))

    def close(self) -> None:
        """Stops all workers and waits until all rows are written. Idempotent.

        Raises:
            IoschedError: some rows could not be written to the database.
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
        """Writes rows that arrived as the pool was closed."""
        with suppress(ExecutionError):
            said = messages.worker_message(event.message)
            if isinstance(said, Measured) and event.worker in self._slots.active:
                self._writer.add(self._log.add(said.rows, event.worker))

    def _step(self, wait_s: float) -> None:
        """Processes events, waiting up to `wait_s` for one; then assigns tasks and writes rows."""
        if self._transport is None:
            self._open_transport(wait_s)
        if self._transport is not None:
            self._events += self._transport.receive(0.0 if self._events else wait_s)
        while self._events:  # also those that were left when the user interrupted
            self._handle(self._events.popleft(), time.monotonic())
        now_s = time.monotonic()
        is_due = now_s >= self._next_period_s
        if is_due:
            self._next_period_s = now_s + _PERIOD_S
            self._run_periodic(now_s)
        self._tasks.end_budgets(now_s, self._longest_stage_s, self._slots.why)
        self._tasks.give(self._slots.active, now_s)
        if is_due and (status := self._now()) != self._status:
            self._status = status
            self._observer.status(status)
        self._write()

    def _open_transport(self, wait_s: float) -> None:
        """Opens a transport, with a delay after each failure."""
        now_s = time.monotonic()
        if now_s < self._connect_at_s:
            time.sleep(min(wait_s, self._connect_at_s - now_s))
            return
        self._connect_at_s = now_s + self._reconnect_s
        self._reconnect_s = min(2 * self._reconnect_s, _MAX_RECONNECT_S)
        try:
            self._transport = self._connect()
        except IoschedError as error:
            if not self._slots.is_known:
                raise
            self._observer.note(f"the cluster is not reached: {error}")

    def _handle(self, event: transport.Event, now_s: float) -> None:
        match event:
            case Places(places):
                self._reconnect_s = self._timeouts.reconnect_s
                self._slots.change(places)
                self._next_period_s = 0.0
            case Lost(worker, reason, has_ended):
                self._slots.lost(worker, reason, now_s)
                self._remove(worker, now_s, reason, is_blamed=True, has_ended=has_ended)
            case Unreached(reason, has_ended):
                self._disconnect(reason, now_s, has_ended=has_ended)
            case Said(worker, message):
                try:
                    self._receive(worker, messages.worker_message(message), now_s)
                except ExecutionError as error:
                    self._slots.refuse(worker, f"it says what is not understood here: {error}")
                    self._remove(worker, now_s, "it sent an invalid message")

    def _receive(self, worker: str, said: messages.WorkerMessage, now_s: float) -> None:
        active = self._slots.active.get(worker)
        if isinstance(said, Facts):
            self._add_worker(worker, said, now_s)
        elif isinstance(said, Unusable):
            self._send(transport.Stop(worker))
            self._slots.lost(worker, said.reason, now_s)
            self._remove(worker, now_s, said.reason, is_blamed=True, has_ended=True)
        elif active is not None:
            stage_s, active.heard_s = now_s - active.heard_s, now_s
            if isinstance(said, Measured):
                self._longest_stage_s = max(self._longest_stage_s, stage_s)
                self._writer.add(self._log.add(said.rows, worker))
                active.measured(said.rows)
            elif isinstance(said, Done | Failed):
                active.done += 1
                self._slots.proved(worker)
                if (end := self._tasks.take(said, worker, now_s)) is not None:
                    self._ends.append((self._writer.n_added, end))
            else:
                self._tasks.report(said, worker, active.facts.key, now_s)

    def _add_worker(self, worker: str, facts: Facts, now_s: float) -> None:
        """Adds a worker that has described itself, if it is usable."""
        active = self._slots.arrive(worker, facts, now_s)
        if active is None:
            return
        self._log.begin(family_of(facts.key), self._writer.all_rows)
        self._writer.add(self._log.add(facts.yardstick, None))
        side = "cpu" if facts.device == "cpu" else "gpu"
        self._tasks.scheduler.join(ScheduledWorker(worker, (facts.device, facts.key), active.place.node, side))

    def _disconnect(self, reason: str, now_s: float, *, has_ended: bool) -> None:
        """Handles the end of the transport. All workers are lost, without blame for their tasks."""
        assert self._transport is not None
        self._transport.close()
        self._transport = None
        for worker in list(self._slots.active):
            self._remove(worker, now_s, reason, has_ended=has_ended)
        self._slots.clear()
        if not self._slots.is_known:
            raise DeviceError(reason)
        self._connect_at_s = now_s + self._reconnect_s
        self._observer.note(f"the cluster is not reached any more ({reason}); trying again")

    def _remove(
        self, worker: str, now_s: float, reason: str, *, is_blamed: bool = False, has_ended: bool = False
    ) -> None:
        """Reassigns a worker's tasks; a score command only after its processes have had time to end."""
        self._slots.active.pop(worker, None)
        leave = partial(self._tasks.leave, worker, reason=reason, is_blamed=is_blamed, has_ended=has_ended)
        if has_ended and self._tasks.scores_on(worker):
            self._removals.append((now_s + self._timeouts.ending_s, leave))
        else:
            leave(now_s)

    def _run_periodic(self, now_s: float) -> None:
        """Starts workers, reassigns late tasks, and fails tasks that have waited too long."""
        due = [leave for when_s, leave in self._removals if when_s <= now_s]
        self._removals = [each for each in self._removals if each[0] > now_s]
        for leave in due:
            leave(now_s)
        for worker in self._slots.give_up_noisy(now_s):
            self._remove(worker, now_s, "its machine is noisy")
        self._slots.start(now_s)
        for call in self._tasks.scheduler.late(now_s):
            self._observer.note(f"{call.worker} takes long for {what_of(call)}: another is asked, too")
        self._give_up(now_s)

    def _give_up(self, now_s: float) -> None:
        served = {active.facts.device for active in self._slots.active.values()}
        without = {each.task.device for each in self._tasks.submitted} - served
        self._unserved_since = {device: self._unserved_since.get(device, now_s) for device in without}
        for each in self._tasks.submitted:
            device = each.task.device
            if now_s - self._unserved_since.get(device, now_s) >= self._timeouts.without_s:
                self._tasks.fail(each, self._slots.no_worker(device, self._timeouts.without_s))

    def _unseen(self, worker: str) -> messages.Rows:
        return self._log.unseen(worker, family_of(self._slots.active[worker].facts.key))

    def _write(self) -> None:
        problem = self._writer.step()
        if problem is not None and problem != self._problem:
            self._problem = problem
            self._observer.note(f"{problem.splitlines()[0]} Nothing is lost: it is tried again.")
        while self._ends and self._ends[0][0] <= self._writer.n_written:
            self._ends.pop(0)[1]()

    def _message(self, call: Assignment, message: messages.DriverMessage, model: str | None) -> None:
        self._send(Send(call.worker, messages.encoded(message), model))

    def _send(self, command: transport.Command) -> None:
        if self._transport is not None:
            self._transport.send(command)

    def _now(self) -> PoolStatus:
        workers = tuple(
            WorkerStatus(name, active.place.address, active.facts.device, self._tasks.doing(name), active.done)
            for name, active in self._slots.active.items()
        )
        return PoolStatus(workers, self._tasks.scheduler.waiting(), self._tasks.n_done, tuple(self._slots.losses))


def cluster_pool(cluster: str, profile_db: Path | None, threads: int | None, observer: PoolObserver) -> ClusterPool:
    """Creates the pool of a cluster. Entering the pool connects to the cluster; leaving it stops the workers.

    Args:
        profile_db: the profile database for all measurements; by default the user's.
        threads: threads per CPU worker of a local cluster; None for as many as possible.

    Raises:
        UsageError: `cluster` is invalid, or the file is not a profile database.
    """
    wanted = parse_cluster(cluster)
    return ClusterPool(lambda: RayTransport(wanted, threads), profile_db or default_path(), observer)


def _rows_of_gpus(profile_db: Path | None) -> messages.Rows:
    path = profile_db or default_path()
    if path is None or not path_exists(path):
        return ()
    with ProfileDatabase(path) as database:
        return tuple(filter(is_of_gpu, database.rows()))
