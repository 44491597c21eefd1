"""Submitted tasks, and the assignments of workers that run them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import msgspec

from iosched.jobs.pool import messages
from iosched.jobs.pool.codec import read_as
from iosched.jobs.pool.messages import InterruptedTaskError, Rows, SentModel
from iosched.jobs.pool.scheduling import Assignment, Decisions, Scheduler
from iosched.jobs.pool.sending import packed
from iosched.jobs.pool.task import How, Pending, Task
from iosched.jobs.pool.task_queue import QueuedTask
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.worker_slots import GO_ON, ActiveWorker
from iosched.models.errors import ExecutionError, IoschedError
from iosched.scheduler.cost import CostQuestion

R = TypeVar("R")


@dataclass(eq=False, kw_only=True)
class Submitted(QueuedTask):
    """A task that a job has submitted.

    Attributes:
        stop: how to end it; None unless the user has stopped it.
        has_begun: whether it was assigned to a worker.
    """

    pending: Pending[Any]
    sent: SentModel
    stop: How | None = None
    has_begun: bool = False

    @property
    def task(self) -> Task[Any]:
        """The submitted task."""
        return self.pending.task

    @property
    def text(self) -> str:
        """A description for messages."""
        return f"{self.kind} {self.sent.name}"


@dataclass(eq=False, kw_only=True)
class _AskedTask(QueuedTask):
    """A question of a task's search. `opening` holds the settings of the open model, as JSON."""

    submitted: Submitted
    opening: dict[str, Any]
    question: CostQuestion


class TaskRegistry:
    """Connects submitted tasks to the scheduler and to the messages of workers.

    Args:
        tell: sends a message about an assignment to its worker, with the path of the task's model.
        unseen: returns the rows that a worker has not received.
    """

    def __init__(
        self,
        timeouts: Timeouts,
        tell: Callable[[Assignment, messages.DriverMessage, str | None], None],
        unseen: Callable[[str], Rows],
    ) -> None:
        self._tell, self._unseen = tell, unseen
        self.scheduler = Scheduler(timeouts)
        self.n_done = 0
        self._folder = TemporaryDirectory(prefix="iosched-pool-")
        self._names = count(1)

    @property
    def submitted(self) -> list[Submitted]:
        """The unanswered tasks."""
        return [task for task in self.scheduler.tasks.values() if isinstance(task, Submitted)]

    def submit(self, task: Task[R]) -> Pending[R]:
        """Queues a task.

        Raises:
            UsageError: the model is too large to be sent.
        """
        pending, (sent, data), kind = Pending(task), packed(task.model), task.kind
        if not (path := self._path(sent)).exists():
            path.write_bytes(data)
        queued = Submitted(
            *(next(self._names), task.device, kind.name, sent.file),
            is_repeatable=kind.is_repeatable,
            pending=pending,
            sent=sent,
        )
        self.scheduler.submit([queued])
        return pending

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Stops a task. A task that has not started ends at once, without a result."""
        for each in self.submitted:
            if each.pending is pending:
                each.stop = how
                for number in each.holders:
                    self._tell(self.scheduler.assignments[number], messages.StopAssignment(call=number, how=how), None)
        self._end_stopped()

    def give(self, active: dict[str, ActiveWorker], now_s: float) -> None:
        """Sends new assignments to workers."""
        for call in self.scheduler.assign(now_s):
            worker, first = active[call.worker], call.tasks[0]
            worker.heard_s = now_s
            submitted = _submitted(first)
            task, budget = submitted.task, submitted.task.budget
            others = () if worker.knows_others else task.rows
            worker.knows_others = worker.knows_others or bool(others)
            is_whole = submitted is first
            message = messages.Call(
                call=call.number,
                kind=first.kind,
                work=msgspec.to_builtins(task.work) if is_whole else _packet(call),
                model=submitted.sent,
                rows=(*others, *self._unseen(call.worker)),
                left_s=None if budget is None else budget.left_s(now_s),
                asks=is_whole and task.asks,
            )
            self._tell(call, message, str(self._path(submitted.sent)))
            submitted.has_begun = submitted.has_begun or is_whole
            if is_whole and submitted.stop is not None:
                self._tell(call, messages.StopAssignment(call=call.number, how=submitted.stop), None)

    def report(self, said: messages.Report, worker: str, device: str, now_s: float) -> None:
        """Handles a worker's report about an assignment, unless the worker does not have it or its task has ended.

        Args:
            device: the device of the workers that may answer questions.
        """
        call = self.scheduler.assignments.get(said.call)
        if call is None or call.worker != worker:
            return
        for submitted in [task for task in call.open.values() if isinstance(task, Submitted)]:
            if isinstance(said, messages.Asked):
                self._ask(submitted, said, device, now_s)
            elif not isinstance(said, messages.Opened):
                submitted.task.on_said(said)
            elif submitted.task.budget is not None:
                submitted.task.budget.open(now_s)

    def _ask(self, submitted: Submitted, asked: messages.Asked, device: str, now_s: float) -> None:
        """Queues a round of questions of a task's search."""
        opening = asked.opening
        group = f"{submitted.sent.file} {json.dumps(opening, sort_keys=True)}"
        about = (messages.QUESTIONS, group, True, asked.call)
        tasks = [
            _AskedTask(next(self._names), device, *about, submitted=submitted, opening=opening, question=question)
            for question in asked.questions
        ]
        self.scheduler.wait_for(asked.call, tasks, now_s)
        if not tasks:
            self._send_known(self.scheduler.assignments[asked.call])

    def take(self, said: messages.Done | messages.Failed, worker: str, now_s: float) -> Callable[[], None] | None:
        """Ends an assignment; returns a function that ends its task, to be called after its rows are written."""
        call, end = self.scheduler.assignments.get(said.call), None
        if call is None or call.worker != worker:
            return None
        for task in call.tasks:
            answer = self.scheduler.answered(call.number, task.name, now_s)
            self._handle(answer, "")
            self.n_done += answer.is_first
            if answer.is_first and isinstance(task, Submitted):
                self._remove_file(task)
                end = _ending(task.pending, said, worker)
        self._handle(self.scheduler.ended(call.number, now_s), "")
        self._end_stopped()
        return end

    def leave(self, worker: str, now_s: float, reason: str, *, is_blamed: bool, has_ended: bool) -> None:
        """Reassigns a worker's tasks; fails a score command that may still be running."""
        for call in self._of(worker):
            for task in list(call.open.values()):
                if not (has_ended or task.is_repeatable) and isinstance(task, Submitted):
                    text = f"{task.text}: its worker was lost, and what it ran there may still run"
                    self.fail(task, ExecutionError(f"{text}, so it is not run again: {reason}"))
        self._handle(self.scheduler.leave(worker, now_s, is_blamed=is_blamed), reason)
        self._end_stopped()

    def scores_on(self, worker: str) -> bool:
        """Whether a worker runs a task that must not run twice."""
        return any(not call.tasks[0].is_repeatable for call in self._of(worker))

    def fail(self, task: Submitted, error: IoschedError) -> None:
        """Ends a task with an error and stops its assignments."""
        self._handle(Decisions(superfluous=self.scheduler.withdraw(task.name)), "")
        self._remove_file(task)
        task.pending.set_exception(error)

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
                self.fail(each, ExecutionError(f"{text}{why(each.device)}\n{GO_ON}"))

    def doing(self, worker: str) -> str:
        """Describes the assignments of a worker, for messages."""
        return ", ".join(map(what_of, self._of(worker)))

    def close(self) -> None:
        """Removes the model files."""
        self._folder.cleanup()

    def _of(self, worker: str) -> list[Assignment]:
        return [call for call in self.scheduler.assignments.values() if call.worker == worker]

    def _send_known(self, call: Assignment) -> None:
        self._tell(call, messages.Known(call=call.number, rows=self._unseen(call.worker)), None)

    def _handle(self, decisions: Decisions, reason: str) -> None:
        """Stops superfluous assignments, fails lost tasks, and resumes waiting assignments."""
        for call in decisions.superfluous:
            self._tell(call, messages.StopAssignment(call=call.number, how="now"), None)
        for task in decisions.failed:
            if isinstance(task, Submitted):
                text = f"{task.text}: workers were lost again and again as they did it"
                self.fail(task, ExecutionError(f"{text}.\nThe last: {reason}."))
        for call in decisions.resumed:
            self._send_known(call)

    def _end_stopped(self) -> None:
        for each in self.submitted:
            if each.stop is not None and not each.holders:
                self.fail(each, InterruptedTaskError("interrupted"))

    def _remove_file(self, ended: Submitted) -> None:
        """Removes the model file of an answered task unless another task uses it."""
        if all(each.sent.file != ended.sent.file for each in self.submitted):
            self._path(ended.sent).unlink(missing_ok=True)

    def _path(self, sent: SentModel) -> Path:
        return Path(self._folder.name, f"{sent.file}.onnx")


def what_of(call: Assignment) -> str:
    """Describes an assignment, for messages."""
    first = call.tasks[0]
    return first.text if isinstance(first, Submitted) else f"{len(call.tasks)} stages of {_submitted(first).sent.name}"


def _submitted(task: QueuedTask) -> Submitted:
    """Returns a submitted task, or the one that a question belongs to."""
    found = task.submitted if isinstance(task, _AskedTask) else task
    assert isinstance(found, Submitted)
    return found


def _packet(call: Assignment) -> dict[str, object]:
    asked = [task for task in call.tasks if isinstance(task, _AskedTask)]
    return {"opening": asked[0].opening, "questions": msgspec.to_builtins([each.question for each in asked])}


def _ending(pending: Pending[Any], said: messages.Done | messages.Failed, worker: str) -> Callable[[], None]:
    try:
        if isinstance(said, messages.Failed):
            return partial(pending.set_exception, messages.raised(said, worker))
        return partial(pending.set_result, read_as(said.result, pending.task.kind.result))
    except ExecutionError as error:
        return partial(pending.set_exception, error)
