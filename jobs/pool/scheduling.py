"""Who does what: works are assigned to workers, again where those are lost or late, and each is answered once.

A state machine without a clock, a thread or a network of its own: whoever drives it says what happens and what time it
is, and does what it answers. The times may be made up (`benchmarks/fleet_simulation.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from iosched.jobs.pool.backlog import Backlog, Work
from iosched.jobs.pool.patience import Durations, Patience

_ASKED, _SUBMITTED = 0, 1
"""What a search waits for goes before what nobody has begun."""


@dataclass(frozen=True)
class WorkerInfo:
    """What the scheduler knows of a worker.

    Attributes:
        name: no other worker has it.
        devices: names of devices whose works it does: what people call its device, and the key of what it measures.
        node: the machine that it is on.
        side: "cpu" or "gpu"; workers of one machine on different sides never work at a time, since who launches kernels
            or builds plans needs processors.
    """

    name: str
    devices: tuple[str, ...]
    node: str
    side: str = "cpu"


@dataclass(frozen=True)
class Assignment:
    """Works that a worker has, which it does one after another."""

    number: int
    worker: str
    works: tuple[Work, ...]


@dataclass(frozen=True)
class Answer:
    """What an answer means.

    Attributes:
        is_first: whether it counts; one that comes later than another, or after the work was withdrawn, does not.
        superfluous: assignments of other workers of which no answer is waited for any more.
        resumed: the assignment whose holder need wait no longer, since this was the last that it waited for.
    """

    is_first: bool
    superfluous: tuple[Assignment, ...] = ()
    resumed: Assignment | None = None


@dataclass(frozen=True)
class Loss:
    """What follows from works that did not come back: others get them, but for those that `failed`.

    Attributes:
        failed: works that too many workers were lost with. This is their answer.
        resumed: assignments whose holders need wait no longer: what they still waited for is among `failed`.
    """

    failed: tuple[Work, ...] = ()
    resumed: tuple[Assignment, ...] = ()


@dataclass(eq=False)
class _Held:
    """An assignment until it has ended.

    Attributes:
        open: works that were not answered under it, by name and in order.
        sign_s: when its holder began, or answered last, or need wait no longer.
        spent_s: what the work under way took until the holder last waited for others.
        is_late: whether its works were given to others too.
        waits_for: names of works that its holder has asked for, and waits for.
    """

    assignment: Assignment
    open: dict[int, Work]
    sign_s: float
    spent_s: float = 0.0
    is_late: bool = False
    waits_for: set[int] = field(default_factory=set)

    def took_s(self, now_s: float) -> float:
        """How long its holder has had the work under way, without what it waited for others."""
        return self.spent_s + (0.0 if self.waits_for else now_s - self.sign_s)


@dataclass(eq=False)
class _Course:
    """What became of a work that has no answer yet.

    Attributes:
        holders: assignments that have it.
        losses: how many workers were lost with it.
        delays: how often it was late.
    """

    work: Work
    holders: set[int] = field(default_factory=set)
    losses: int = 0
    delays: int = 0


@dataclass(eq=False)
class _Worker:
    """A worker that is up.

    Attributes:
        job: what it has; None where it has nothing.
        packet: what it took beside a job that waits.
        group: of the works that it had last, which it may still have open.
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
    """Assigns works to workers. Times are seconds of any clock that never goes back.

    Every work that is submitted is answered once (`answered`, or `Loss.failed`), as long as some worker of its device
    lives and works, unless it is withdrawn. A worker has one assignment at a time; one whose job waits for works that
    it asked for takes packets of such works meanwhile, its own too. So jobs never wait for each other.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._durations = Durations()
        self._workers: dict[str, _Worker] = {}
        self._free: dict[str, dict[str, _Worker]] = {}  # by device, the one that had nothing for longest first
        self._idle: dict[str, dict[str, _Worker]] = {}  # those whose job waits, and that have no packet
        self._serving: Counter[str] = Counter()
        self._turns: dict[str, _Turn] = {}
        self._backlogs: dict[tuple[int, str], Backlog] = {}
        self._courses: dict[int, _Course] = {}
        self._held: dict[int, _Held] = {}
        self._blamed: set[int] = set()  # works that were lost: they go alone, and take no others with them
        self._n_assigned = 0

    def submit(self, works: Iterable[Work]) -> None:
        """Adds works; those of one call and one group begin a new round of packets."""
        for work in works:
            self._courses[work.name] = _Course(work)
            self._backlog(work).add(work)

    def withdraw(self, name: int) -> tuple[Assignment, ...]:
        """Forgets a work; returns assignments of which no answer is waited for any more."""
        course = self._courses.get(name)
        return () if course is None else self._close(course)

    def join(self, info: WorkerInfo) -> None:
        """A worker can be given work."""
        worker = self._workers[info.name] = _Worker(info)
        self._serving.update(info.devices)
        self._place(worker)

    def leave(self, worker: str, now_s: float, *, is_blamed: bool) -> Loss:
        """A worker has ended, or is given up; others get what it had.

        Args:
            is_blamed: whether the work under way may have been the reason. One that several workers were lost with
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
        failed, resumed = list[Work](), list[Assignment]()
        for held in (left.job, left.packet):
            if held is not None:
                del self._held[held.assignment.number]
                loss = self._dropped(held, now_s, is_blamed=is_blamed)
                failed += loss.failed
                resumed += loss.resumed
        return Loss(tuple(failed), tuple(resumed))

    def assign(self, now_s: float) -> Iterator[Assignment]:
        """Assignments for workers that have none, and for those that wait; first of what somebody waits for."""
        for (rank, device), backlog in sorted(each for each in self._backlogs.items() if each[1]):
            for worker in self._candidates(device, backlog.groups if rank == _ASKED else None):
                if not backlog:
                    break
                if worker.job is not None or self._may_begin(worker, now_s):
                    yield self._begin(worker, device, backlog, now_s)

    def wait_for(self, number: int, works: Sequence[Work], now_s: float) -> None:
        """The holder of an assignment waits for works, whose `asker` is its number; see `Answer.resumed`."""
        held = self._held.get(number)
        if held is None or not held.open or not works:
            return
        held.spent_s = held.took_s(now_s)
        held.waits_for |= {work.name for work in works}
        worker = self._workers[held.assignment.worker]
        worker.group = works[0].group
        self._place(worker)
        self.submit(works)

    def answered(self, number: int, work: int, now_s: float) -> Answer:
        """A worker has done a work of this assignment, which may have ended, or have been given to others too."""
        if (held := self._held.get(number)) is not None and (done := held.open.pop(work, None)) is not None:
            self._durations.add(done, held.took_s(now_s), held.assignment.worker)
            held.sign_s, held.spent_s = now_s, 0.0
        if (course := self._courses.get(work)) is None:
            return Answer(is_first=False)
        course.holders.discard(number)
        superfluous = self._close(course)
        for each in superfluous:  # its holder may be slow, and would never come to an end otherwise
            late = self._held[each.number]
            self._durations.took_at_least(course.work, late.took_s(now_s), each.worker)
        return Answer(True, superfluous, self._resumed(course.work, now_s))

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
        """Gives works to others too whose holders are late, and returns these assignments; O(assignments)."""
        found = [held for held in self._held.values() if self._deadline_s(held) <= now_s]
        for held in found:
            held.is_late = True
            for course in self._open_courses(held):
                course.delays += 1
            self._give_back(self._open_courses(held))
        return tuple(held.assignment for held in found)

    def assignments(self) -> tuple[Assignment, ...]:
        """Assignments that have not ended."""
        return tuple(held.assignment for held in self._held.values())

    def waiting(self) -> int:
        """How many works wait for a worker; one that is late and given to others too counts."""
        return sum(map(len, self._backlogs.values()))

    def unanswered(self) -> tuple[Work, ...]:
        """Works that have no answer yet."""
        return tuple(course.work for course in self._courses.values())

    def _backlog(self, work: Work) -> Backlog:
        rank = _SUBMITTED if work.asker is None else _ASKED
        return self._backlogs.setdefault((rank, work.device), Backlog())

    def _candidates(self, device: str, asked: Iterable[str] | None) -> tuple[_Worker, ...]:
        """Workers that may take works: of what somebody waits for, in groups, first those that have a group open."""
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
        return now_s - turn.since_s >= self._patience.turn_s

    def _has_work(self, worker: _Worker) -> bool:
        return any(backlog and device in worker.info.devices for (_, device), backlog in self._backlogs.items())

    def _begin(self, worker: _Worker, device: str, backlog: Backlog, now_s: float) -> Assignment:
        works = backlog.take(self._serving[device], self._blamed, worker.group)
        self._n_assigned += 1
        assignment = Assignment(self._n_assigned, worker.info.name, works)
        held = _Held(assignment, {work.name: work for work in works}, now_s)
        self._held[assignment.number] = held
        for work in works:
            self._courses[work.name].holders.add(assignment.number)
        if worker.job is None:
            worker.job = held
            self._take_turn(worker.info, now_s)
        else:
            worker.packet = held
        worker.group = works[0].group
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

    def _close(self, course: _Course) -> tuple[Assignment, ...]:
        """Forgets a work that has its answer, or needs none."""
        work = course.work
        del self._courses[work.name]
        self._blamed.discard(work.name)
        self._backlog(work).remove(work)
        for number in course.holders:
            del self._held[number].open[work.name]
        over = [self._held[number] for number in sorted(course.holders) if not self._held[number].open]
        for held in over:
            self._withdraw_asked(held)
        return tuple(held.assignment for held in over)

    def _withdraw_asked(self, held: _Held) -> None:
        """Nobody needs any more what the holder of this assignment asked for."""
        asked, held.waits_for = sorted(held.waits_for), set()
        for name in asked:
            self._close(self._courses[name])
        if asked and held.assignment.worker in self._workers:
            self._place(self._workers[held.assignment.worker])

    def _resumed(self, work: Work, now_s: float) -> Assignment | None:
        """The assignment whose holder need wait no longer, now that this work has its answer."""
        asker = self._held.get(work.asker) if work.asker is not None else None
        if asker is None or work.name not in asker.waits_for:
            return None
        asker.waits_for.discard(work.name)
        if asker.waits_for:
            return None
        asker.sign_s = now_s
        self._place(self._workers[asker.assignment.worker])
        return asker.assignment

    def _dropped(self, held: _Held, now_s: float, *, is_blamed: bool) -> Loss:
        """What follows from an assignment that ended with works left, of which the first was under way."""
        self._withdraw_asked(held)
        courses = self._open_courses(held)
        for course in courses:
            course.holders.discard(held.assignment.number)
        for course in courses[:1] if is_blamed else ():
            course.losses += 1
            self._blamed.add(course.work.name)
        failed = [each for each in courses if each.losses >= self._patience.losses and not each.holders]
        self._give_back([course for course in courses if course not in failed])
        for course in failed:
            self._close(course)
        resumed = [each for course in failed if (each := self._resumed(course.work, now_s)) is not None]
        return Loss(tuple(course.work for course in failed), tuple(resumed))

    def _give_back(self, courses: Sequence[_Course]) -> None:
        """Has works done again, before all others, unless somebody has them who is not late."""
        for course in reversed(courses):
            if all(self._held[number].is_late for number in course.holders):
                self._backlog(course.work).put_back(course.work)

    def _open_courses(self, held: _Held) -> list[_Course]:
        return [self._courses[name] for name in held.open]

    def _deadline_s(self, held: _Held) -> float:
        """When an assignment is late: never where it was late already, its holder waits, or works may not run twice."""
        if held.is_late or held.waits_for or not held.open or not held.assignment.works[0].is_repeatable:
            return float("inf")
        patience, courses = self._patience, self._open_courses(held)
        work = courses[0].work
        # One that is known to be slow is waited for, unless others have nothing to do meanwhile.
        slowness = 1.0 if self._free.get(work.device) else self._durations.slowness(held.assignment.worker)
        each_s = self._durations.late_s(work, patience, slowness)
        return held.sign_s - held.spent_s + each_s * len(courses) * 2.0 ** max(course.delays for course in courses)
