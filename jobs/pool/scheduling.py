"""Assigns tasks to workers, reassigns lost or late tasks, and accepts one answer per task.

A state machine without a clock, threads or network: the caller reports events with their times and carries out the
returned decisions. Times may be simulated (`benchmarks/fleet_simulation.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.task_queue import QueuedTask, TaskQueue
from iosched.jobs.pool.timeouts import Durations, Timeouts

_ASKED, _SUBMITTED = 0, 1
"""Priorities of the queues: questions of running searches precede submitted tasks."""


@dataclass(eq=False)
class Assignment:
    """Tasks that a worker runs in order.

    Attributes:
        number: unique per scheduler.
        sign_s: when the worker last started, answered or resumed.
        open: unanswered tasks by name, in order.
        spent_s: time spent on the current task before the worker last waited.
        is_late: whether other workers may run its tasks too.
        waits_for: names of the tasks that the worker waits for.
    """

    number: int
    worker: str
    tasks: tuple[QueuedTask, ...]
    sign_s: float
    open: dict[int, QueuedTask] = field(init=False)
    spent_s: float = 0.0
    is_late: bool = False
    waits_for: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open = {task.name: task for task in self.tasks}

    def took_s(self, now_s: float) -> float:
        """Returns the time spent on the current task, without waiting."""
        return self.spent_s + (0.0 if self.waits_for else now_s - self.sign_s)


@dataclass(frozen=True)
class Decisions:
    """The caller's next actions after an answer, a lost worker, or the end of an assignment.

    Attributes:
        is_first: whether an answer counts; later answers and answers to withdrawn tasks do not.
        superfluous: assignments of other workers whose answers are no longer needed.
        failed: tasks that were lost with too many workers; they get no other answer. Other lost tasks are queued again.
        resumed: assignments whose wait for their questions has ended.
    """

    is_first: bool = False
    superfluous: tuple[Assignment, ...] = ()
    failed: tuple[QueuedTask, ...] = ()
    resumed: tuple[Assignment, ...] = ()


@dataclass(eq=False)
class ScheduledWorker:
    """A running worker.

    Attributes:
        devices: the name of its device, and the device key of its measurements.
        side: "cpu" or "gpu". Workers of one machine on different sides never work at the same time, since launching
            kernels and building plans needs processors.
        job: its assignment.
        packet: the packet that it runs while its job waits.
        group: the group of its latest tasks, whose model may still be open.
    """

    name: str
    devices: tuple[str, ...]
    node: str
    side: str = "cpu"
    job: Assignment | None = field(default=None, init=False)
    packet: Assignment | None = field(default=None, init=False)
    group: str = field(default="", init=False)

    @property
    def is_free(self) -> bool:
        """Whether it has no assignment."""
        return self.job is None and self.packet is None

    @property
    def is_waiting(self) -> bool:
        """Whether its job waits for answers, and it has no packet."""
        return self.job is not None and bool(self.job.waits_for) and self.packet is None


@dataclass(eq=False)
class _DeviceLock:
    """Gives one side of a machine its turn."""

    side: str
    since_s: float
    holders: int = 0


class Scheduler:
    """Assigns tasks to workers. Times are seconds of any monotonic clock.

    Each submitted task gets exactly one answer (`answered` or `Decisions.failed`) unless it is withdrawn, provided that
    some worker of its device keeps working. A worker has one assignment. While its job waits for a round of questions,
    the worker also runs packets of questions, including those of its own job, so jobs cannot deadlock.

    Attributes:
        tasks: the unanswered tasks by name.
        assignments: the assignments that have not ended, by number.
    """

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self.tasks: dict[int, QueuedTask] = {}
        self.assignments: dict[int, Assignment] = {}
        self._timeouts = timeouts or Timeouts()
        self._durations = Durations()
        self._workers: dict[str, ScheduledWorker] = {}
        self._idle: dict[str, ScheduledWorker] = {}  # free or waiting, the longest idle first
        self._locks: dict[str, _DeviceLock] = {}
        self._queues: dict[tuple[int, str], TaskQueue] = {}
        self._n_assigned = 0

    def submit(self, tasks: Iterable[QueuedTask]) -> None:
        """Queues tasks. Questions of one assignment and group start a new round."""
        for task in tasks:
            self.tasks[task.name] = task
            self._queue(task).add(task)

    def withdraw(self, name: int) -> tuple[Assignment, ...]:
        """Removes a task; returns the assignments that are no longer needed."""
        task = self.tasks.get(name)
        return () if task is None else self._close(task)

    def join(self, worker: ScheduledWorker) -> None:
        """Adds a worker."""
        self._workers[worker.name] = self._idle[worker.name] = worker

    def leave(self, worker: str, now_s: float, *, is_blamed: bool) -> Decisions:
        """Removes a worker and queues its tasks again.

        Args:
            is_blamed: whether the current task may have caused the loss. A task that is blamed too often fails.
        """
        left = self._workers.pop(worker, None)
        if left is None:
            return Decisions()
        self._durations.forget(worker)
        self._idle.pop(worker, None)
        if not left.is_free:
            self._locks[left.node].holders -= 1
        held = [assignment for assignment in (left.job, left.packet) if assignment is not None]
        return self._dropped(held, now_s, is_blamed=is_blamed)

    def assign(self, now_s: float) -> Iterator[Assignment]:
        """Yields assignments for idle and waiting workers; questions take precedence over submitted tasks."""
        for (rank, device), backlog in sorted(each for each in self._queues.items() if each[1]):
            for worker in self._candidates(device, backlog.groups if rank == _ASKED else None):
                if not backlog:
                    break
                if worker.job is not None or self._may_begin(worker, now_s):
                    yield self._begin(worker, device, backlog, now_s)

    def wait_for(self, number: int, tasks: Sequence[QueuedTask], now_s: float) -> None:
        """Suspends an assignment until `tasks` are answered. Their `asker` is its number; see `Decisions.resumed`."""
        assignment = self.assignments.get(number)
        if assignment is None or not assignment.open or not tasks:
            return
        assignment.spent_s = assignment.took_s(now_s)
        assignment.waits_for |= {task.name for task in tasks}
        worker = self._workers[assignment.worker]
        worker.group = tasks[0].group
        self._place(worker)
        self.submit(tasks)

    def answered(self, number: int, name: int, now_s: float) -> Decisions:
        """Records the answer to a task. The assignment may have ended, or other workers may have the task too."""
        assignment = self.assignments.get(number)
        if assignment is not None and (done := assignment.open.pop(name, None)) is not None:
            self._durations.add(done, assignment.took_s(now_s), assignment.worker)
            assignment.sign_s, assignment.spent_s = now_s, 0.0
        if (task := self.tasks.get(name)) is None:
            return Decisions()
        task.holders.discard(number)
        superfluous = self._close(task)
        for late in superfluous:  # raises the deadline of a slow worker, which might never finish otherwise
            self._durations.took_at_least(task, late.took_s(now_s), late.worker)
        return Decisions(True, superfluous, resumed=self._resumed([task], now_s))

    def ended(self, number: int, now_s: float) -> Decisions:
        """Ends an assignment. Its unanswered tasks are queued again as if they were lost."""
        assignment = self.assignments.get(number)
        if assignment is None:
            return Decisions()
        worker = self._workers[assignment.worker]
        if worker.job is assignment:
            worker.job = None
        else:
            worker.packet = None
        if worker.is_free:
            self._locks[worker.node].holders -= 1
        self._place(worker)
        return self._dropped([assignment], now_s, is_blamed=True)

    def late(self, now_s: float) -> tuple[Assignment, ...]:
        """Queues the tasks of late assignments again; returns those assignments. O(assignments)."""
        free = {device for worker in self._idle.values() if worker.is_free for device in worker.devices}
        found = tuple(each for each in self.assignments.values() if self._deadline_s(each, free) <= now_s)
        for assignment in found:
            assignment.is_late = True
            for task in assignment.open.values():
                task.delays += 1
            self._give_back(assignment.open.values())
        return found

    def waiting(self) -> int:
        """Returns the number of queued tasks, including late tasks that are queued again."""
        return sum(map(len, self._queues.values()))

    def _queue(self, task: QueuedTask) -> TaskQueue:
        rank = _SUBMITTED if task.asker is None else _ASKED
        return self._queues.setdefault((rank, task.device), TaskQueue())

    def _candidates(self, device: str, asked: Iterable[str] | None) -> list[ScheduledWorker]:
        """Returns workers that may run tasks of a device. For questions, workers with an open group come first."""
        idle = [worker for worker in self._idle.values() if device in worker.devices]
        free = [worker for worker in idle if worker.is_free]
        if asked is None:
            return free
        waiting = [worker for worker in idle if worker.is_waiting]
        ready = [worker for worker in free if worker.group in asked]
        return [*ready, *waiting, *(worker for worker in free if worker.group not in asked)]

    def _may_begin(self, worker: ScheduledWorker, now_s: float) -> bool:
        """Whether the worker's side may use its machine. After its turn, a side yields to one that waits."""
        lock = self._locks.get(worker.node)
        if lock is None or (lock.side == worker.side and not self._is_over(lock, now_s)):
            return True
        if lock.side != worker.side:
            return lock.holders == 0
        return not any(
            other.node == worker.node and other.side != worker.side and other.is_free and self._has_work(other)
            for other in self._idle.values()
        )

    def _is_over(self, lock: _DeviceLock, now_s: float) -> bool:
        return now_s - lock.since_s >= self._timeouts.turn_s

    def _has_work(self, worker: ScheduledWorker) -> bool:
        return any(backlog and device in worker.devices for (_, device), backlog in self._queues.items())

    def _begin(self, worker: ScheduledWorker, device: str, backlog: TaskQueue, now_s: float) -> Assignment:
        n_workers = sum(device in each.devices for each in self._workers.values())
        tasks = backlog.take(n_workers, worker.group)
        self._n_assigned += 1
        assignment = Assignment(self._n_assigned, worker.name, tasks, now_s)
        self.assignments[assignment.number] = assignment
        for task in tasks:
            task.holders.add(assignment.number)
        if worker.job is None:
            worker.job = assignment
            self._acquire_lock(worker, now_s)
        else:
            worker.packet = assignment
        worker.group = tasks[0].group
        self._place(worker)
        return assignment

    def _acquire_lock(self, worker: ScheduledWorker, now_s: float) -> None:
        lock = self._locks.get(worker.node)
        if lock is None or lock.side != worker.side or self._is_over(lock, now_s):
            lock = self._locks[worker.node] = _DeviceLock(worker.side, now_s, lock.holders if lock else 0)
        lock.holders += 1

    def _place(self, worker: ScheduledWorker) -> None:
        self._idle.pop(worker.name, None)
        if worker.is_free or worker.is_waiting:
            self._idle[worker.name] = worker

    def _close(self, task: QueuedTask) -> tuple[Assignment, ...]:
        """Removes a task; returns the assignments that have no other task left."""
        del self.tasks[task.name]
        self._queue(task).remove(task)
        holders = [self.assignments[number] for number in sorted(task.holders)]
        for assignment in holders:
            del assignment.open[task.name]
        over = tuple(assignment for assignment in holders if not assignment.open)
        for assignment in over:
            self._withdraw_questions(assignment)
        return over

    def _withdraw_questions(self, assignment: Assignment) -> None:
        asked, assignment.waits_for = sorted(assignment.waits_for), set()
        for name in asked:
            self._close(self.tasks[name])

    def _resumed(self, answered: Iterable[QueuedTask], now_s: float) -> tuple[Assignment, ...]:
        """Returns the assignments whose wait ended with the answers to these questions."""
        found = []
        for task in answered:
            asker = None if task.asker is None else self.assignments.get(task.asker)
            if asker is not None and task.name in asker.waits_for:
                asker.waits_for.discard(task.name)
                if not asker.waits_for:
                    asker.sign_s = now_s
                    found.append(asker)
        return tuple(found)

    def _dropped(self, assignments: Iterable[Assignment], now_s: float, *, is_blamed: bool) -> Decisions:
        """Handles the unanswered tasks of ended assignments, of which the first was running."""
        failed = list[QueuedTask]()
        for assignment in assignments:
            del self.assignments[assignment.number]
            self._withdraw_questions(assignment)
            tasks = list(assignment.open.values())
            for task in tasks:
                task.holders.discard(assignment.number)
            for task in tasks[:1] if is_blamed else ():
                task.losses += 1
            lost = [task for task in tasks if task.losses >= self._timeouts.losses and not task.holders]
            self._give_back([task for task in tasks if task not in lost])
            for task in lost:
                self._close(task)
            failed += lost
        return Decisions(failed=tuple(failed), resumed=self._resumed(failed, now_s))

    def _give_back(self, tasks: Iterable[QueuedTask]) -> None:
        """Puts tasks at the front of their queues unless an assignment that is not late has them."""
        for task in reversed(list(tasks)):
            if all(self.assignments[number].is_late for number in task.holders):
                self._queue(task).put_back(task)

    def _deadline_s(self, assignment: Assignment, free: Collection[str]) -> float:
        """Returns when an assignment is late; never if it already is, waits, or may not run twice.

        Args:
            free: devices with an idle worker; without one, a slow worker has more time.
        """
        tasks = list(assignment.open.values())
        if assignment.is_late or assignment.waits_for or not tasks or not tasks[0].is_repeatable:
            return float("inf")
        slowness = 1.0 if tasks[0].device in free else self._durations.slowness(assignment.worker)
        each_s = self._durations.late_s(tasks[0], self._timeouts, slowness)
        return assignment.sign_s - assignment.spent_s + each_s * len(tasks) * 2.0 ** max(task.delays for task in tasks)
