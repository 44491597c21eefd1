"""A cluster made of threads, its pool, and toy workers that follow a test's script: no Ray, and no device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import Any, TypeVar

from small_models import loaded, node, proto_of

from iosched.jobs.pool import messages
from iosched.jobs.pool.cluster import ClusterPool, PoolStatus
from iosched.jobs.pool.codec import read_as
from iosched.jobs.pool.messages import (
    QUESTIONS,
    Asked,
    Call,
    Done,
    Facts,
    Known,
    Measured,
    StopAssignment,
    Unusable,
    encoded,
)
from iosched.jobs.pool.ray.actor import Works
from iosched.jobs.pool.task import Kind, Pending, Task, WorkerPool
from iosched.jobs.pool.timeouts import Timeouts
from iosched.jobs.pool.transport import (
    Command,
    Event,
    Lost,
    Place,
    Places,
    Said,
    Send,
    Start,
    Transport,
    Unreached,
)
from iosched.jobs.pool.transport import Stop as StopWorker
from iosched.jobs.worker import Worker
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.store.database import device_key
from iosched.profiler.store.tables import Row, StageRow
from iosched.scheduler.cost import CostQuestion, operator_question

KEY = device_key("cpu", "toy", precision="float32", threads=2, versions={"onnxruntime": "1"})
PATIENCE_S = 20.0
"""How long a test waits for anything."""

Say = Callable[[bytes], None]
Fetch = Callable[[], bytes]


Made = Callable[[str, int, Say], Works]
"""Makes a worker from its device, its number of threads, and what takes its messages."""


class ThreadTransport:
    """A `Transport` to workers in this process.

    Args:
        places: the devices of the cluster.
        made: makes workers, in the order in which they are started.
        on_call: is called with each call before its worker gets it; a worker that is killed then never gets it.

    Attributes:
        sent: all commands.
        calls: all calls, each with its worker.
    """

    def __init__(
        self,
        places: Sequence[Place],
        made: Made,
        on_call: Callable[[ThreadTransport, str, Call], None] = lambda *_: None,
    ) -> None:
        self._made, self._on_call = made, on_call
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._lock = threading.RLock()
        self.places = tuple(places)
        self.place_of: dict[str, Place] = {}
        self.workers: dict[str, Works] = {}
        self.sent: list[Command] = []
        self.calls: list[tuple[str, Call]] = []
        self.is_lost = self.is_closed = False
        self._events.put(Places(self.places))

    @property
    def started(self) -> list[str]:
        return [command.worker for command in self.sent if isinstance(command, Start)]

    def send(self, command: Command) -> None:
        if self.is_lost or self.is_closed:
            return
        self.sent.append(command)
        match command:
            case Start(worker, place):
                self._start(worker, place)
            case StopWorker(worker):
                self._end(worker)
            case Send():
                self._pass_on(command)

    def receive(self, timeout_s: float) -> Sequence[Event]:
        found: list[Event] = []
        try:
            found.append(self._events.get(timeout=timeout_s) if timeout_s else self._events.get_nowait())
            while True:
                found.append(self._events.get_nowait())
        except Empty:
            return found

    def close(self) -> None:
        self.is_closed = True
        for worker in list(self.workers):
            self._end(worker)

    def kill(self, worker: str, reason: str = "killed", *, has_ended: bool = True, for_good: bool = False) -> None:
        """Ends a worker in the middle of its task, and its place with it if `for_good`."""
        with self._lock:
            place = self.place_of[worker]
            self._end(worker)
            if for_good:
                self.change([each for each in self.places if each != place])
            self._events.put(Lost(worker, reason, has_ended))

    def lose(self, reason: str = "the head died", *, has_ended: bool = True) -> None:
        """Ends the cluster with all its workers."""
        with self._lock:
            self.is_lost = True
            for worker in list(self.workers):
                self._end(worker)
            self._events.put(Unreached(reason, has_ended))

    def change(self, places: Sequence[Place]) -> None:
        self.places = tuple(places)
        self._events.put(Places(self.places))

    def _start(self, worker: str, place: Place) -> None:
        def say(message: bytes) -> None:
            with self._lock:
                if worker in self.place_of:
                    self._events.put(Said(worker, message))

        with self._lock:
            self.place_of[worker] = place
            self.workers[worker] = self._made(place.device, place.threads, say)

    def _pass_on(self, command: Send) -> None:
        received = messages.driver_message(command.message)
        if command.worker in self.workers and isinstance(received, Call):
            self.calls.append((command.worker, received))
            self._on_call(self, command.worker, received)
        if (works := self.workers.get(command.worker)) is not None:
            data = b"" if command.model is None else Path(command.model).read_bytes()
            works.take(command.message, lambda: data)

    def _end(self, worker: str) -> None:
        """Nothing more is heard of a worker; the thread of one without a task ends at the next message."""
        with self._lock:
            self.place_of = {name: place for name, place in self.place_of.items() if name != worker}
            if (works := self.workers.pop(worker, None)) is not None:
                with suppress(Exception):
                    works.take(b"", lambda: b"")


class Talk:
    """One call, as the script of a toy has it."""

    def __init__(self, call: Call, say: Say, received: Queue[messages.DriverMessage]) -> None:
        self.call, self.say, self._messages = call, say, received

    @property
    def name(self) -> str:
        return self.call.model.name

    def measured(self, *names: str, disturbed_by: str = "") -> None:
        self.say(encoded(Measured(rows=tuple(row(name, disturbed_by) for name in names))))

    def ask(self, *names: str) -> tuple[Row, ...]:
        """Asks about the operators of these names, and returns the rows that become known."""
        questions = tuple(operator_question(name, "operator") for name in names)
        self.say(encoded(Asked(call=self.call.call, opening={"opening": "toy"}, questions=questions)))
        known = self._messages.get(timeout=PATIENCE_S)
        assert isinstance(known, Known)
        return known.rows

    def until_stopped(self) -> StopAssignment:
        stop = self._messages.get(timeout=PATIENCE_S)
        assert isinstance(stop, StopAssignment)
        return stop


Script = Callable[[Talk], Any]


class Toy:
    """A worker that does tasks by a script, each in a thread; a script that raises makes the worker unusable.

    Args:
        answer: the script of packets of questions.
    """

    def __init__(self, say: Say, script: Script, facts: Facts | None = None, answer: Script | None = None) -> None:
        self._say, self._script, self._answer = say, script, answer or answer_all
        self._messages: dict[int, Queue[messages.DriverMessage]] = {}
        say(encoded(facts or toy_facts()))

    def take(self, message: bytes, fetch: Fetch) -> None:
        received = messages.driver_message(message)
        queue = self._messages.setdefault(received.call, Queue())
        if isinstance(received, Call):
            threading.Thread(target=self._do, args=(Talk(received, self._say, queue),), daemon=True).start()
        else:
            queue.put(received)

    def _do(self, talk: Talk) -> None:
        script = self._answer if talk.call.kind == QUESTIONS else self._script
        try:
            found = script(talk)
        except Exception as error:  # noqa: BLE001 - as of a real worker
            talk.say(encoded(Unusable(reason=str(error))))
            return
        number = talk.call.call
        failed = isinstance(found, Exception)
        talk.say(encoded(messages.failed(number, found) if failed else Done(call=number, result=found)))


def toys(script: Script, facts: Sequence[Facts] = (), answer: Script | None = None) -> Made:
    """Makes toys, the first of which have these facts."""
    left = iter(facts)
    return lambda device, threads, say: Toy(say, script, next(left, None), answer)


def asked_in(call: Call) -> list[str]:
    """The operators that a packet asks about."""
    found = read_as(call.work["questions"], tuple[CostQuestion, ...])
    return [question.stage.operators[0] for question in found]


def answer_all(talk: Talk) -> int:
    names = asked_in(talk.call)
    talk.measured(*names)
    return len(names)


def row(name: str, disturbed_by: str = "", key: str = KEY) -> StageRow:
    return StageRow(key, name, "first", datetime.now(UTC), (1.0, 2.0), disturbed_by=disturbed_by)


def toy_facts(**changes: Any) -> Facts:
    values: dict[str, Any] = {
        "versions": {"iosched": iosched_version()},
        "device": "cpu",
        "name": "Toy CPU",
        "key": KEY,
        "threads": 2,
    }
    return Facts(**{**values, **changes})


def cpu_places(count: int) -> list[Place]:
    return [Place(f"node{index}", f"10.0.0.{index}", "cpu") for index in range(count)]


def _done_by_toys(work: object, context: object) -> Any:
    raise AssertionError("toys do it by their script")


TOY: Kind[Any, Any] = Kind("toy", dict, object, _done_by_toys)
ONCE: Kind[Any, Any] = Kind("once", dict, object, _done_by_toys, is_repeatable=False)
"""The same, and may not run twice at a time."""


def toy_task(name: str = "toy", device: str = "cpu", kind: Kind[Any, Any] = TOY, **more: Any) -> Task[Any]:
    """A task about a model of this name, which is `work["name"]` too unless `work` is given."""
    work = more.pop("work", {"name": name})
    return Task(kind, work, toy_model(name), device, **more)


@cache
def toy_model(name: str) -> Model:
    """A model of one operator, in a file of its own for each name."""
    return loaded(proto_of([node("Relu", ["x"], ["y"])], {"x": [1]}, ["y"], name=name), name)


def finish(pool: WorkerPool, *pending: Pending[Any]) -> list[Any]:
    """The results of tasks, in order."""
    soon(pool, lambda: all(each.is_done for each in pending))
    return [each.result() for each in pending]


def soon(pool: WorkerPool, condition: Callable[[], Any]) -> None:
    """Has a pool work until the condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        pool.wait((), 0.005)


R = TypeVar("R")

QUICK = Timeouts(without_s=PATIENCE_S, reconnect_s=0.01, ending_s=0.05)
BRIEF = Timeouts(without_s=2.0)
"""For devices that are left without a worker."""


class OnTheCpu:
    """A real worker on the CPU of this process, whatever device it claims to be."""

    def __init__(self, device: str, threads: int, say: Say) -> None:
        self._there, self._here = f'"device":"{device}"'.encode(), b'"device":"cpu"'
        self._worker = Worker("cpu", threads, lambda message: say(message.replace(self._here, self._there)))

    def take(self, message: bytes, fetch: Fetch) -> None:
        self._worker.take(message.replace(self._there, self._here), fetch)


class ThreadPool(ClusterPool):
    """A `ClusterPool` on `ThreadTransport`s.

    Attributes:
        places: the places of the next transport.
        transports: all that were made, and `transport` the last of them.
        tasks: all that were submitted, and `pending` their results.
        on_submit: is called before a task is submitted.
        notes: the notes of the pool, and `shown` each of its states.
        loses: tasks, by the number in which workers begin them, with which a worker is lost for good; whether it is
            known to have ended then is `has_ended`.
        poison: tasks, by the number in which they are submitted, of whose models no worker survives one.
    """

    def __init__(self, path: Path | None, places: Sequence[Place], made: Made, timeouts: Timeouts = QUICK) -> None:
        self.places, self.made = places, made
        self.transports: list[ThreadTransport] = []
        self.tasks: list[Task[Any]] = []
        self.pending: list[Pending[Any]] = []
        self.notes: list[str] = []
        self.shown: list[PoolStatus] = []
        self.loses: set[int] = set()
        self.has_ended = True
        self.poison: set[int] = set()
        self.on_submit: Callable[[Task[Any]], object] = lambda task: None
        self._n_begun = 0
        super().__init__(lambda: self.connect(), path, Kept(self.notes, self.shown), timeouts)

    @property
    def transport(self) -> ThreadTransport:
        return self.transports[-1]

    @property
    def calls(self) -> list[tuple[str, Call]]:
        """All calls of tasks, each with its worker."""
        return [each for each in self._all_calls if each[1].kind != QUESTIONS]

    @property
    def packets(self) -> list[tuple[str, Call]]:
        """All calls of questions, each with its worker."""
        return [each for each in self._all_calls if each[1].kind == QUESTIONS]

    @property
    def workers(self) -> list[str]:
        """The workers that are up."""
        return [each.name for each in self._now().workers]

    @property
    def _all_calls(self) -> list[tuple[str, Call]]:
        return [call for transport in self.transports for call in transport.calls]

    def connect(self) -> Transport:
        """Makes a transport; a test may replace it."""
        self.transports.append(ThreadTransport(self.places, self.made, self._begun))
        return self.transports[-1]

    def submit(self, task: Task[R]) -> Pending[R]:
        self.on_submit(task)
        pending = super().submit(task)
        self.tasks.append(task)
        self.pending.append(pending)
        return pending

    def _begun(self, transport: ThreadTransport, worker: str, call: Call) -> None:
        if call.kind == QUESTIONS:
            return
        number, self._n_begun = self._n_begun, self._n_begun + 1
        if number in self.loses:
            transport.kill(worker, has_ended=self.has_ended, for_good=True)
        elif call.model.sha256 in {self.tasks[each].model.digest for each in self.poison if each < len(self.tasks)}:
            transport.kill(worker)


class Kept:
    """An observer that keeps the notes and states that it gets."""

    def __init__(self, notes: list[str], shown: list[PoolStatus]) -> None:
        self.note, self.status = notes.append, shown.append


@contextmanager
def thread_pool(
    path: Path | None = None,
    *,
    made: Made = OnTheCpu,
    threads: int = 2,
    timeouts: Timeouts = QUICK,
    **workers: int,
) -> Iterator[ThreadPool]:
    """A pool of the given number of workers by device, each on a separate machine; real ones unless `made` is given."""
    places = [
        Place(f"{device}-{number}", f"10.0.0.{number}", device, threads=threads)
        for device, count in workers.items()
        for number in range(count)
    ]
    with ThreadPool(path, places, made, timeouts) as pool:
        assert isinstance(pool, ThreadPool)
        yield pool
