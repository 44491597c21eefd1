"""What every work of the dispatcher stands for: an errand, or a question that a search asks, or may come to ask."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from iosched.jobs.fleet.backlog import Work
from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.leases import Lease
from iosched.jobs.fleet.messages import Asked, Call, Guessed, Rows, Stop, packet
from iosched.scheduler.questions import Question

QUESTIONS = "questions"
"""The kind of work that answers questions, see `work/kinds.py`."""


@dataclass(eq=False)
class Task:
    """An errand until it has its answer.

    Attributes:
        stop: what the user has asked for meanwhile.
        has_begun: whether a worker has had it.
    """

    name: str
    errand: Errand
    future: Future[Any]
    stop: Stop | None = None
    has_begun: bool = False

    def fulfil(self, result: Any) -> None:
        """Ends with a result, unless it has ended; from any thread."""
        with suppress(InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Ends with an error, unless it has ended; from any thread."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(eq=False)
class Round:
    """Questions that one search waits for.

    Attributes:
        lease: under which that search runs.
        open: names of works that are not answered.
    """

    lease: str
    task: Task
    asked: Asked
    open: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Wanted:
    """What the dispatcher has to see to before a round is answered.

    Attributes:
        works: new ones.
        guessed: names of guesses that have come true, and are being answered.
    """

    works: tuple[Work, ...]
    guessed: tuple[str, ...]


class Desk:
    """Names works, and says what they are."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._questions: dict[str, tuple[Round, Question]] = {}
        self._rounds: dict[str, list[Round]] = {}
        self._guesses: dict[str, dict[Question, str]] = {}
        self._named = 0

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Errands that have no answer yet."""
        return tuple(self._tasks.values())

    def take(self, errand: Errand, future: Future[Any]) -> tuple[Task, Work]:
        """An errand as work."""
        task = Task(self._name(errand.kind), errand, future)
        self._tasks[task.name] = task
        return task, Work(task.name, errand.device, errand.kind, errand.model.file)

    def ask(self, lease: Lease, asked: Asked, device: str) -> Wanted:
        """The questions of a search that runs under `lease`, as works for workers of a device.

        What was guessed is not given out again: it is waited for, if it is not answered yet.
        """
        made = Round(lease.name, self._tasks[lease.works[0].name], asked)
        guesses = self._guesses.get(lease.name, {})
        works, came_true = [], []
        for question in asked.questions:
            if (name := guesses.get(question)) is None:
                works.append(self._work(made, question, device))
                made.open.add(works[-1].name)
            elif name in self._questions:
                self._questions[name] = made, question
                made.open.add(name)
                came_true.append(name)
        if made.open:
            self._rounds.setdefault(lease.name, []).append(made)
        return Wanted(tuple(works), tuple(came_true))

    def guess(self, lease: Lease, guessed: Guessed, device: str) -> tuple[Work, ...]:
        """A question that a search under `lease` may come to ask, as work; none where it is too late, or known."""
        rounds = self._rounds.get(lease.name, [])
        made = next((each for each in rounds if each.asked.number == guessed.number), None)
        guesses = self._guesses.setdefault(lease.name, {})
        if made is None or guessed.question in (*made.asked.questions, *guesses):
            return ()
        work = self._work(made, guessed.question, device)
        guesses[guessed.question] = work.name
        return (work,)

    def forget(self, lease: str, names: Collection[str]) -> None:
        """Guesses that nobody answers any more."""
        guesses = self._guesses.get(lease, {})
        for question, name in list(guesses.items()):
            if name in names:
                del guesses[question], self._questions[name]

    def _work(self, made: Round, question: Question, device: str) -> Work:
        group = f"{made.task.errand.model.file} {json.dumps(made.asked.work, sort_keys=True)}"
        name = self._name(QUESTIONS)
        self._questions[name] = made, question
        return Work(name, device, QUESTIONS, group, in_packets=True, asker=made.lease)

    def task(self, lease: Lease) -> Task | None:
        """The errand of a lease; None where it has its answer, or the lease is a packet of questions."""
        return self._tasks.get(lease.works[0].name)

    def call(self, lease: Lease, rows: Rows, left_s: float | None) -> Call | None:
        """What the holder of a lease is to do in so many seconds; None where nobody needs it any more."""
        if (task := self.task(lease)) is not None:
            errand = task.errand
            return Call(kind=errand.kind, work=errand.work, model=errand.model, rows=rows, left_s=left_s)
        found = [self._questions[work.name] for work in lease.works if work.name in self._questions]
        if not found:
            return None
        made = found[0][0]
        work = packet(made.asked, [question for _, question in found])
        return Call(kind=QUESTIONS, work=work, model=made.task.errand.model, rows=rows, left_s=left_s)

    def file(self, lease: Lease) -> Errand | None:
        """The errand whose file the holder of a lease needs."""
        if (task := self.task(lease)) is not None:
            return task.errand
        found = self._questions.get(lease.works[0].name)
        return None if found is None else found[0].task.errand

    def close_question(self, name: str) -> Round | None:
        """A question has its answer, or never will; returns its round where it was the last one there."""
        if (found := self._questions.pop(name, None)) is None or name not in found[0].open:
            return None
        made = found[0]
        made.open.discard(name)
        if made.open:
            return None
        self._rounds[made.lease].remove(made)
        return made

    def close_task(self, name: str) -> Task | None:
        """An errand has its answer; None where it had one before."""
        return self._tasks.pop(name, None)

    def close_lease(self, lease: str) -> None:
        """The search under this lease has ended, and waits for nothing."""
        for made in self._rounds.pop(lease, []):
            for name in made.open:
                self._questions.pop(name, None)
        for name in self._guesses.pop(lease, {}).values():
            self._questions.pop(name, None)

    def needs(self, digest: str) -> bool:
        """Whether some errand still needs a file."""
        return any(task.errand.model.file == digest for task in self._tasks.values())

    def doing(self, leases: Sequence[Lease]) -> str:
        """What a worker with these leases does, for people."""
        texts = []
        for lease in leases:
            if (task := self.task(lease)) is not None:
                texts.append(f"{task.errand.kind} {task.errand.model.name}")
            elif (errand := self.file(lease)) is not None:
                texts.append(f"{len(lease.works)} stages of {errand.model.name}")
        return ", ".join(texts)

    def _name(self, kind: str) -> str:
        self._named += 1
        return f"{kind}-{self._named}"
