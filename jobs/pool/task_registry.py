"""Tasks that were submitted, and the calls by which workers do them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec

from iosched.jobs.pool import messages
from iosched.jobs.pool.codec import read_as
from iosched.jobs.pool.messages import Asked, Call, Done, Failed, InterruptedTaskError, Known, Rows, SentModel, Stop
from iosched.jobs.pool.prefetch import QUESTIONS
from iosched.jobs.pool.scheduling import Assignment, Loss, Scheduler
from iosched.jobs.pool.sending import packed
from iosched.jobs.pool.task import How, Pending, Task
from iosched.jobs.pool.task_queue import QueuedTask
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import ModelFile
from iosched.jobs.pool.worker_slots import GO_ON, ActiveWorker
from iosched.models.errors import ExecutionError, IoschedError
from iosched.scheduler.questions import Question

R = TypeVar("R")


@dataclass(eq=False)
class Submitted:
    """A task until it has its answer.

    Attributes:
        name: of its work.
        stop: how it is to end, since the user has said so.
        has_begun: whether a worker has had it.
    """

    name: int
    pending: Pending[Any]
    sent: SentModel
    file: ModelFile
    stop: How | None = None
    has_begun: bool = False

    @property
    def task(self) -> Task[Any]:
        """What was submitted."""
        return self.pending.task

    @property
    def text(self) -> str:
        """What it is, for people."""
        return f"{self.task.kind.name} {self.sent.name}"


@dataclass(frozen=True, eq=False)
class _Question:
    """A question of the search of a task; `opening` is how the model is open there, as JSON."""

    submitted: Submitted
    opening: dict[str, Any]
    question: Question


class TaskRegistry:
    """What workers have been asked, and what will be.

    Args:
        tell: sends a message about a call to its worker, with the file that it is about.
        unseen: the rows that a worker has not seen.

    Attributes:
        scheduler: says who does what.
        n_done: tasks that have their answer.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        tell: Callable[[Assignment, messages.ToldMessage, ModelFile | None], None],
        unseen: Callable[[str], Rows],
    ) -> None:
        self._tell, self._unseen = tell, unseen
        self.scheduler = Scheduler(timeouts)
        self.n_done = 0
        self._folder = TemporaryDirectory(prefix="iosched-pool-")
        self._names = count(1)
        self._submitted: dict[int, Submitted] = {}
        self._calls: dict[int, Assignment] = {}

    @property
    def submitted(self) -> tuple[Submitted, ...]:
        """Tasks that have no answer yet."""
        return tuple(self._submitted.values())

    def submit(self, task: Task[R]) -> Pending[R]:
        """Takes a task.

        Raises:
            UsageError: its model is too large to be sent.
        """
        pending, (sent, data) = Pending(task), packed(task.model)
        path = Path(self._folder.name, f"{sent.file}.onnx")
        if not path.exists():
            path.write_bytes(data)
        made = Submitted(next(self._names), pending, sent, ModelFile(sent.file, str(path)))
        self._submitted[made.name] = made
        kind = task.kind
        work = QueuedTask(made.name, task.device, kind.name, sent.file, is_repeatable=kind.is_repeatable, about=made)
        self.scheduler.submit([work])
        return pending

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Has a task end in this way; one that no worker has begun ends at once, without a result."""
        for each in self.submitted:
            if each.pending is pending:
                each.stop = how
                for call in self._of(each):
                    self._tell(call, Stop(call=call.number, how=how), None)
        self._end_stopped()

    def give(self, active: dict[str, ActiveWorker], now_s: float) -> None:
        """Sends to workers what they are to do next."""
        for call in self.scheduler.assign(now_s):
            self._calls[call.number] = call
            member = active[call.worker]
            member.heard_s = now_s
            about = call.tasks[0].about
            submitted = about if isinstance(about, Submitted) else about.submitted
            task, budget = submitted.task, submitted.task.budget
            others = () if member.knows_others else task.rows
            member.knows_others = member.knows_others or bool(others)
            is_whole = submitted is about
            message = Call(
                call=call.number,
                kind=task.kind.name if is_whole else QUESTIONS,
                work=msgspec.to_builtins(task.work) if is_whole else _packet(call),
                model=submitted.sent,
                rows=(*others, *self._unseen(call.worker)),
                left_s=None if budget is None else budget.left_s(now_s),
                asks=is_whole and task.asks,
            )
            self._tell(call, message, submitted.file)
            submitted.has_begun = submitted.has_begun or is_whole
            if is_whole and submitted.stop is not None:
                self._tell(call, Stop(call=call.number, how=submitted.stop), None)

    def task_of(self, number: int, worker: str) -> Submitted | None:
        """The task of a call that a worker has; None where it has another, or nobody needs it any more."""
        call = self._calls.get(number)
        return self._submitted.get(call.tasks[0].name) if call is not None and call.worker == worker else None

    def ask(self, submitted: Submitted, asked: Asked, device: str, now_s: float) -> None:
        """The search of a task waits for the answers of other workers of a device."""
        group = f"{submitted.sent.file} {json.dumps(asked.opening, sort_keys=True)}"
        about = [_Question(submitted, asked.opening, question) for question in asked.questions]
        tasks = [
            QueuedTask(next(self._names), device, QUESTIONS, group, in_packets=True, asker=asked.call, about=each)
            for each in about
        ]
        self.scheduler.wait_for(asked.call, tasks, now_s)
        if not tasks:
            self._tell_known(self._calls[asked.call])

    def take(self, said: Done | Failed, worker: str, now_s: float) -> Callable[[], None]:
        """A call has ended; returns what ends its task, to be called once all that was measured for it is kept."""
        call, ended = self._calls.get(said.call), None
        if call is None or call.worker != worker:
            return _nothing
        del self._calls[call.number]
        for work in call.tasks:
            answer = self.scheduler.answered(call.number, work.name, now_s)
            for other in answer.superfluous:
                self._tell(other, Stop(call=other.number, how="now"), None)
            self.n_done += answer.is_first
            if answer.resumed is not None:
                self._tell_known(answer.resumed)
            ended = self._close(work.name)
        self._follow(self.scheduler.ended(call.number, now_s), "")
        return _nothing if ended is None else _ending(ended.pending, said, worker)

    def leave(self, worker: str, now_s: float, reason: str, *, is_blamed: bool, has_ended: bool) -> None:
        """Others get what a worker had; but a score command that may still run is not run again."""
        for call in [call for call in self._calls.values() if call.worker == worker]:
            del self._calls[call.number]
            if not (has_ended or call.tasks[0].is_repeatable):
                for submitted in filter(None, [self._submitted.get(call.tasks[0].name)]):
                    text = f"{submitted.text}: its worker was lost, and what it ran there may still run"
                    self.fail(submitted, ExecutionError(f"{text}, so it is not run again: {reason}"))
        self._follow(self.scheduler.leave(worker, now_s, is_blamed=is_blamed), reason)

    def scores_on(self, worker: str) -> bool:
        """Whether a worker has something that may not be run twice."""
        return any(call.worker == worker and not call.tasks[0].is_repeatable for call in self._calls.values())

    def fail(self, submitted: Submitted, error: IoschedError) -> None:
        """Ends a task with an error, and whoever has it."""
        for call in self.scheduler.withdraw(submitted.name):
            self._tell(call, Stop(call=call.number, how="now"), None)
        self._close(submitted.name)
        submitted.pending.fail(error)

    def end_budgets(self, now_s: float, longest_stage_s: float, why: Callable[[str], str]) -> None:
        """Fails what no worker has begun within its budget, and what has no result long after.

        Args:
            why: says what is in the way on a device.
        """
        for each in self.submitted:
            if (budget := each.task.budget) is None:
                continue
            if budget.is_exceeded(now_s, longest_stage_s) or (budget.left_s(now_s) == 0 and not each.has_begun):
                what = "a worker had a result" if each.has_begun else "there was a worker for it"
                text = f"{each.text}: the budget of {budget.seconds:g} s was over before {what}."
                self.fail(each, ExecutionError(f"{text}{why(each.task.device)}\n{GO_ON}"))

    def n_under_way(self) -> int:
        """How many tasks a worker has."""
        return sum(len(call.tasks) for call in self._calls.values())

    def doing(self, worker: str) -> str:
        """What a worker does, for people."""
        return ", ".join(map(what_of, (call for call in self._calls.values() if call.worker == worker)))

    def close(self) -> None:
        """Removes the files."""
        self._folder.cleanup()

    def _of(self, submitted: Submitted) -> Iterator[Assignment]:
        return (call for call in self._calls.values() if call.tasks[0].name == submitted.name)

    def _tell_known(self, call: Assignment) -> None:
        if call.number in self._calls:
            self._tell(call, Known(call=call.number, rows=self._unseen(call.worker)), None)

    def _follow(self, loss: Loss, reason: str) -> None:
        """What failed is told; what others get is begun anew, but for what the user wants no more."""
        for work in loss.failed:
            if (submitted := self._close(work.name)) is not None:
                text = f"{submitted.text}: workers were lost again and again as they did it"
                submitted.pending.fail(ExecutionError(f"{text}.\nThe last: {reason}."))
        for call in loss.resumed:
            self._tell_known(call)
        self._end_stopped()

    def _end_stopped(self) -> None:
        for each in self.submitted:
            if each.stop is not None and not any(self._of(each)):
                self.fail(each, InterruptedTaskError("interrupted"))

    def _close(self, name: int) -> Submitted | None:
        """Forgets a task that has its answer; its file where no other task needs it."""
        submitted = self._submitted.pop(name, None)
        if submitted is not None and all(each.file != submitted.file for each in self.submitted):
            Path(submitted.file.path).unlink(missing_ok=True)
        return submitted


def what_of(call: Assignment) -> str:
    """What a call is, for people."""
    about: Any = call.tasks[0].about
    return about.text if isinstance(about, Submitted) else f"{len(call.tasks)} stages of {about.submitted.sent.name}"


def _packet(call: Assignment) -> dict[str, object]:
    about: list[_Question] = [work.about for work in call.tasks]
    return {"opening": about[0].opening, "questions": msgspec.to_builtins([each.question for each in about])}


def _ending(pending: Pending[Any], said: Done | Failed, worker: str) -> Callable[[], None]:
    error: IoschedError
    try:
        if isinstance(said, Failed):
            error = messages.raised(said, worker)
        else:
            result = read_as(said.result, pending.task.kind.result)
            return lambda: pending.fulfil(result)
    except ExecutionError as broken:
        error = broken
    return lambda: pending.fail(error)


def _nothing() -> None:
    """Ends nothing."""
