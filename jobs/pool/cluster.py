"""A pool of the workers of a cluster. Tasks, what was measured and who does what are the driver's, and on one thread:
whoever waits for a result has messages read, rows written and works assigned meanwhile.

A transport may end at any time; another is made, and what was not answered is asked again.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from iosched.jobs.pool import messages, transport
from iosched.jobs.pool.ahead import QUESTIONS
from iosched.jobs.pool.backlog import Work
from iosched.jobs.pool.budget import Budget
from iosched.jobs.pool.messages import Asked, Call, Done, Facts, Failed, Known, Measured, Opened, SentModel, Unusable
from iosched.jobs.pool.patience import Patience
from iosched.jobs.pool.plain import read_as
from iosched.jobs.pool.roster import Member, Roster
from iosched.jobs.pool.row_writer import RowWriter
from iosched.jobs.pool.rows import RowLog, family_of, is_of_gpu
from iosched.jobs.pool.scheduling import Assignment, Loss, Scheduler, WorkerInfo
from iosched.jobs.pool.sending import packed
from iosched.jobs.pool.status import PoolObserver, PoolStatus, Silence, WorkerStatus
from iosched.jobs.pool.task import POLL_S, How, Pending, Target, Task
from iosched.jobs.pool.transport import Lost, ModelFile, Place, Places, Reached, Said, Send, Transport, Unreached
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError, UsageError
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.store.database import ProfileDatabase, default_path, is_there
from iosched.scheduler.questions import Question

R = TypeVar("R")

_STEP_S, _ROUND_S = 0.25, 0.2
_LONGEST_PAUSE_S = 30.0
_GO_ON = "What was measured is kept: run the command again to go on from there, with a larger --budget if it has one."


@dataclass(frozen=True)
class ClusterPatience:
    """How long the driver waits.

    Attributes:
        works: see `Patience`.
        without_s: for some worker of a device, before the tasks for it fail.
        reconnect_s: before another transport is made; twice as long each time.
        ending_s: until nothing is left of a score command whose worker has ended.
    """

    works: Patience = field(default_factory=Patience)
    without_s: float = 180.0
    reconnect_s: float = 1.0
    ending_s: float = 3.0


@dataclass(eq=False)
class _Submitted:
    """A task until it has its answer.

    Attributes:
        stop: how it is to end, since the user has said so.
        has_begun: whether a worker has had it.
    """

    work: Work
    pending: Pending[Any]
    sent: SentModel
    file: ModelFile
    stop: How | None = None
    has_begun: bool = False

    @property
    def task(self) -> Task[Any]:
        return self.pending.task

    @property
    def text(self) -> str:
        return f"{self.task.kind.name} {self.sent.name}"


@dataclass(frozen=True, eq=False)
class _Question:
    """A question of the search of a task, as work of its own."""

    submitted: _Submitted
    asked: Asked
    question: Question


class ClusterPool:
    """Workers of a cluster; a context manager, and a `Pool`.

    Args:
        connect: makes a transport; called again where one has ended. Raises `DeviceError` where there can be none.
        path: the profile database that all that is measured comes to; None for one in memory.
        observer: is shown what happens.
        patience: how long to wait for what.
    """

    n_spare = 1

    def __init__(
        self,
        connect: Callable[[], Transport],
        path: Path | None,
        observer: PoolObserver | None = None,
        patience: ClusterPatience | None = None,
    ) -> None:
        self._connect, self._observer = connect, observer or Silence()
        self._patience = patience or ClusterPatience()
        self._scheduler = Scheduler(self._patience.works)
        self._roster, self._log, self._writer = Roster(), RowLog(), RowWriter(path)
        self._folder = TemporaryDirectory(prefix="iosched-pool-")
        self._names = count(1)
        self._submitted: dict[int, _Submitted] = {}
        self._questions: dict[int, _Question] = {}
        self._calls: dict[int, Assignment] = {}
        self._ends: list[tuple[int, Callable[[], None]]] = []  # after so many rows were written
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._transport: Transport | None = None
        self._events: deque[transport.Event] = deque()
        self._was_reached = False
        self._connect_at_s = self._round_at_s = 0.0
        self._pause_s = self._patience.reconnect_s
        self._without: dict[str, float] = {}
        self._had: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._lost: list[str] = []
        self._trouble = ""
        self._longest_s = 0.0
        self._n_done = 0
        self._status = PoolStatus()

    def __enter__(self) -> ClusterPool:
        """Waits until the cluster has said what it has.

        Raises:
            DeviceError: there is no cluster.
        """
        try:
            while not self._roster.is_known:
                self._turn(_STEP_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name."""
        return self._roster.devices

    def target(self, text: str, profile_db: Path | None = None, *, may_simulate: bool = True) -> Target:
        """The device that a text means; "auto" is a GPU where there is one, and CPUs simulate a GPU that is not there.

        Raises:
            UsageError: the cluster has no such device, and cannot simulate it.
        """
        there = sorted(self.devices, key=lambda device: (device == "cpu", device))
        wanted, gpu = text.strip().lower(), gpu_named(text)
        if wanted == "auto" and there:
            wanted = there[0]
        elif gpu is not None and gpu.key in there:
            wanted = gpu.key
        elif may_simulate and gpu is not None and "cpu" in there:
            return Target(gpu.key, gpu.key, "cpu", is_elsewhere=True, rows=_rows_of_gpus(profile_db))
        if wanted in there:
            return Target(wanted, wanted, wanted, is_elsewhere=True)
        has = ", ".join(there) or "no device at all"
        raise UsageError(f"the cluster has no device {text!r}: it has {has}")

    def count(self, device: str) -> int:
        """How many workers a device can have, whether or not they are up."""
        return self._roster.count(device)

    def n_up(self, devices: Iterable[str]) -> int:
        """How many workers the best equipped of these devices has now; at least one, which may be on its way."""
        up = [member.facts.device for member in self._roster.members.values()]
        return max((up.count(device) for device in devices), default=0) or 1

    def budget(self, seconds: float | None) -> Budget | None:
        """The budget of a job, which begins when a first worker has a model open."""
        return None if seconds is None else Budget(seconds)

    def status(self) -> PoolStatus:
        """What the pool does now; once it is closed, what it did last."""
        return self._status

    def submit(self, task: Task[R]) -> Pending[R]:
        """Has a worker do a task.

        The result may be an error: of the worker's, of the same class; `ExecutionError` where too many workers were
        lost with this task, or it is over its budget; `DeviceLostError` where all workers of the device were lost;
        `DeviceError` where there never was one; `InterruptedTaskError` where it was told to stop.

        Raises:
            UsageError: its model is too large to be sent.
        """
        pending, (sent, data) = Pending(task), packed(task.model)
        path = Path(self._folder.name, f"{sent.file}.onnx")
        if not path.exists():
            path.write_bytes(data)
        kind = task.kind
        work = Work(next(self._names), task.device, kind.name, sent.file, is_repeatable=kind.is_repeatable)
        self._submitted[work.name] = _Submitted(work, pending, sent, ModelFile(sent.file, str(path)))
        self._roster.wanted.add(task.device)
        self._scheduler.submit([work])
        self._round_at_s = 0.0
        return pending

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Has a task end in this way; one that no worker has begun ends at once, without a result."""
        for each in list(self._submitted.values()):
            if each.pending is pending:
                each.stop = how
                holders = self._holders(each)
                for assignment in holders:
                    self._tell(assignment, messages.Stop(call=assignment.number, how=how))
                if not holders:
                    self._fail(each, messages.InterruptedTaskError("interrupted"))

    def wait(self, pending: Sequence[Pending[Any]], timeout_s: float = POLL_S) -> None:
        """Waits until one of these tasks is done, at most so long; messages are read meanwhile.

        Raises:
            DeviceError: there is no cluster.
            IoschedError: what was measured can never be written to the database.
        """
        until = time.monotonic() + timeout_s
        self._turn(0.0)
        while not any(each.is_done for each in pending) and (left_s := until - time.monotonic()) > 0:
            self._turn(min(left_s, _STEP_S))

    def close(self) -> None:
        """Ends all workers, and waits until all that was measured is written; may be called twice.

        Raises:
            IoschedError: something that was measured could not be written to the database.
        """
        self._status = self._now()
        there, self._transport = self._transport, None
        if there is not None:
            there.close()
        try:
            self._writer.close()
        finally:
            self._folder.cleanup()

    def _turn(self, wait_s: float) -> None:
        """Does what has come, or waits so long for something; then gives out work."""
        if self._transport is None:
            self._reach(wait_s)
        if self._transport is not None:
            self._events += self._transport.receive(0.0 if self._events else wait_s)
        while self._events:  # also those that were left when the user interrupted
            self._handle(self._events.popleft(), time.monotonic())
        now_s = time.monotonic()
        if now_s >= self._round_at_s:
            self._round_at_s = now_s + _ROUND_S
            self._look_round(now_s)
        self._end_budgets(now_s)
        for assignment in self._scheduler.assign(now_s):
            self._give(assignment, now_s)
        self._write()

    def _reach(self, wait_s: float) -> None:
        """Makes a transport, unless one has just failed."""
        now_s = time.monotonic()
        if now_s < self._connect_at_s:
            time.sleep(min(wait_s, self._connect_at_s - now_s))
            return
        self._connect_at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        try:
            self._transport = self._connect()
        except IoschedError as error:
            if not self._was_reached:
                raise
            self._observer.note(f"the cluster is not reached: {error}")

    def _handle(self, event: transport.Event, now_s: float) -> None:
        match event:
            case Reached():
                self._was_reached, self._pause_s = True, self._patience.reconnect_s
            case Places(places):
                self._roster.change(places)
                self._round_at_s = 0.0
            case Lost(worker, reason, has_ended):
                self._lose(worker, reason, now_s, has_ended=has_ended)
            case Unreached(reason, has_ended):
                self._lose_all(reason, now_s, has_ended=has_ended)
            case Said(worker, message):
                try:
                    self._hear(worker, messages.said(message), now_s)
                except ExecutionError as error:
                    self._refuse(worker, f"it says what is not understood here: {error}", now_s)

    def _hear(self, worker: str, said: messages.SaidMessage, now_s: float) -> None:
        member = self._roster.members.get(worker)
        if isinstance(said, Facts):
            self._arrive(worker, said, now_s)
        elif isinstance(said, Unusable):
            self._send(transport.Stop(worker))
            self._lose(worker, said.reason, now_s, has_ended=True)
        elif member is not None:
            took_s, member.heard_s = now_s - member.heard_s, now_s
            if isinstance(said, Measured):
                self._longest_s = max(self._longest_s, took_s)
                self._keep(said.rows, worker)
                self._watch(worker, member, said, now_s)
            elif (call := self._calls.get(said.call)) is not None and call.worker == worker:
                self._hear_of(call, member, said, now_s)

    def _hear_of(self, call: Assignment, member: Member, said: Any, now_s: float) -> None:
        submitted = self._submitted.get(call.works[0].name)
        if isinstance(said, Done | Failed):
            self._take(call, member, said, now_s)
        elif submitted is None:
            return
        elif isinstance(said, Asked):
            self._ask(call, submitted, said, member, now_s)
        elif not isinstance(said, Opened):
            submitted.task.on_said(said)
        elif submitted.task.budget is not None:
            submitted.task.budget.open(now_s)

    def _arrive(self, worker: str, facts: Facts, now_s: float) -> None:
        """A worker is up: it is used if it is of the same version, and no quieter machine has one where it is noisy."""
        place = self._roster.place_of(worker)
        if place is None:
            self._send(transport.Stop(worker))
        elif facts.other_version:
            self._refuse(worker, facts.other_version, now_s)
        elif facts.disturbed_by and self._roster.is_quieter_elsewhere(place):
            self._rest(worker, place, f"its machine is too noisy to measure on: {facts.disturbed_by[-1]}", now_s)
        else:
            self._admit(worker, facts, place)

    def _admit(self, worker: str, facts: Facts, place: Place) -> None:
        family = family_of(facts.key)
        if not self._log.has(family):
            self._log.begin(family, self._writer.all_rows())
        self._keep(facts.yardstick, None)
        self._roster.members[worker] = Member(facts, place)
        self._had.add(facts.device)
        side = "cpu" if facts.device == "cpu" else "gpu"
        self._scheduler.join(WorkerInfo(worker, (facts.device, facts.key), place.node, side))
        noisy = f"; its machine is noisy: {facts.disturbed_by[-1]}" if facts.disturbed_by else ""
        self._observer.note(f"{worker} is up: {facts.name} of {place.address}{noisy}")

    def _refuse(self, worker: str, reason: str, now_s: float) -> None:
        """Uses no worker on this device any more."""
        if (place := self._roster.place_of(worker)) is not None:
            self._send(transport.Stop(worker))
            self._roster.shut(worker)
            self._tell_unused(place, reason)
        self._leave(worker, now_s, reason, is_blamed=False, has_ended=False)

    def _rest(self, worker: str, place: Place, reason: str, now_s: float) -> None:
        """Uses the device again later, or where no other is left."""
        self._send(transport.Stop(worker))
        self._roster.rest(worker, now_s)
        self._tell_unused(place, reason)
        self._leave(worker, now_s, reason, is_blamed=False, has_ended=False)

    def _watch(self, worker: str, member: Member, said: Measured, now_s: float) -> None:
        """A worker most of whose last measurements were disturbed is given up if a quieter machine has another."""
        member.measured(said.rows)
        if (noise := member.noise) and self._roster.is_quieter_elsewhere(member.place):
            self._rest(worker, member.place, f"its machine has become too noisy to measure on: {noise}", now_s)

    def _tell_unused(self, place: Place, reason: str) -> None:
        text = f"{place.device} of {place.address} is not used: {reason}"
        if self._reasons.get(place.device) != text:
            self._observer.note(text)
        self._reasons[place.device] = text

    def _give(self, assignment: Assignment, now_s: float) -> None:
        """Sends an assignment to its worker."""
        member = self._roster.members[assignment.worker]
        member.heard_s = now_s
        self._calls[assignment.number] = assignment
        submitted = self._submitted.get(assignment.works[0].name)
        owner = submitted or self._questions[assignment.works[0].name].submitted
        task, budget = owner.task, owner.task.budget
        others = () if member.knows_others else task.rows
        member.knows_others = member.knows_others or bool(others)
        kind, work = (task.kind.name, msgspec.to_builtins(task.work)) if submitted else self._packet(assignment)
        call = Call(
            call=assignment.number,
            kind=kind,
            work=work,
            model=owner.sent,
            rows=(*others, *self._unseen(assignment.worker)),
            left_s=None if budget is None else budget.left_s(now_s),
            asks=submitted is not None and task.asks,
        )
        self._tell(assignment, call, owner.file)
        if submitted is not None:
            submitted.has_begun = True
            if submitted.stop is not None:
                self._tell(assignment, messages.Stop(call=assignment.number, how=submitted.stop))

    def _packet(self, assignment: Assignment) -> tuple[str, object]:
        found = [self._questions[work.name] for work in assignment.works]
        questions = msgspec.to_builtins([each.question for each in found])
        return QUESTIONS, {"opening": found[0].asked.opening, "questions": questions}

    def _ask(self, call: Assignment, submitted: _Submitted, asked: Asked, member: Member, now_s: float) -> None:
        """The search of a call waits for the answers of others."""
        group = f"{submitted.sent.file} {json.dumps(asked.opening, sort_keys=True)}"
        works = []
        for question in asked.questions:
            name, device = next(self._names), member.facts.key
            works.append(Work(name, device, QUESTIONS, group, in_packets=True, asker=call.number))
            self._questions[name] = _Question(submitted, asked, question)
        self._scheduler.wait_for(call.number, works, now_s)
        if not works:
            self._tell_known(call)

    def _tell_known(self, call: Assignment) -> None:
        self._tell(call, Known(call=call.number, rows=self._unseen(call.worker)))

    def _take(self, call: Assignment, member: Member, said: Done | Failed, now_s: float) -> None:
        """A call has ended with a result."""
        del self._calls[call.number]
        member.done += len(call.works)
        self._roster.proved(call.worker)
        for work in call.works:
            answer = self._scheduler.answered(call.number, work.name, now_s)
            for other in answer.superfluous:
                self._tell(other, messages.Stop(call=other.number, how="now"))
            self._n_done += answer.is_first
            self._questions.pop(work.name, None)
            if answer.resumed is not None:
                self._tell_known(answer.resumed)
            if (submitted := self._close(work.name)) is not None:
                self._end(submitted, said, call.worker)
        self._follow(self._scheduler.ended(call.number, now_s), "")

    def _end(self, submitted: _Submitted, said: Done | Failed, worker: str) -> None:
        """Ends a task once all that was measured for it is in the database."""
        pending = submitted.pending
        try:
            if isinstance(said, Failed):
                raise messages.raised(said, worker)
            result = read_as(said.result, pending.task.kind.result)
        except IoschedError as error:
            pending_error = error
            self._ends.append((self._writer.n_added, lambda: setattr(pending, "error", pending_error)))
        else:
            self._ends.append((self._writer.n_added, lambda: pending.fulfil(result)))

    def _lose(self, worker: str, reason: str, now_s: float, *, has_ended: bool) -> None:
        if (place := self._roster.place_of(worker)) is not None:
            text = f"{worker} on {place.device} of {place.address} was lost: {reason}"
            self._reasons[place.device] = text
            self._lost.append(text)
            self._observer.note(text)
        self._roster.lost(worker, now_s)
        self._leave(worker, now_s, reason, is_blamed=True, has_ended=has_ended)

    def _lose_all(self, reason: str, now_s: float, *, has_ended: bool) -> None:
        """The transport has ended, and all workers with it: no task's fault."""
        assert self._transport is not None
        self._transport.close()
        self._transport = None
        for worker in list(self._roster.members):
            self._leave(worker, now_s, reason, is_blamed=False, has_ended=has_ended)
        self._roster.clear()
        if not self._was_reached:
            raise DeviceError(reason)
        self._connect_at_s = now_s + self._pause_s
        self._observer.note(f"the cluster is not reached any more ({reason}); trying again")

    def _leave(self, worker: str, now_s: float, reason: str, *, is_blamed: bool, has_ended: bool) -> None:
        """Others get what a worker had; a score command, once nothing is left of it where it ran."""
        self._roster.members.pop(worker, None)
        calls = [call for call in self._calls.values() if call.worker == worker]
        for call in calls:
            del self._calls[call.number]
        scored = [call.works[0] for call in calls if not call.works[0].is_repeatable]
        if scored and has_ended:
            end = lambda: self._follow(self._scheduler.leave(worker, now_s, is_blamed=is_blamed), reason)  # noqa: E731
            self._later.append((now_s + self._patience.ending_s, end))
            return
        for work in scored:
            if (submitted := self._submitted.get(work.name)) is not None:
                text = f"{submitted.text}: its worker was lost, and what it ran there may still run"
                self._fail(submitted, ExecutionError(f"{text}, so it is not run again: {reason}"))
        self._follow(self._scheduler.leave(worker, now_s, is_blamed=is_blamed), reason)

    def _follow(self, loss: Loss, reason: str) -> None:
        """What is given to others is begun anew, but for what the user wants no more; what failed is told."""
        for work in loss.failed:
            self._questions.pop(work.name, None)
            if (submitted := self._close(work.name)) is not None:
                text = f"{submitted.text}: workers were lost again and again as they did it"
                submitted.pending.error = ExecutionError(f"{text}.\nThe last: {reason}.")
        for call in loss.resumed:
            if call.number in self._calls:
                self._tell_known(call)
        for each in list(self._submitted.values()):
            if each.stop is not None and not self._holders(each):
                self._fail(each, messages.InterruptedTaskError("interrupted"))

    def _holders(self, submitted: _Submitted) -> list[Assignment]:
        return [call for call in self._calls.values() if call.works[0].name == submitted.work.name]

    def _fail(self, submitted: _Submitted, error: IoschedError) -> None:
        for call in self._scheduler.withdraw(submitted.work.name):
            self._tell(call, messages.Stop(call=call.number, how="now"))
        self._close(submitted.work.name)
        submitted.pending.error = error

    def _close(self, name: int) -> _Submitted | None:
        """Forgets a task that has its answer, with what it asked; its file where no other task needs it."""
        submitted = self._submitted.pop(name, None)
        if submitted is None:
            return None
        self._questions = {name: each for name, each in self._questions.items() if each.submitted is not submitted}
        if all(each.file != submitted.file for each in self._submitted.values()):
            Path(submitted.file.path).unlink(missing_ok=True)
        return submitted

    def _look_round(self, now_s: float) -> None:
        """Starts workers, gives to others what is late, and gives up what waited too long."""
        due = [do for when_s, do in self._later if when_s <= now_s]
        self._later = [each for each in self._later if each[0] > now_s]
        for do in due:
            do()
        for start in self._roster.to_start(now_s):
            self._send(start)
        for call in self._scheduler.late(now_s):
            self._observer.note(f"{call.worker} takes long for {self._doing([call])}: another is asked, too")
        self._give_up(now_s)
        if (status := self._now()) != self._status:
            self._status = status
            self._observer.status(status)

    def _end_budgets(self, now_s: float) -> None:
        """Fails what no worker has begun within its budget, and what has no result long after."""
        for each in list(self._submitted.values()):
            if (budget := each.task.budget) is None:
                continue
            if budget.is_exceeded(now_s, self._longest_s) or (budget.left_s(now_s) == 0 and not each.has_begun):
                what = "a worker had a result" if each.has_begun else "there was a worker for it"
                text = f"{each.text}: the budget of {budget.seconds:g} s was over before {what}."
                self._fail(each, ExecutionError(f"{text}{self._why(each.task.device)}\n{_GO_ON}"))

    def _give_up(self, now_s: float) -> None:
        """Fails what has waited too long for any worker of its device; who asks again later waits as long again."""
        served = {member.facts.device for member in self._roster.members.values()}
        without = {each.task.device for each in self._submitted.values()} - served
        self._without = {device: self._without.get(device, now_s) for device in without}
        for each in list(self._submitted.values()):
            if now_s - self._without.get(each.task.device, now_s) >= self._patience.without_s:
                self._fail(each, self._no_worker(each.task.device))

    def _no_worker(self, device: str) -> IoschedError:
        why, without_s = self._why(device), self._patience.without_s
        if device in self._had:
            text = f"all workers on {device} were lost, and none came for {without_s:.0f} s."
            return DeviceLostError(f"{text}{why}\n{_GO_ON}")
        there = ", ".join(self.devices) or "none"
        return DeviceError(
            f"no worker on {device} came up within {without_s:.0f} s; the cluster has: {there}.{why}\n"
            "See what its machines lack with: iosched devices --cluster"
        )

    def _why(self, device: str) -> str:
        reason = self._reasons.get(device)
        return f"\nThe last: {reason}." if reason else ""

    def _unseen(self, worker: str) -> messages.Rows:
        return self._log.unseen(worker, family_of(self._roster.members[worker].facts.key))

    def _keep(self, rows: messages.Rows, worker: str | None) -> None:
        self._writer.add(self._log.add(rows, worker))

    def _write(self) -> None:
        trouble = self._writer.step()
        if trouble is not None and trouble != self._trouble:
            self._trouble = trouble
            self._observer.note(f"{trouble.splitlines()[0]} Nothing is lost: it is tried again.")
        while self._ends and self._ends[0][0] <= self._writer.n_written:
            self._ends.pop(0)[1]()

    def _tell(self, call: Assignment, message: messages.ToldMessage, file: ModelFile | None = None) -> None:
        self._send(Send(call.worker, messages.encoded(message), file))

    def _send(self, command: transport.Command) -> None:
        if self._transport is not None:
            self._transport.send(command)

    def _now(self) -> PoolStatus:
        calls = list(self._calls.values())
        workers = tuple(
            WorkerStatus(
                name,
                member.place.address,
                member.facts.device,
                member.facts.name,
                self._doing([call for call in calls if call.worker == name]),
                member.done,
            )
            for name, member in self._roster.members.items()
        )
        under_way = sum(len(call.works) for call in calls)
        return PoolStatus(workers, self._scheduler.waiting(), under_way, self._n_done, tuple(self._lost))

    def _doing(self, calls: Iterable[Assignment]) -> str:
        """What a worker with these calls does, for people."""
        texts = []
        for call in calls:
            name = call.works[0].name
            if (submitted := self._submitted.get(name)) is not None:
                texts.append(submitted.text)
            elif (asked := self._questions.get(name)) is not None:
                texts.append(f"{len(call.works)} stages of {asked.submitted.sent.name}")
        return ", ".join(texts)


def _rows_of_gpus(profile_db: Path | None) -> messages.Rows:
    """What was measured on GPUs, in the profile database."""
    path = profile_db or default_path()
    if path is None or not is_there(path):
        return ()
    with ProfileDatabase(path) as database:
        return tuple(filter(is_of_gpu, database.rows()))
