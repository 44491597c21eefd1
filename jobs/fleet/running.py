"""What the fleet does about everything that happens; belongs to the fleet's thread (`fleet.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from iosched.jobs.fleet import messages
from iosched.jobs.fleet.crew import WorkerFacts
from iosched.jobs.fleet.desk import Desk, Task
from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.files import Files
from iosched.jobs.fleet.keeper import Keeper
from iosched.jobs.fleet.leases import Dispatcher, Lease, Loss
from iosched.jobs.fleet.members import Member, other_version
from iosched.jobs.fleet.messages import (
    Asked,
    Facts,
    Failed,
    Guessed,
    InterruptedWorkError,
    Known,
    Measured,
    Opened,
    Stop,
    encoded,
    raised,
)
from iosched.jobs.fleet.patience import Patience
from iosched.jobs.fleet.posts import Posts
from iosched.jobs.fleet.rows import RowLog, family_of
from iosched.jobs.fleet.status import FleetObserver, FleetStatus, WorkerStatus
from iosched.jobs.fleet.transport import (
    Call,
    Command,
    Event,
    Place,
    Places,
    Returned,
    Said,
    StopWorker,
    Tell,
    WorkerLost,
    WorkerUp,
)
from iosched.models.errors import DeviceError, DeviceLostError, ExecutionError, IoschedError
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row

_GO_ON = "What was measured is kept: run the command again to go on from there, with a larger --budget if it has one."


@dataclass(frozen=True)
class Loaded:
    """The rows that the database had of a family of devices."""

    family: str
    rows: tuple[Row, ...]


class Running:
    """A fleet while one transport after another serves it.

    Args:
        keeper: writes to the database.
        post: hands something to `handle`, from any thread.
        observer: is shown what happens.
        without_s: for so long a work waits for some worker of its device to come.
    """

    def __init__(
        self,
        keeper: Keeper,
        post: Callable[[Loaded], None],
        observer: FleetObserver,
        patience: Patience,
        without_s: float,
    ) -> None:
        self._keeper, self._post, self._observer, self._without_s = keeper, post, observer, without_s
        self._dispatcher = Dispatcher(patience)
        self._desk, self._files, self._log, self._posts = Desk(), Files(), RowLog(), Posts()
        self._send: Callable[[Command], None] = lambda command: None
        self._members: dict[str, Member] = {}
        self._arrived: dict[str, tuple[Facts, Place]] = {}
        self._without: dict[str, float] = {}
        self._had: set[str] = set()
        self._reasons: dict[str, str] = {}
        self._lost: list[str] = []
        self._longest_s = 0.0
        self._done = 0

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name."""
        return self._posts.devices

    def count(self, device: str) -> int:
        """How many workers a device can have."""
        return self._posts.count(device)

    def submit(self, errand: Errand, future: Future[Any]) -> None:
        """An errand has come."""
        _, work = self._desk.take(errand, future)
        self._posts.wanted.add(errand.device)
        self._dispatcher.submit([work])

    def tell(self, future: Future[Any], stop: Stop) -> None:
        """The user wants an errand to end; what no worker has begun ends without a result."""
        for task in self._desk.tasks:
            if task.future is not future:
                continue
            task.stop = stop
            holders = [lease for lease in self._dispatcher.leases() if self._desk.task(lease) is task]
            for lease in holders:
                self._send(Tell(lease.worker, lease.name, encoded(stop)))
            if not holders:
                self._abandon(task)

    def connected(self, send: Callable[[Command], None]) -> None:
        """A transport takes commands."""
        self._send = send

    def disconnected(self, now_s: float) -> None:
        """The transport has ended, and all workers with it: no work's fault."""
        self._send = lambda command: None
        for worker in list(self._members):
            self._leave(worker, self._dispatcher.dismiss(worker, now_s))
        self._arrived.clear()
        self._posts.clear()
        self._files.forget()

    def handle(self, event: Event | Loaded, now_s: float) -> None:
        """Something has happened."""
        match event:
            case Places(places):
                self._posts.change(places)
            case WorkerUp(worker, facts):
                self._arrive(worker, facts, now_s)
            case Loaded(family, rows):
                self._log.begin(family, rows)
                self._admit(family)
            case WorkerLost(worker, reason):
                self._lose(worker, reason, now_s)
            case Said(worker, call, message):
                self._understood(worker, now_s, lambda: self._said(worker, call, message, now_s))
            case Returned(worker, call, message):
                self._understood(worker, now_s, lambda: self._returned(worker, call, message, now_s))
            case _:
                pass

    def step(self, now_s: float) -> None:
        """Gives out work, and ends that whose budget is over."""
        self._end_budgets(now_s)
        for lease in self._dispatcher.assignments(now_s):
            self._give(lease, now_s)

    def look_round(self, now_s: float) -> None:
        """Starts workers, gives out again what is late, and gives up what waited too long; called now and then."""
        for start in self._posts.to_start(now_s):
            self._send(start)
        for lease in self._dispatcher.tick(now_s):
            self._observer.note(f"{lease.worker} takes long for {self._desk.doing([lease])}: another is asked, too")
        self._give_up(now_s)

    def status(self) -> FleetStatus:
        """What the fleet does now."""
        workers = tuple(
            WorkerStatus(
                name,
                member.place.address,
                member.facts.device,
                member.facts.name,
                self._desk.doing(tuple(member.leases.values())),
                member.done,
            )
            for name, member in self._members.items()
        )
        under_way = sum(len(lease.works) for lease in self._dispatcher.leases())
        return FleetStatus(workers, self._dispatcher.waiting(), under_way, self._done, tuple(self._lost))

    def close(self) -> None:
        """Removes what was written for transports."""
        self._files.close()

    def _arrive(self, worker: str, message: bytes, now_s: float) -> None:
        """A worker is up: it is used if it is of the same version, once it can be told what is known.

        One on a noisy machine is not used while a quieter machine has one.
        """
        place = self._posts.place_of(worker)
        if place is None:
            self._send(StopWorker(worker))
            return
        try:
            facts: Facts = messages.decoded(message, Facts)
        except ExecutionError as error:
            self._refuse(worker, place, f"it says what is not understood here: {error}")
            return
        if reason := other_version(facts):
            self._refuse(worker, place, reason)
        elif facts.disturbed_by and self._is_quieter_elsewhere(place):
            self._send(StopWorker(worker))
            self._posts.rest(worker, now_s)
            self._tell_unused(place, f"its machine is too noisy to measure on: {facts.disturbed_by[-1]}")
        else:
            self._arrived[worker] = facts, place
            self._load(family_of(facts.key))

    def _refuse(self, worker: str, place: Place, reason: str) -> None:
        self._send(StopWorker(worker))
        self._posts.shut(worker)
        self._tell_unused(place, reason)

    def _tell_unused(self, place: Place, reason: str) -> None:
        text = f"{place.device} of {place.address} is not used: {reason}"
        if self._reasons.get(place.device) != text:
            self._observer.note(text)
        self._reasons[place.device] = text

    def _load(self, family: str) -> None:
        if self._log.has(family):
            self._admit(family)
            return

        def load(database: ProfileDatabase) -> None:
            self._post(Loaded(family, tuple(row for row in database.rows() if family_of(row.device) == family)))

        self._keeper.do(load)

    def _admit(self, family: str) -> None:
        """Workers that have arrived, and of whose devices all is known here that the database has."""
        arrived = [worker for worker, (facts, _) in self._arrived.items() if family_of(facts.key) == family]
        for worker in arrived:
            facts, place = self._arrived.pop(worker)
            self._members[worker] = Member(facts, place)
            self._log.open(worker, family)
            self._keep(facts.yardstick, None)
            side = "cpu" if facts.device == "cpu" else "gpu"
            self._dispatcher.worker_up(WorkerFacts(worker, (facts.device, facts.key), place.node, side))
            self._had.add(facts.device)
            noisy = f"; its machine is noisy: {facts.disturbed_by[-1]}" if facts.disturbed_by else ""
            self._observer.note(f"{worker} is up: {facts.name} of {place.address}{noisy}")

    def _keep(self, rows: Sequence[Row], worker: str | None) -> None:
        if kept := self._log.add(rows, worker):
            self._keeper.do(lambda database: _merge(database, kept))

    def _give(self, lease: Lease, now_s: float) -> None:
        member = self._members[lease.worker]
        member.leases[lease.name] = lease
        member.heard_s = now_s
        errand = self._desk.file(lease)
        assert errand is not None, "the dispatcher leases nothing that was withdrawn"
        left_s = None if errand.budget is None else errand.budget.left_s(now_s)
        others = () if member.knows_others else errand.rows
        member.knows_others = member.knows_others or bool(others)
        call = self._desk.call(lease, (*others, *self._log.unseen(lease.worker)), left_s)
        assert call is not None
        for command in self._files.put(errand):
            self._send(command)
        self._send(Call(lease.worker, lease.name, encoded(call), (errand.model.file,)))
        if (task := self._desk.task(lease)) is not None:
            task.has_begun = True
            if task.stop is not None:
                self._send(Tell(lease.worker, lease.name, encoded(task.stop)))

    def _understood(self, worker: str, now_s: float, do: Callable[[], None]) -> None:
        """Does something about a message; a worker that says what nobody understands is used no more."""
        try:
            do()
        except ExecutionError as error:
            if (place := self._posts.place_of(worker)) is not None:
                self._refuse(worker, place, f"it says what is not understood here: {error}")
            self._leave(worker, self._dispatcher.dismiss(worker, now_s))

    def _said(self, worker: str, call: str, message: bytes, now_s: float) -> None:
        said = messages.said(message)
        member = self._members.get(worker)
        lease = None if member is None else member.leases.get(call)
        if member is not None:
            took_s, member.heard_s = now_s - member.heard_s, now_s
            self._longest_s = max(self._longest_s, took_s if isinstance(said, Measured) else 0.0)
        if isinstance(said, Measured):
            self._keep(said.rows, worker)
            self._watch(worker, said.rows, now_s)
        elif lease is not None and (task := self._desk.task(lease)) is not None and member is not None:
            if isinstance(said, Asked):
                self._ask(lease, said, member.facts.key, now_s)
            elif isinstance(said, Guessed):
                self._dispatcher.guess(lease.name, self._desk.guess(lease, said, member.facts.key))
            elif isinstance(said, Opened):
                if task.errand.budget is not None:
                    task.errand.budget.open(now_s)
            else:
                task.errand.on_said(said)

    def _ask(self, lease: Lease, asked: Asked, device: str, now_s: float) -> None:
        wanted = self._desk.ask(lease, asked, device)
        self._dispatcher.park(lease.name, wanted.works, now_s, wanted.guessed)
        if not (wanted.works or wanted.guessed):
            self._tell_known(lease.name, asked)

    def _watch(self, worker: str, rows: Sequence[Row], now_s: float) -> None:
        """A worker most of whose last measurements were disturbed is given up if a quieter machine has another."""
        if (member := self._members.get(worker)) is None:
            return
        member.measured(rows)
        if (noise := member.noise) and self._is_quieter_elsewhere(member.place):
            self._send(StopWorker(worker))
            self._posts.rest(worker, now_s)
            self._tell_unused(member.place, f"its machine has become too noisy to measure on: {noise}")
            self._leave(worker, self._dispatcher.dismiss(worker, now_s))

    def _is_quieter_elsewhere(self, place: Place) -> bool:
        """Whether a worker of the same device on another machine measures undisturbed."""
        others = (each for each in self._members.values() if each.place.node != place.node)
        return any(each.place.device == place.device and not each.noise for each in others)

    def _returned(self, worker: str, call: str, message: bytes, now_s: float) -> None:
        found = messages.returned(message)
        member = self._members.get(worker)
        lease = None if member is None else member.leases.pop(call, None)
        if lease is None or member is None:
            return
        member.done += len(lease.works)
        self._posts.proved(worker)
        for work in lease.works:
            answer = self._dispatcher.answered(lease.name, work.name, now_s)
            for superfluous in answer.superfluous:
                self._send(Tell(superfluous.worker, superfluous.name, encoded(Stop(how="now"))))
            self._close_question(work.name)
            if answer.is_first:
                self._done += 1
                self._answer(work.name, found, worker)
        self._desk.close_lease(lease.name)
        self._after(self._dispatcher.returned(lease.name, now_s), "")

    def _answer(self, name: str, found: messages.ReturnedMessage, worker: str) -> None:
        if (task := self._desk.close_task(name)) is None:
            return
        self._drop_file(task)
        if isinstance(found, Failed):
            error = raised(found, worker)
            self._keeper.do(lambda database: task.fail(error))
        else:
            result = found.result
            self._keeper.do(lambda database: task.fulfil(result))

    def _close_question(self, name: str) -> None:
        made = self._desk.close_question(name)
        if made is not None:
            self._desk.forget(made.lease, self._dispatcher.withdraw_guesses(made.lease))
            self._tell_known(made.lease, made.asked)

    def _tell_known(self, lease: str, asked: Asked) -> None:
        for worker, member in self._members.items():
            if lease in member.leases:
                known = Known(number=asked.number, rows=self._log.unseen(worker))
                self._send(Tell(worker, lease, encoded(known)))

    def _lose(self, worker: str, reason: str, now_s: float) -> None:
        place = self._members[worker].place if worker in self._members else self._posts.place_of(worker)
        if place is not None:
            text = f"{worker} on {place.device} of {place.address} was lost: {reason}"
            self._reasons[place.device] = text
            self._lost.append(text)
            self._observer.note(text)
        self._arrived.pop(worker, None)
        self._posts.lost(worker, now_s)
        self._leave(worker, self._dispatcher.worker_lost(worker, now_s), reason)

    def _leave(self, worker: str, loss: Loss, reason: str = "") -> None:
        self._log.close(worker)
        if (member := self._members.pop(worker, None)) is not None:
            for lease in member.leases.values():
                self._desk.close_lease(lease.name)
        self._after(loss, reason)

    def _after(self, loss: Loss, reason: str) -> None:
        """What is given to others is begun anew, but for what the user wants no more; what failed is told."""
        for work in loss.failed:
            self._close_question(work.name)
            if (task := self._desk.close_task(work.name)) is not None:
                text = f"{task.errand.kind} {task.errand.model.name}: workers were lost again and again as they did it"
                self._drop_file(task)
                task.fail(ExecutionError(f"{text}.\nThe last: {reason}."))
        for task in self._desk.tasks:
            if task.stop is not None and any(work.name == task.name for work in loss.again):
                self._abandon(task)

    def _abandon(self, task: Task) -> None:
        self._dispatcher.withdraw(task.name)
        self._fail(task, InterruptedWorkError("interrupted"))

    def _fail(self, task: Task, error: IoschedError) -> None:
        for lease in self._dispatcher.withdraw(task.name):
            self._send(Tell(lease.worker, lease.name, encoded(Stop(how="now"))))
        self._desk.close_task(task.name)
        self._drop_file(task)
        task.fail(error)

    def _drop_file(self, task: Task) -> None:
        digest = task.errand.model.file
        if not self._desk.needs(digest):
            for command in self._files.drop(digest):
                self._send(command)

    def _end_budgets(self, now_s: float) -> None:
        """Fails what no worker has begun within its budget, and what has no result long after."""
        for task in self._desk.tasks:
            if (budget := task.errand.budget) is None:
                continue
            if budget.is_exceeded(now_s, self._longest_s) or (budget.left_s(now_s) == 0 and not task.has_begun):
                what = "a worker had a result" if task.has_begun else "there was a worker for it"
                about = f"{task.errand.kind} {task.errand.model.name}: the budget of {budget.seconds:g} s was over"
                self._fail(task, ExecutionError(f"{about} before {what}.{self._why(task.errand.device)}\n{_GO_ON}"))

    def _give_up(self, now_s: float) -> None:
        """Fails what has waited too long for any worker of its device; who asks again later waits as long again."""
        wanted = {task.errand.device for task in self._desk.tasks}
        without = [device for device in wanted if not self._dispatcher.workers(device)]
        self._without = {device: self._without.get(device, now_s) for device in without}
        for device, since_s in self._without.items():
            if now_s - since_s < self._without_s:
                continue
            error = self._no_worker(device)
            for task in self._desk.tasks:
                if task.errand.device == device:
                    self._fail(task, error)

    def _no_worker(self, device: str) -> IoschedError:
        why = self._why(device)
        if device in self._had:
            return DeviceLostError(
                f"all workers on {device} were lost, and none came for {self._without_s:.0f} s.{why}\n{_GO_ON}"
            )
        there = ", ".join(self.devices) or "none"
        return DeviceError(
            f"no worker on {device} came up within {self._without_s:.0f} s; the cluster has: {there}.{why}\n"
            "See what its machines lack with: iosched devices --cluster"
        )

    def _why(self, device: str) -> str:
        reason = self._reasons.get(device)
        return f"\nThe last: {reason}." if reason else ""


def _merge(database: ProfileDatabase, rows: Sequence[Row]) -> None:
    database.merge(rows)
