"""Submitted tasks, and the assignments of workers that run them."""

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
from iosched.scheduler.cost import Question

R = TypeVar("R")


@dataclass(eq=False)
class Submitted:
    """A task that has not been answered.

    Attributes:
        name: its name in the scheduler.
        stop: how to end it; None unless the user has stopped it.
        has_begun: whether it was assigned to a worker.
    """

    name: int
    pending: Pending[Any]
    sent: SentModel
    file: ModelFile
    stop: How | None = None
    has_begun: bool = False

    @property
    def task(self) -> Task[Any]:
        """The submitted task."""
        return self.pending.task

    @property
    def text(self) -> str:
        """A description for messages."""
        return f"{self.task.kind.name} {self.sent.name}"


@dataclass(frozen=True, eq=False)
class _Question:
    """A question of a task's search. `opening` holds the settings of the open model, as JSON."""

    submitted: Submitted
    opening: dict[str, Any]
    question: Question


class TaskRegistry:
    """Connects submitted tasks to the scheduler and to the messages of workers.

    Args:
        tell: sends a message about an assignment to its worker, with the task's file.
        unseen: returns the rows that a worker has not received.
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
        self._assignments: dict[int, Assignment] = {}

    @property
    def submitted(self) -> tuple[Submitted, ...]:
        """The unanswered tasks."""
        return tuple(self._submitted.values())

    def submit(self, task: Task[R]) -> Pending[R]:
        """Queues a task.

        Raises:
            UsageError: the model is too large to be sent.
        """
        pending, (sent, data) = Pending(task), packed(task.model)
        path = Path(self._folder.name, f"{sent.file}.onnx")
        if not path.exists():
            path.write_bytes(data)
        new = Submitted(next(self._names), pending, sent, ModelFile(sent.file, str(path)))
        self._submitted[new.name] = new
        kind = task.kind
        work = QueuedTask(new.name, task.device, kind.name, sent.file, is_repeatable=kind.is_repeatable, about=new)
        self.scheduler.submit([work])
        return pending

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Stops a task. A task that has not started ends at once, without a result."""
        for each in self.submitted:
            if each.pending is pending:
                each.stop = how
                for call in self._of(each):
                    self._tell(call, Stop(call=call.number, how=how), None)
        self._end_stopped()

    def give(self, active: dict[str, ActiveWorker], now_s: float) -> None:
        """Sends new assignments to workers."""
        for call in self.scheduler.assign(now_s):
            self._assignments[call.number] = call
            worker = active[call.worker]
            worker.heard_s = now_s
            about = call.tasks[0].about
            submitted = about if isinstance(about, Submitted) else about.submitted
            task, budget = submitted.task, submitted.task.budget
            others = () if worker.knows_others else task.rows
            worker.knows_others = worker.knows_others or bool(others)
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
        """Returns the task of an assignment; None if the worker does not have it, or the task has ended."""
        call = self._assignments.get(number)
        return self._submitted.get(call.tasks[0].name) if call is not None and call.worker == worker else None

    def ask(self, submitted: Submitted, asked: Asked, device: str, now_s: float) -> None:
        """Queues a round of questions of a task's search for the workers of a device."""
        group = f"{submitted.sent.file} {json.dumps(asked.opening, sort_keys=True)}"
        about = [_Question(submitted, asked.opening, question) for question in asked.questions]
        tasks = [
            QueuedTask(next(self._names), device, QUESTIONS, group, in_packets=True, asker=asked.call, about=each)
            for each in about
        ]
        self.scheduler.wait_for(asked.call, tasks, now_s)
        if not tasks:
            self._send_known(self._assignments[asked.call])

    def take(self, said: Done | Failed, worker: str, now_s: float) -> Callable[[], None]:
        """Ends an assignment; returns a function that ends its task, to be called after its rows are written."""
        call, ended = self._assignments.get(said.call), None
        if call is None or call.worker != worker:
            return _no_task_ended
        del self._assignments[call.number]
        for work in call.tasks:
            answer = self.scheduler.answered(call.number, work.name, now_s)
            for other in answer.superfluous:
                self._tell(other, Stop(call=other.number, how="now"), None)
            self.n_done += answer.is_first
            if answer.resumed is not None:
                self._send_known(answer.resumed)
            ended = self._close(work.name)
        self._handle_loss(self.scheduler.ended(call.number, now_s), "")
        return _no_task_ended if ended is None else _ending(ended.pending, said, worker)

    def leave(self, worker: str, now_s: float, reason: str, *, is_blamed: bool, has_ended: bool) -> None:
        """Reassigns a worker's tasks; fails a score command that may still be running."""
        for call in [call for call in self._assignments.values() if call.worker == worker]:
            del self._assignments[call.number]
            if not (has_ended or call.tasks[0].is_repeatable):
                for submitted in filter(None, [self._submitted.get(call.tasks[0].name)]):
                    text = f"{submitted.text}: its worker was lost, and what it ran there may still run"
                    self.fail(submitted, ExecutionError(f"{text}, so it is not run again: {reason}"))
        self._handle_loss(self.scheduler.leave(worker, now_s, is_blamed=is_blamed), reason)

    def scores_on(self, worker: str) -> bool:
        """Whether a worker runs a task that must not run twice."""
        return any(call.worker == worker and not call.tasks[0].is_repeatable for call in self._assignments.values())

    def fail(self, submitted: Submitted, error: IoschedError) -> None:
        """Ends a task with an error and stops its assignments."""
        for call in self.scheduler.withdraw(submitted.name):
            self._tell(call, Stop(call=call.number, how="now"), None)
        self._close(submitted.name)
        submitted.pending.fail(error)

    def end_budgets(self, now_s: float, longest_stage_s: float, why: Callable[[str], str]) -> None:
        """Fails tasks that have exceeded their budget, or have not started within it.

        Args:
            why: explains why a device has no worker.
        """
        for each in self.submitted:
            if (budget := each.task.budget) is None:
                continue
            if budget.is_exceeded(now_s, longest_stage_s) or (budget.left_s(now_s) == 0 and not each.has_begun):
                what = "a worker had a result" if each.has_begun else "there was a worker for it"
                text = f"{each.text}: the budget of {budget.seconds:g} s was over before {what}."
                self.fail(each, ExecutionError(f"{text}{why(each.task.device)}\n{GO_ON}"))

    def n_under_way(self) -> int:
        """Returns the number of assigned tasks."""
        return sum(len(call.tasks) for call in self._assignments.values())

    def doing(self, worker: str) -> str:
        """Describes the assignments of a worker, for messages."""
        return ", ".join(map(what_of, (call for call in self._assignments.values() if call.worker == worker)))

    def close(self) -> None:
        """Removes the model files."""
        self._folder.cleanup()

    def _of(self, submitted: Submitted) -> Iterator[Assignment]:
        return (call for call in self._assignments.values() if call.tasks[0].name == submitted.name)

    def _send_known(self, call: Assignment) -> None:
        if call.number in self._assignments:
            self._tell(call, Known(call=call.number, rows=self._unseen(call.worker)), None)

    def _handle_loss(self, loss: Loss, reason: str) -> None:
        """Reports failed tasks, resumes waiting assignments, and ends stopped tasks."""
        for work in loss.failed:
            if (submitted := self._close(work.name)) is not None:
                text = f"{submitted.text}: workers were lost again and again as they did it"
                submitted.pending.fail(ExecutionError(f"{text}.\nThe last: {reason}."))
        for call in loss.resumed:
            self._send_known(call)
        self._end_stopped()

    def _end_stopped(self) -> None:
        for each in self.submitted:
            if each.stop is not None and not any(self._of(each)):
                self.fail(each, InterruptedTaskError("interrupted"))

    def _close(self, name: int) -> Submitted | None:
        """Removes an answered task, and its file unless another task uses it."""
        submitted = self._submitted.pop(name, None)
        if submitted is not None and all(each.file != submitted.file for each in self.submitted):
            Path(submitted.file.path).unlink(missing_ok=True)
        return submitted


def what_of(call: Assignment) -> str:
    """Describes an assignment, for messages."""
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


def _no_task_ended() -> None:
    pass
