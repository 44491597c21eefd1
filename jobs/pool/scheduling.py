"""Assigns tasks to workers, reassigns lost or late tasks, and accepts one answer per task.

A state machine without a clock, threads or network: the caller reports events with their times and carries out the
returned decisions. Times may be simulated (`benchmarks/fleet_simulation.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.task_queue import QueuedTask, TaskQueue
from iosched.jobs.pool.timeouts import Durations, Timeouts

_ASKED, _SUBMITTED = 0, 1
"""Priorities of the queues: questions of running searches precede submitted tasks."""


@dataclass(frozen=True)
class WorkerInfo:
    """A worker as the scheduler sees it.

    Attributes:
        devices: the name of its device, and the device key of its measurements.
        side: "cpu" or "gpu". Workers of one machine on different sides never work at the same time, since launching
            kernels and building plans needs processors.
    """

    name: str
    devices: tuple[str, ...]
    node: str
    side: str = "cpu"


@dataclass(frozen=True)
class Assignment:
    """Tasks that a worker runs in order."""

    number: int
    worker: str
    tasks: tuple[QueuedTask, ...]


@dataclass(frozen=True)
class Answer:
    """The outcome of an answer.

    Attributes:
        is_first: whether the answer counts; later answers and answers to withdrawn tasks do not.
        superfluous: assignments of other workers whose answers are no longer needed.
        resumed: the assignment whose wait ended with this answer.
    """

    is_first: bool
    superfluous: tuple[Assignment, ...] = ()
    resumed: Assignment | None = None


@dataclass(frozen=True)
class Loss:
    """The outcome of unanswered tasks. They are queued again, except those in `failed`.

    Attributes:
        failed: tasks that were lost with too many workers; they get no other answer.
        resumed: assignments whose wait ended because their remaining questions failed.
    """

    failed: tuple[QueuedTask, ...] = ()
    resumed: tuple[Assignment, ...] = ()


@dataclass(eq=False)
class _ActiveAssignment:
    """An assignment that has not ended.

    Attributes:
        open: unanswered tasks by name, in order.
        sign_s: when the worker last started, answered or resumed.
        spent_s: time spent on the current task before the worker last waited.
        is_late: whether other workers may run its tasks too.
        waits_for: names of the tasks that the worker waits for.
    """

    assignment: Assignment
    open: dict[int, QueuedTask]
    sign_s: float
    spent_s: float = 0.0
    is_late: bool = False
    waits_for: set[int] = field(default_factory=set)

    def took_s(self, now_s: float) -> float:
        """Returns the time spent on the current task, without waiting."""
        return self.spent_s + (0.0 if self.waits_for else now_s - self.sign_s)


@dataclass(eq=False)
class _TaskState:
    """An unanswered task; `holders` are the numbers of its assignments."""

    task: QueuedTask
    holders: set[int] = field(default_factory=set)
    losses: int = 0
    delays: int = 0


@dataclass(eq=False)
class _Worker:
    """A running worker.

    Attributes:
        packet: the packet that it runs while its job waits.
        group: the group of its latest tasks, whose model may still be open.
    """

    info: WorkerInfo
    job: _ActiveAssignment | None = None
    packet: _ActiveAssignment | None = None
    group: str = ""

    @property
    def is_free(self) -> bool:
        return self.job is None and self.packet is None

    @property
    def is_waiting(self) -> bool:
        return self.job is not None and bool(self.job.waits_for) and self.packet is None


@dataclass(eq=False)
class _DeviceLock:
    """Gives one side of a machine its turn."""

    side: str
    since_s: float
    holders: int = 0


class Scheduler:
    """Assigns tasks to workers. Times are seconds of any monotonic clock.

    Each submitted task gets exactly one answer (`answered` or `Loss.failed`) unless it is withdrawn, provided that some
    worker of its device keeps working. A worker has one assignment. While its job waits for a round of questions, the
    worker also runs packets of questions, including those of its own job, so jobs cannot deadlock.
    """

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._durations = Durations()
        self._workers: dict[str, _Worker] = {}
        self._free: dict[str, dict[str, _Worker]] = {}  # by device, longest idle first
        self._idle: dict[str, dict[str, _Worker]] = {}  # workers whose job waits, without a packet
        self._serving: Counter[str] = Counter()
        self._locks: dict[str, _DeviceLock] = {}
        self._queues: dict[tuple[int, str], TaskQueue] = {}
        self._states: dict[int, _TaskState] = {}
        self._active: dict[int, _ActiveAssignment] = {}
        self._blamed: set[int] = set()  # lost tasks; each is assigned alone, so that it cannot fail others
        self._n_assigned = 0

    def submit(self, tasks: Iterable[QueuedTask]) -> None:
        """Queues tasks. Questions of one assignment and group start a new round."""
        for task in tasks:
            self._states[task.name] = _TaskState(task)
            self._queue(task).add(task)

    def withdraw(self, name: int) -> tuple[Assignment, ...]:
        """Removes a task; returns the assignments that are no longer needed."""
        state = self._states.get(name)
        return () if state is None else self._close(state)

    def join(self, info: WorkerInfo) -> None:
        """Adds a worker."""
        worker = self._workers[info.name] = _Worker(info)
        self._serving.update(info.devices)
        self._place(worker)

    def leave(self, worker: str, now_s: float, *, is_blamed: bool) -> Loss:
        """Removes a worker and queues its tasks again.

        Args:
            is_blamed: whether the current task may have caused the loss. A task that is blamed too often fails.
        """
        left = self._workers.pop(worker, None)
        if left is None:
            return Loss()
        self._durations.forget(worker)
        self._serving.subtract(left.info.devices)
        for device in left.info.devices:
            self._free[device].pop(worker, None)
            self._idle[device].pop(worker, None)
        if not left.is_free:
            self._locks[left.info.node].holders -= 1
        failed, resumed = list[QueuedTask](), list[Assignment]()
        for active in (left.job, left.packet):
            if active is not None:
                del self._active[active.assignment.number]
                loss = self._dropped(active, now_s, is_blamed=is_blamed)
                failed += loss.failed
                resumed += loss.resumed
        return Loss(tuple(failed), tuple(resumed))

    def assign(self, now_s: float) -> Iterator[Assignment]:
        """Yields assignments for idle and waiting workers; questions take precedence over submitted tasks."""
        for (rank, device), backlog in sorted(each for each in self._queues.items() if each[1]):
            for worker in self._candidates(device, backlog.groups if rank == _ASKED else None):
                if not backlog:
                    break
                if worker.job is not None or self._may_begin(worker, now_s):
                    yield self._begin(worker, device, backlog, now_s)

    def wait_for(self, number: int, tasks: Sequence[QueuedTask], now_s: float) -> None:
        """Suspends an assignment until `tasks` are answered. Their `asker` is its number; see `Answer.resumed`."""
        active = self._active.get(number)
        if active is None or not active.open or not tasks:
            return
        active.spent_s = active.took_s(now_s)
        active.waits_for |= {task.name for task in tasks}
        worker = self._workers[active.assignment.worker]
        worker.group = tasks[0].group
        self._place(worker)
        self.submit(tasks)

    def answered(self, number: int, task: int, now_s: float) -> Answer:
        """Records the answer to a task. The assignment may have ended, or other workers may have the task too."""
        if (active := self._active.get(number)) is not None and (done := active.open.pop(task, None)) is not None:
            self._durations.add(done, active.took_s(now_s), active.assignment.worker)
            active.sign_s, active.spent_s = now_s, 0.0
        if (state := self._states.get(task)) is None:
            return Answer(is_first=False)
        state.holders.discard(number)
        superfluous = self._close(state)
        for each in superfluous:  # raises the deadline of a slow worker, which might never finish otherwise
            late = self._active[each.number]
            self._durations.took_at_least(state.task, late.took_s(now_s), each.worker)
        return Answer(True, superfluous, self._resumed(state.task, now_s))

    def ended(self, number: int, now_s: float) -> Loss:
        """Ends an assignment. Its unanswered tasks are queued again as if they were lost."""
        active = self._active.pop(number, None)
        if active is None:
            return Loss()
        worker = self._workers[active.assignment.worker]
        worker.job = None if worker.job is active else worker.job
        worker.packet = None if worker.packet is active else worker.packet
        if worker.is_free:
            self._locks[worker.info.node].holders -= 1
        self._place(worker)
        return self._dropped(active, now_s, is_blamed=True)

    def late(self, now_s: float) -> tuple[Assignment, ...]:
        """Queues the tasks of late assignments again; returns those assignments. O(assignments)."""
        found = [active for active in self._active.values() if self._deadline_s(active) <= now_s]
        for active in found:
            active.is_late = True
            for state in self._open_states(active):
                state.delays += 1
            self._give_back(self._open_states(active))
        return tuple(active.assignment for active in found)

    def assignments(self) -> tuple[Assignment, ...]:
        """Returns the assignments that have not ended."""
        return tuple(active.assignment for active in self._active.values())

    def waiting(self) -> int:
        """Returns the number of queued tasks, including late tasks that are queued again."""
        return sum(map(len, self._queues.values()))

    def unanswered(self) -> tuple[QueuedTask, ...]:
        """Returns the unanswered tasks."""
        return tuple(state.task for state in self._states.values())

    def _queue(self, task: QueuedTask) -> TaskQueue:
        rank = _SUBMITTED if task.asker is None else _ASKED
        return self._queues.setdefault((rank, task.device), TaskQueue())

    def _candidates(self, device: str, asked: Iterable[str] | None) -> tuple[_Worker, ...]:
        """Returns workers that may run tasks of a device. For questions, workers with an open group come first."""
        free = tuple(self._free.get(device, {}).values())
        if asked is None:
            return free
        is_open = [worker.group in asked for worker in free]
        ready = tuple(worker for worker, is_ready in zip(free, is_open, strict=True) if is_ready)
        others = tuple(worker for worker, is_ready in zip(free, is_open, strict=True) if not is_ready)
        return (*ready, *self._idle.get(device, {}).values(), *others)

    def _may_begin(self, worker: _Worker, now_s: float) -> bool:
        """Whether the worker's side may use its machine. After its turn, a side yields to one that waits."""
        info, lock = worker.info, self._locks.get(worker.info.node)
        if lock is None or (lock.side == info.side and not self._is_over(lock, now_s)):
            return True
        if lock.side != info.side:
            return lock.holders == 0
        return not any(
            other.info.node == info.node and other.info.side != info.side and other.is_free and self._has_work(other)
            for other in self._workers.values()
        )

    def _is_over(self, lock: _DeviceLock, now_s: float) -> bool:
        return now_s - lock.since_s >= self._timeouts.turn_s

    def _has_work(self, worker: _Worker) -> bool:
        return any(backlog and device in worker.info.devices for (_, device), backlog in self._queues.items())

    def _begin(self, worker: _Worker, device: str, backlog: TaskQueue, now_s: float) -> Assignment:
        tasks = backlog.take(self._serving[device], self._blamed, worker.group)
        self._n_assigned += 1
        assignment = Assignment(self._n_assigned, worker.info.name, tasks)
        active = _ActiveAssignment(assignment, {task.name: task for task in tasks}, now_s)
        self._active[assignment.number] = active
        for task in tasks:
            self._states[task.name].holders.add(assignment.number)
        if worker.job is None:
            worker.job = active
            self._acquire_lock(worker.info, now_s)
        else:
            worker.packet = active
        worker.group = tasks[0].group
        self._place(worker)
        return assignment

    def _acquire_lock(self, info: WorkerInfo, now_s: float) -> None:
        lock = self._locks.get(info.node)
        if lock is None or lock.side != info.side or self._is_over(lock, now_s):
            lock = self._locks[info.node] = _DeviceLock(info.side, now_s, lock.holders if lock else 0)
        lock.holders += 1

    def _place(self, worker: _Worker) -> None:
        for among, belongs in ((self._free, worker.is_free), (self._idle, worker.is_waiting)):
            for device in worker.info.devices:
                workers = among.setdefault(device, {})
                if belongs:
                    workers.setdefault(worker.info.name, worker)
                else:
                    workers.pop(worker.info.name, None)

    def _close(self, state: _TaskState) -> tuple[Assignment, ...]:
        task = state.task
        del self._states[task.name]
        self._blamed.discard(task.name)
        self._queue(task).remove(task)
        for number in state.holders:
            del self._active[number].open[task.name]
        over = [self._active[number] for number in sorted(state.holders) if not self._active[number].open]
        for active in over:
            self._withdraw_questions(active)
        return tuple(active.assignment for active in over)

    def _withdraw_questions(self, active: _ActiveAssignment) -> None:
        asked, active.waits_for = sorted(active.waits_for), set()
        for name in asked:
            self._close(self._states[name])
        if asked and active.assignment.worker in self._workers:
            self._place(self._workers[active.assignment.worker])

    def _resumed(self, task: QueuedTask, now_s: float) -> Assignment | None:
        """Returns the assignment whose wait ended with the answer to `task`."""
        asker = self._active.get(task.asker) if task.asker is not None else None
        if asker is None or task.name not in asker.waits_for:
            return None
        asker.waits_for.discard(task.name)
        if asker.waits_for:
            return None
        asker.sign_s = now_s
        self._place(self._workers[asker.assignment.worker])
        return asker.assignment

    def _dropped(self, active: _ActiveAssignment, now_s: float, *, is_blamed: bool) -> Loss:
        """Handles the unanswered tasks of an ended assignment, of which the first was running."""
        self._withdraw_questions(active)
        states = self._open_states(active)
        for state in states:
            state.holders.discard(active.assignment.number)
        for state in states[:1] if is_blamed else ():
            state.losses += 1
            self._blamed.add(state.task.name)
        failed = [each for each in states if each.losses >= self._timeouts.losses and not each.holders]
        self._give_back([state for state in states if state not in failed])
        for state in failed:
            self._close(state)
        resumed = [each for state in failed if (each := self._resumed(state.task, now_s)) is not None]
        return Loss(tuple(state.task for state in failed), tuple(resumed))

    def _give_back(self, states: Sequence[_TaskState]) -> None:
        """Puts tasks at the front of their queues unless an assignment that is not late has them."""
        for state in reversed(states):
            if all(self._active[number].is_late for number in state.holders):
                self._queue(state.task).put_back(state.task)

    def _open_states(self, active: _ActiveAssignment) -> list[_TaskState]:
        return [self._states[name] for name in active.open]

    def _deadline_s(self, active: _ActiveAssignment) -> float:
        """Returns when an assignment is late; never if it already is, waits, or may not run twice."""
        if active.is_late or active.waits_for or not active.open or not active.assignment.tasks[0].is_repeatable:
            return float("inf")
        timeouts, states = self._timeouts, self._open_states(active)
        task = states[0].task
        # Allow a slow worker more time unless another worker is idle.
        slowness = 1.0 if self._free.get(task.device) else self._durations.slowness(active.assignment.worker)
        each_s = self._durations.late_s(task, timeouts, slowness)
        return active.sign_s - active.spent_s + each_s * len(states) * 2.0 ** max(state.delays for state in states)
