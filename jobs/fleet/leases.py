"""Who does what: works are leased to workers, given out again where those are lost or late, and counted once.

A state machine without a clock, a thread or a network of its own: whoever drives it says what happens and what time it
is, and does what it answers. The times may be made up (`benchmarks/fleet_simulation.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce

from iosched.jobs.fleet.backlog import Backlog, Work
from iosched.jobs.fleet.crew import Crew, Hand, WorkerFacts
from iosched.jobs.fleet.patience import Durations, Patience


@dataclass(frozen=True)
class Lease:
    """Works that a worker has, which it does one after another."""

    name: str
    worker: str
    works: tuple[Work, ...]


@dataclass(frozen=True)
class Answer:
    """What an answer means.

    Attributes:
        is_first: whether it counts; one that comes later than another, or after the work was withdrawn, does not.
        resumed: the lease whose holder need wait no longer, since this was the last that it waited for.
        superfluous: leases of other workers of which no answer is waited for any more.
    """

    is_first: bool
    resumed: Lease | None = None
    superfluous: tuple[Lease, ...] = ()


@dataclass(frozen=True)
class Loss:
    """What follows from work that did not come back.

    Attributes:
        again: works that wait for another worker.
        failed: works that are given up, since too many workers were lost with them. This is their answer.
        resumed: leases whose holders need wait no longer: what they still waited for is among `failed`.
    """

    again: tuple[Work, ...] = ()
    failed: tuple[Work, ...] = ()
    resumed: tuple[Lease, ...] = ()


@dataclass
class _Held:
    """A lease until it has ended.

    Attributes:
        open: works that were not answered under it, by name and in order.
        sign_s: when the holder began, or answered last, or need wait no longer.
        spent_s: what the work under way took until the holder last waited for others.
        is_late: whether its works were given out again.
        waits_for: names of works that its holder, which is parked, waits for.
        guesses: names of works that its holder may come to wait for, and that have no answer.
    """

    lease: Lease
    open: dict[str, Work]
    sign_s: float
    spent_s: float = 0.0
    is_late: bool = False
    waits_for: set[str] = field(default_factory=set)
    guesses: set[str] = field(default_factory=set)


@dataclass
class _Course:
    """What became of a work that has no answer yet: who has it, how many were lost with it, how often it was late.

    Attributes:
        is_guess: whether nobody waits for it.
    """

    work: Work
    is_guess: bool = False
    holders: set[str] = field(default_factory=set)
    losses: int = 0
    delays: int = 0


class Dispatcher:
    """Leases works to workers. Times are seconds of any clock that never goes back.

    Every work that is submitted is answered once (`answered`, or `Loss.failed`), as long as some worker of its
    device lives and works, unless it is withdrawn. A worker has one lease at a time; one whose job waits for works that
    it asked for is parked, and has a packet of such works beside it. Guesses are for workers that have nothing else.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._durations = Durations()
        self._crew = Crew(self._patience.turn_s)
        self._asked: dict[str, Backlog] = {}  # works that some parked worker waits for
        self._jobs: dict[str, Backlog] = {}
        self._guesses: dict[str, Backlog] = {}
        self._courses: dict[str, _Course] = {}
        self._held: dict[str, _Held] = {}
        self._blamed: set[str] = set()
        self._leased = 0

    def submit(self, works: Sequence[Work]) -> None:
        """Adds works; those of one call and one group begin a new round of packets.

        Raises:
            ValueError: a work of that name is here already.
        """
        for work in works:
            self._add(_Course(work))

    def guess(self, lease: str, works: Sequence[Work]) -> None:
        """Adds works whose `asker` may come to wait for them, as `park` will say; nothing where its lease has ended.

        Raises:
            ValueError: a work of that name is here already.
        """
        held = self._held.get(lease)
        if held is None or not held.open:
            return
        held.guesses |= {work.name for work in works}
        for work in works:
            self._add(_Course(work, is_guess=True))

    def withdraw_guesses(self, lease: str) -> tuple[str, ...]:
        """Forgets the guesses of a lease that no worker has begun; returns their names."""
        held = self._held.get(lease)
        names = sorted(held.guesses) if held is not None else []
        unbegun = tuple(name for name in names if not self._courses[name].holders)
        for name in unbegun:
            self._close(self._courses[name])
        return unbegun

    def _add(self, course: _Course) -> None:
        work = course.work
        if work.name in self._courses:
            raise ValueError(f"there is a work {work.name} already")
        self._courses[work.name] = course
        self._backlog_of(course).add(work)

    def withdraw(self, name: str) -> tuple[Lease, ...]:
        """Forgets a work that no worker asked for; returns leases of which no answer is waited for any more."""
        course = self._courses.get(name)
        return () if course is None or course.work.asker is not None else self._close(course)

    def worker_up(self, facts: WorkerFacts) -> None:
        """A worker can be given work.

        Raises:
            ValueError: a worker of that name is up already.
        """
        self._crew.join(facts)

    def worker_lost(self, worker: str, now_s: float) -> Loss:
        """A worker has ended; what it had is given to others at once."""
        return self._left(worker, now_s, is_blamed=True)

    def dismiss(self, worker: str, now_s: float) -> Loss:
        """Gives a worker nothing more, and what it had to others, for reasons that are no work's fault.

        Such as a machine that has become too noisy, or a cluster that is not reached any more.
        """
        return self._left(worker, now_s, is_blamed=False)

    def assignments(self, now_s: float) -> tuple[Lease, ...]:
        """Leases for the workers that have none; first to those parked, and first of works that somebody waits for."""
        return tuple(self._assign(now_s))

    def park(self, lease: str, works: Sequence[Work], now_s: float, guessed: Iterable[str] = ()) -> None:
        """The holder of a lease waits for works, whose `asker` is that lease; `Answer.resumed` says until when.

        Args:
            guessed: names of its guesses that it waits for from now on.
        """
        held = self._held.get(lease)
        if held is None or not held.open:
            return
        came_true = [self._courses[name] for name in guessed if name in held.guesses]
        if not works and not came_true:
            return
        held.spent_s += 0.0 if held.waits_for else now_s - held.sign_s
        held.waits_for |= {work.name for work in (*works, *(course.work for course in came_true))}
        self._crew.park(held.lease.worker, (works[0] if works else came_true[0].work).group)
        self.submit(works)
        for course in came_true:
            self._come_true(held, course)

    def _come_true(self, held: _Held, course: _Course) -> None:
        """A guess is waited for from now on."""
        held.guesses.discard(course.work.name)
        self._backlog_of(course).remove(course.work)
        course.is_guess = False
        if all(self._held[name].is_late for name in course.holders):
            self._backlog_of(course).add(course.work)

    def answered(self, lease: str, work: str, now_s: float) -> Answer:
        """A worker has done a work of this lease, which may have ended, or be another's by now."""
        if (held := self._held.get(lease)) is not None and (done := held.open.pop(work, None)) is not None:
            self._durations.add(done.kind, done.device, held.spent_s + now_s - held.sign_s, held.lease.worker)
            held.sign_s, held.spent_s = now_s, 0.0
        if (course := self._courses.get(work)) is None:
            return Answer(is_first=False)
        course.holders.discard(lease)
        superfluous = self._close(course)
        for each in superfluous:
            self._took_at_least(self._held[each.name], course.work, now_s)
        return Answer(True, self._resumed(course.work, now_s), superfluous)

    def returned(self, lease: str, now_s: float) -> Loss:
        """The holder has ended with a lease; what it did not answer is given to others as if it were lost."""
        if (held := self._held.pop(lease, None)) is None:
            return Loss()
        self._crew.end(held.lease.worker, lease)
        return self._dropped(held, now_s, is_blamed=True)

    def tick(self, now_s: float) -> tuple[Lease, ...]:
        """Gives works out again whose leases are late, and returns those leases; O(leases)."""
        late = [held for held in self._held.values() if self._deadline_s(held) <= now_s]
        for held in late:
            held.is_late = True
            for course in reversed(list(self._open_courses(held))):
                course.delays += 1
                self._again(course)
        return tuple(held.lease for held in late)

    def leases(self) -> tuple[Lease, ...]:
        """Leases that have not ended."""
        return tuple(held.lease for held in self._held.values())

    def waiting(self) -> int:
        """How many works wait for a worker; one that is late and given out again counts."""
        return sum(len(backlog) for backlogs in (self._asked, self._jobs) for backlog in backlogs.values())

    def unanswered(self) -> tuple[Work, ...]:
        """Works that have no answer yet."""
        return tuple(course.work for course in self._courses.values())

    def workers(self, device: str) -> int:
        """How many workers do works of a device."""
        return self._crew.count(device)

    def _took_at_least(self, held: _Held, work: Work, now_s: float) -> None:
        """What can be told of a worker that is stopped: it may be slow, and would never come to an end otherwise."""
        seconds = held.spent_s + (0.0 if held.waits_for else now_s - held.sign_s)
        self._durations.took_at_least(work.kind, work.device, seconds, held.lease.worker)

    def _left(self, worker: str, now_s: float, is_blamed: bool) -> Loss:
        self._durations.forget(worker)
        losses = [
            self._dropped(held, now_s, is_blamed)
            for lease in self._crew.leave(worker)
            if (held := self._held.pop(lease, None)) is not None
        ]
        return reduce(_both, losses, Loss())

    def _assign(self, now_s: float) -> Iterator[Lease]:
        for device, backlog in _nonempty(self._asked):
            yield from self._share_out(device, backlog, self._crew.for_packets(device, backlog.groups), now_s)
        for backlogs in (self._jobs, self._guesses):
            for device, backlog in _nonempty(backlogs):
                yield from self._share_out(device, backlog, self._crew.free(device), now_s)

    def _share_out(self, device: str, backlog: Backlog, hands: Iterable[Hand], now_s: float) -> Iterator[Lease]:
        for hand in hands:
            if not backlog:
                return
            yield from self._lease(hand, device, backlog, now_s)

    def _lease(self, hand: Hand, device: str, backlog: Backlog, now_s: float) -> Iterator[Lease]:
        if not self._crew.may_begin(hand, now_s, self._has_work):
            return
        works = backlog.take(self._crew.count(device), self._blamed, hand.group)
        self._leased += 1
        lease = Lease(f"lease-{self._leased}", hand.facts.name, works)
        self._held[lease.name] = _Held(lease, {work.name: work for work in works}, now_s)
        for work in works:
            self._courses[work.name].holders.add(lease.name)
        self._crew.begin(hand, lease.name, works[0].group, now_s)
        yield lease

    def _has_work(self, device: str) -> bool:
        return bool(self._asked.get(device) or self._jobs.get(device))

    def _backlog_of(self, course: _Course) -> Backlog:
        backlogs = self._jobs if course.work.asker is None else self._guesses if course.is_guess else self._asked
        return backlogs.setdefault(course.work.device, Backlog())

    def _close(self, course: _Course) -> tuple[Lease, ...]:
        """Forgets a work that has its answer, or needs none."""
        work = course.work
        del self._courses[work.name]
        self._blamed.discard(work.name)
        self._backlog_of(course).remove(work)
        if (asker := self._held.get(work.asker or "")) is not None:
            asker.guesses.discard(work.name)
        for name in course.holders:
            del self._held[name].open[work.name]
        over = [self._held[name] for name in sorted(course.holders) if not self._held[name].open]
        for held in over:
            self._withdraw_asked(held)
        return tuple(held.lease for held in over)

    def _withdraw_asked(self, held: _Held) -> None:
        """Nobody needs any more what the holder of this lease asked for, or may have come to ask for."""
        asked, held.waits_for = sorted(held.waits_for), set()
        for name in (*asked, *sorted(held.guesses)):
            self._close(self._courses[name])
        if asked and held.lease.name in self._held:
            self._crew.resume(held.lease.worker)

    def _resumed(self, work: Work, now_s: float) -> Lease | None:
        """The lease whose holder need wait no longer, now that this work has its answer."""
        asker = self._held.get(work.asker) if work.asker is not None else None
        if asker is None or work.name not in asker.waits_for:
            return None
        asker.waits_for.discard(work.name)
        if asker.waits_for:
            return None
        asker.sign_s = now_s
        self._crew.resume(asker.lease.worker)
        return asker.lease

    def _dropped(self, held: _Held, now_s: float, is_blamed: bool) -> Loss:
        """What follows from a lease that ended with works left, of which the first was under way."""
        self._withdraw_asked(held)
        courses = list(self._open_courses(held))
        for course in courses:
            course.holders.discard(held.lease.name)
        for course in courses[:1] if is_blamed else ():
            course.losses += 1
            self._blamed.add(course.work.name)
        failed = [course for course in courses if self._has_failed(course)]
        again = [course.work for course in reversed(courses) if course not in failed and self._again(course)]
        for course in failed:
            self._close(course)
        resumed = [lease for course in failed if (lease := self._resumed(course.work, now_s)) is not None]
        return Loss(tuple(reversed(again)), tuple(course.work for course in failed), tuple(resumed))

    def _has_failed(self, course: _Course) -> bool:
        return course.losses >= self._patience.losses and not course.holders

    def _again(self, course: _Course) -> bool:
        """Gives a work out again unless somebody has it who is not late."""
        if any(not self._held[name].is_late for name in course.holders):
            return False
        self._backlog_of(course).put_back(course.work)
        return True

    def _open_courses(self, held: _Held) -> Iterator[_Course]:
        return (self._courses[name] for name in held.open)

    def _deadline_s(self, held: _Held) -> float:
        """When a lease is late: infinite where it was late already, and where its holder waits for others."""
        if held.is_late or held.waits_for or not held.open:
            return float("inf")
        patience, courses = self._patience, list(self._open_courses(held))
        first = courses[0].work
        expected_s = self._durations.expected_s(first.kind, first.device)
        known_s = patience.unknown_s
        if expected_s is not None:
            # One that is known to be slow is waited for, unless others have nothing to do meanwhile.
            rests = self._crew.has_free(first.device)
            slowness = 1.0 if rests else self._durations.slowness(held.lease.worker)
            known_s = max(patience.floor_s, patience.factor * expected_s * slowness)
        delays = max(course.delays for course in courses)
        return held.sign_s - held.spent_s + known_s * len(courses) * 2.0**delays


def _nonempty(backlogs: dict[str, Backlog]) -> list[tuple[str, Backlog]]:
    return [(device, backlog) for device, backlog in backlogs.items() if backlog]


def _both(one: Loss, other: Loss) -> Loss:
    return Loss(one.again + other.again, one.failed + other.failed, one.resumed + other.resumed)
