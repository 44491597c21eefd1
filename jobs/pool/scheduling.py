"""Who does what: tasks are assigned to workers, again where those are lost or late, and each is answered once.

A state machine without a clock, a thread or a network of its own: whoever drives it says what happens and what time it
is, and does what it answers. The times may be made up (`benchmarks/fleet_simulation.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.task_queue import QueuedTask, TaskQueue
from iosched.jobs.pool.timeouts import Durations, Timeouts

_ASKED, _SUBMITTED = 0, 1
"""What a search waits for goes before what nobody has begun."""


@dataclass(frozen=True)
class WorkerInfo:
    """What the scheduler knows of a worker.

    Attributes:
        name: no other worker has it.
        devices: names of devices whose tasks it does: what people call its device, and the key of what it measures.
        node: the machine that it is on.
        side: "cpu" or "gpu"; workers of one machine on different sides never task at a time, since who launches kernels
            or builds plans needs processors.
    """

    name: str
    devices: tuple[str, ...]
    node: str
    side: str = "cpu"


@dataclass(frozen=True)
class Assignment:
    """Tasks that a worker has, which it does one after another."""

    number: int
    worker: str
    tasks: tuple[QueuedTask, ...]


@dataclass(frozen=True)
class Answer:
    """What an answer means.

    Attributes:
        is_first: whether it counts; one that comes later than another, or after the task was withdrawn, does not.
        superfluous: assignments of other workers of which no answer is waited for any more.
        resumed: the assignment whose holder need wait no longer, since this was the last that it waited for.
    """

    is_first: bool
    superfluous: tuple[Assignment, ...] = ()
    resumed: Assignment | None = None


@dataclass(frozen=True)
class Loss:
    """What follows from tasks that did not come back: others get them, but for those that `failed`.

    Attributes:
        failed: tasks that too many workers were lost with. This is their answer.
        resumed: assignments whose holders need wait no longer: what they still waited for is among `failed`.
    """

    failed: tuple[QueuedTask, ...] = ()
    resumed: tuple[Assignment, ...] = ()


@dataclass(eq=False)
class _Held:
    """An assignment until it has ended.

    Attributes:
        open: tasks that were not answered under it, by name and in order.
        sign_s: when its holder began, or answered last, or need wait no longer.
        spent_s: what the task under way took until the holder last waited for others.
        is_late: whether its tasks were given to others too.
        waits_for: names of tasks that its holder has asked for, and waits for.
    """

    assignment: Assignment
    open: dict[int, QueuedTask]
    sign_s: float
    spent_s: float = 0.0
    is_late: bool = False
    waits_for: set[int] = field(default_factory=set)

    def took_s(self, now_s: float) -> float:
        """How long its holder has had the task under way, without what it waited for others."""
        return self.spent_s + (0.0 if self.waits_for else now_s - self.sign_s)


@dataclass(eq=False)
class _TaskState:
    """What became of a task that has no answer yet.

    Attributes:
        holders: assignments that have it.
        losses: how many workers were lost with it.
        delays: how often it was late.
    """

    task: QueuedTask
    holders: set[int] = field(default_factory=set)
    losses: int = 0
    delays: int = 0


@dataclass(eq=False)
class _Worker:
    """A worker that is up.

    Attributes:
        job: what it has; None where it has nothing.
        packet: what it took beside a job that waits.
        group: of the tasks that it had last, which it may still have open.
    """

    info: WorkerInfo
    job: _Held | None = None
    packet: _Held | None = None
    group: str = ""

    @property
    def is_free(self) -> bool:
        return self.job is None and self.packet is None

    @property
    def is_waiting(self) -> bool:
        return self.job is not None and bool(self.job.waits_for) and self.packet is None


@dataclass(eq=False)
class _Turn:
    """The side that has a machine, since when, and how many of its workers have something."""

    side: str
    since_s: float
    holders: int = 0


class Scheduler:
    """Assigns tasks to workers. Times are seconds of any clock that never goes back.

    Every task that is submitted is answered once (`answered`, or `Loss.failed`), as long as some worker of its device
    lives and tasks, unless it is withdrawn. A worker has one assignment at a time; one whose job waits for tasks that
    it asked for takes packets of such tasks meanwhile, its own too. So jobs never wait for each other.
    """

    def __init__(self, timeouts: Timeouts | None = None) -> None:
        self._timeouts = timeouts or Timeouts()
        self._durations = Durations()
        self._workers: dict[str, _Worker] = {}
        self._free: dict[str, dict[str, _Worker]] = {}  # by device, the one that had nothing for longest first
        self._idle: dict[str, dict[str, _Worker]] = {}  # those whose job waits, and that have no packet
        self._serving: Counter[str] = Counter()
        self._turns: dict[str, _Turn] = {}
        self._queues: dict[tuple[int, str], TaskQueue] = {}
        self._states: dict[int, _TaskState] = {}
        self._held: dict[int, _Held] = {}
        self._blamed: set[int] = set()  # tasks that were lost: they go alone, and take no others with them
        self._n_assigned = 0

    def submit(self, tasks: Iterable[QueuedTask]) -> None:
        """Adds tasks; those of one call and one group begin a new round of packets."""
        for task in tasks:
            self._states[task.name] = _TaskState(task)
            self._queue(task).add(task)

    def withdraw(self, name: int) -> tuple[Assignment, ...]:
        """Forgets a task; returns assignments of which no answer is waited for any more."""
        state = self._states.get(name)
        return () if state is None else self._close(state)

    def join(self, info: WorkerInfo) -> None:
        """A worker can be given task."""
        worker = self._workers[info.name] = _Worker(info)
        self._serving.update(info.devices)
        self._place(worker)

    def leave(self, worker: str, now_s: float, *, is_blamed: bool) -> Loss:
        """A worker has ended, or is given up; others get what it had.

        Args:
            is_blamed: whether the task under way may have been the reason. One that several workers were lost with
                fails.
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
            self._turns[left.info.node].holders -= 1
        failed, resumed = list[QueuedTask](), list[Assignment]()
        for held in (left.job, left.packet):
            if held is not None:
                del self._held[held.assignment.number]
                loss = self._dropped(held, now_s, is_blamed=is_blamed)
                failed += loss.failed
                resumed += loss.resumed
        return Loss(tuple(failed), tuple(resumed))

    def assign(self, now_s: float) -> Iterator[Assignment]:
        """Assignments for workers that have none, and for those that wait; first of what somebody waits for."""
        for (rank, device), backlog in sorted(each for each in self._queues.items() if each[1]):
            for worker in self._candidates(device, backlog.groups if rank == _ASKED else None):
                if not backlog:
                    break
                if worker.job is not None or self._may_begin(worker, now_s):
                    yield self._begin(worker, device, backlog, now_s)

    def wait_for(self, number: int, tasks: Sequence[QueuedTask], now_s: float) -> None:
        """The holder of an assignment waits for tasks, whose `asker` is its number; see `Answer.resumed`."""
        held = self._held.get(number)
        if held is None or not held.open or not tasks:
            return
        held.spent_s = held.took_s(now_s)
        held.waits_for |= {task.name for task in tasks}
        worker = self._workers[held.assignment.worker]
        worker.group = tasks[0].group
        self._place(worker)
        self.submit(tasks)

    def answered(self, number: int, task: int, now_s: float) -> Answer:
        """A worker has done a task of this assignment, which may have ended, or have been given to others too."""
        if (held := self._held.get(number)) is not None and (done := held.open.pop(task, None)) is not None:
            self._durations.add(done, held.took_s(now_s), held.assignment.worker)
            held.sign_s, held.spent_s = now_s, 0.0
        if (state := self._states.get(task)) is None:
            return Answer(is_first=False)
        state.holders.discard(number)
        superfluous = self._close(state)
        for each in superfluous:  # its holder may be slow, and would never come to an end otherwise
            late = self._held[each.number]
            self._durations.took_at_least(state.task, late.took_s(now_s), each.worker)
        return Answer(True, superfluous, self._resumed(state.task, now_s))

    def ended(self, number: int, now_s: float) -> Loss:
        """The holder has ended with an assignment; what it did not answer is given to others as if it were lost."""
        held = self._held.pop(number, None)
        if held is None:
            return Loss()
        worker = self._workers[held.assignment.worker]
        worker.job = None if worker.job is held else worker.job
        worker.packet = None if worker.packet is held else worker.packet
        if worker.is_free:
            self._turns[worker.info.node].holders -= 1
        self._place(worker)
        return self._dropped(held, now_s, is_blamed=True)

    def late(self, now_s: float) -> tuple[Assignment, ...]:
        """Gives tasks to others too whose holders are late, and returns these assignments; O(assignments)."""
        found = [held for held in self._held.values() if self._deadline_s(held) <= now_s]
        for held in found:
            held.is_late = True
            for state in self._open_states(held):
                state.delays += 1
            self._give_back(self._open_states(held))
        return tuple(held.assignment for held in found)

    def assignments(self) -> tuple[Assignment, ...]:
        """Assignments that have not ended."""
        return tuple(held.assignment for held in self._held.values())

    def waiting(self) -> int:
        """How many tasks wait for a worker; one that is late and given to others too counts."""
        return sum(map(len, self._queues.values()))

    def unanswered(self) -> tuple[QueuedTask, ...]:
        """Tasks that have no answer yet."""
        return tuple(state.task for state in self._states.values())

    def _queue(self, task: QueuedTask) -> TaskQueue:
        rank = _SUBMITTED if task.asker is None else _ASKED
        return self._queues.setdefault((rank, task.device), TaskQueue())

    def _candidates(self, device: str, asked: Iterable[str] | None) -> tuple[_Worker, ...]:
        """Workers that may take tasks: of what somebody waits for, in groups, first those that have a group open."""
        free = tuple(self._free.get(device, {}).values())
        if asked is None:
            return free
        is_open = [worker.group in asked for worker in free]
        ready = tuple(worker for worker, is_ready in zip(free, is_open, strict=True) if is_ready)
        others = tuple(worker for worker, is_ready in zip(free, is_open, strict=True) if not is_ready)
        return (*ready, *self._idle.get(device, {}).values(), *others)

    def _may_begin(self, worker: _Worker, now_s: float) -> bool:
        """Whether it is its side's turn on its machine: a side that has had it for long gives way to one that waits."""
        info, turn = worker.info, self._turns.get(worker.info.node)
        if turn is None or (turn.side == info.side and not self._is_over(turn, now_s)):
            return True
        if turn.side != info.side:
            return turn.holders == 0
        return not any(
            other.info.node == info.node and other.info.side != info.side and other.is_free and self._has_work(other)
            for other in self._workers.values()
        )

    def _is_over(self, turn: _Turn, now_s: float) -> bool:
        return now_s - turn.since_s >= self._timeouts.turn_s

    def _has_work(self, worker: _Worker) -> bool:
        return any(backlog and device in worker.info.devices for (_, device), backlog in self._queues.items())

    def _begin(self, worker: _Worker, device: str, backlog: TaskQueue, now_s: float) -> Assignment:
        tasks = backlog.take(self._serving[device], self._blamed, worker.group)
        self._n_assigned += 1
        assignment = Assignment(self._n_assigned, worker.info.name, tasks)
        held = _Held(assignment, {task.name: task for task in tasks}, now_s)
        self._held[assignment.number] = held
        for task in tasks:
            self._states[task.name].holders.add(assignment.number)
        if worker.job is None:
            worker.job = held
            self._take_turn(worker.info, now_s)
        else:
            worker.packet = held
        worker.group = tasks[0].group
        self._place(worker)
        return assignment

    def _take_turn(self, info: WorkerInfo, now_s: float) -> None:
        turn = self._turns.get(info.node)
        if turn is None or turn.side != info.side or self._is_over(turn, now_s):
            turn = self._turns[info.node] = _Turn(info.side, now_s, turn.holders if turn else 0)
        turn.holders += 1

    def _place(self, worker: _Worker) -> None:
        """Puts a worker among those that are free, or wait, or neither."""
        for among, belongs in ((self._free, worker.is_free), (self._idle, worker.is_waiting)):
            for device in worker.info.devices:
                workers = among.setdefault(device, {})
                if belongs:
                    workers.setdefault(worker.info.name, worker)
                else:
                    workers.pop(worker.info.name, None)

    def _close(self, state: _TaskState) -> tuple[Assignment, ...]:
        """Forgets a task that has its answer, or needs none."""
        task = state.task
        del self._states[task.name]
        self._blamed.discard(task.name)
        self._queue(task).remove(task)
        for number in state.holders:
            del self._held[number].open[task.name]
        over = [self._held[number] for number in sorted(state.holders) if not self._held[number].open]
        for held in over:
            self._withdraw_asked(held)
        return tuple(held.assignment for held in over)

    def _withdraw_asked(self, held: _Held) -> None:
        """Nobody needs any more what the holder of this assignment asked for."""
        asked, held.waits_for = sorted(held.waits_for), set()
        for name in asked:
            self._close(self._states[name])
        if asked and held.assignment.worker in self._workers:
            self._place(self._workers[held.assignment.worker])

    def _resumed(self, task: QueuedTask, now_s: float) -> Assignment | None:
        """The assignment whose holder need wait no longer, now that this task has its answer."""
        asker = self._held.get(task.asker) if task.asker is not None else None
        if asker is None or task.name not in asker.waits_for:
            return None
        asker.waits_for.discard(task.name)
        if asker.waits_for:
            return None
        asker.sign_s = now_s
        self._place(self._workers[asker.assignment.worker])
        return asker.assignment

    def _dropped(self, held: _Held, now_s: float, *, is_blamed: bool) -> Loss:
        """What follows from an assignment that ended with tasks left, of which the first was under way."""
        self._withdraw_asked(held)
        states = self._open_states(held)
        for state in states:
            state.holders.discard(held.assignment.number)
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
        """Has tasks done again, before all others, unless somebody has them who is not late."""
        for state in reversed(states):
            if all(self._held[number].is_late for number in state.holders):
                self._queue(state.task).put_back(state.task)

    def _open_states(self, held: _Held) -> list[_TaskState]:
        return [self._states[name] for name in held.open]

    def _deadline_s(self, held: _Held) -> float:
        """When an assignment is late: never where it was late already, its holder waits, or tasks may not run twice."""
        if held.is_late or held.waits_for or not held.open or not held.assignment.tasks[0].is_repeatable:
            return float("inf")
        timeouts, states = self._timeouts, self._open_states(held)
        task = states[0].task
        # One that is known to be slow is waited for, unless others have nothing to do meanwhile.
        slowness = 1.0 if self._free.get(task.device) else self._durations.slowness(held.assignment.worker)
        each_s = self._durations.late_s(task, timeouts, slowness)
        return held.sign_s - held.spent_s + each_s * len(states) * 2.0 ** max(state.delays for state in states)
