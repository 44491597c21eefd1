"""A cluster made of threads, and workers that do what a test says: what the fleet meets, without Ray or a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Queue, SimpleQueue
from typing import Any, Protocol

from iosched.jobs.fleet import messages
from iosched.jobs.fleet.errand import Errand
from iosched.jobs.fleet.messages import Asked, Done, Facts, Failed, Guessed, Known, Measured, SentModel, Stop, encoded
from iosched.jobs.fleet.plain import taken
from iosched.jobs.fleet.transport import (
    Call,
    Command,
    DropModel,
    Event,
    Place,
    Places,
    PutModel,
    Returned,
    Said,
    StartWorker,
    StopWorker,
    Tell,
    TransportLost,
    TransportUp,
    WorkerLost,
    WorkerUp,
)
from iosched.models.version import iosched_version
from iosched.profiler.store.database import device_key
from iosched.profiler.store.tables import Row, StageRow
from iosched.scheduler.questions import Question, of_operator

KEY = device_key("cpu", "toy", precision="float32", threads=2, versions={"onnxruntime": "1"})
PATIENCE_S = 20.0
"""That a test waits for what must come."""


class DoesCalls(Protocol):
    """What `jobs.fleet.worker.Worker` is to a transport."""

    def facts(self) -> bytes: ...

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: Queue[bytes]
    ) -> bytes: ...


class ThreadTransport:
    """A `Transport` to workers that are threads of this process.

    Args:
        places: what the cluster has.
        made: makes the worker of a place.
    """

    def __init__(self, places: Sequence[Place], made: Callable[[Place], DoesCalls]) -> None:
        self._made = made
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._lock = threading.Lock()
        self.workers: dict[str, DoesCalls] = {}
        self.places: dict[str, Place] = {}
        self.files: dict[str, Path] = {}
        self.puts: list[str] = []
        self.dropped: list[str] = []
        self.calls: list[Call] = []
        self.told: dict[str, Queue[bytes]] = {}
        self.is_lost = self.is_closed = False
        self._events.put(TransportUp())
        self._events.put(Places(tuple(places)))

    def send(self, command: Command) -> None:
        if self.is_lost or self.is_closed:
            return
        match command:
            case StartWorker(worker, place):
                self._thread(lambda: self._start(worker, place))
            case StopWorker(worker):
                self.workers.pop(worker, None)
            case PutModel(digest, path):
                self.files[digest] = path
                self.puts.append(digest)
            case DropModel(digest):
                del self.files[digest]
                self.dropped.append(digest)
            case Call():
                self.calls.append(command)
                self.told[command.call] = Queue()
                assert set(command.models) <= set(self.files)
                if (does := self.workers.get(command.worker)) is not None:
                    self._thread(lambda: self._call(does, command))
            case Tell(_, call, message):
                self.told[call].put(message)

    def receive(self, timeout_s: float) -> Sequence[Event]:
        try:
            return [self._events.get(timeout=timeout_s)]
        except Empty:
            return []

    def close(self) -> None:
        self.is_closed = True
        self.workers.clear()

    def kill(self, worker: str, reason: str = "killed") -> None:
        """Ends a worker in the midst of what it does."""
        with self._lock:
            del self.workers[worker]
            self._events.put(WorkerLost(worker, reason))

    def lose(self) -> None:
        """Ends the cluster with all workers."""
        with self._lock:
            self.is_lost = True
            self.workers.clear()
            self._events.put(TransportLost("the head died"))

    def change(self, places: Sequence[Place]) -> None:
        self._events.put(Places(tuple(places)))

    def _thread(self, do: Callable[[], None]) -> None:
        threading.Thread(target=do, daemon=True).start()

    def _start(self, worker: str, place: Place) -> None:
        does = self._made(place)
        facts = does.facts()
        with self._lock:
            if not self.is_lost:
                self.workers[worker], self.places[worker] = does, place
                self._events.put(WorkerUp(worker, facts))

    def _call(self, does: DoesCalls, call: Call) -> None:
        def tell(event: Event) -> None:
            with self._lock:
                if self.workers.get(call.worker) is does:
                    self._events.put(event)

        def say(message: bytes) -> None:
            tell(Said(call.worker, call.call, message))

        try:
            files = {digest: self.files[digest].read_bytes() for digest in call.models}
            result = does.call(call.message, files, say, self.told[call.call])
        except Exception as error:  # noqa: BLE001 - an actor that raises is as good as dead
            tell(WorkerLost(call.worker, str(error)))
            return
        tell(Returned(call.worker, call.call, result))


class Talk:
    """One call, as the script of a toy worker has it."""

    def __init__(self, call: messages.Call, say: Callable[[bytes], None], told: Queue[bytes]) -> None:
        self.call, self._say, self._told, self._rounds = call, say, told, 0

    def measured(self, *names: str, disturbed_by: str = "") -> None:
        self._say(encoded(Measured(rows=tuple(row(name, disturbed_by) for name in names))))

    def ask(self, *names: str, guesses: Sequence[str] = ()) -> tuple[Row, ...]:
        """Asks for operators of these names, and waits for what becomes known; others may be guessed meanwhile."""
        number, self._rounds = self._rounds, self._rounds + 1
        questions = tuple(of_operator(name, "operator") for name in names)
        self._say(encoded(Asked(number=number, work={"opening": "toy"}, questions=questions)))
        for name in guesses:
            self._say(encoded(Guessed(number=number, question=of_operator(name, "operator"))))
        known = messages.told(self._told.get(timeout=PATIENCE_S))
        assert isinstance(known, Known)
        assert known.number == number
        return known.rows

    def until_stopped(self) -> Stop:
        stop = messages.told(self._told.get(timeout=PATIENCE_S))
        assert isinstance(stop, Stop)
        return stop


Script = Callable[[Talk], Any]


class Toy:
    """A worker whose jobs are a script; questions are answered by rows of their operators' names."""

    def __init__(self, script: Script, facts: Facts | None = None, answer: Script | None = None) -> None:
        self._script, self._facts, self._answer = script, facts or toy_facts(), answer or answer_all
        self.calls: list[messages.Call] = []

    def facts(self) -> bytes:
        return encoded(self._facts)

    def call(
        self, message: bytes, models: Mapping[str, bytes], say: Callable[[bytes], None], told: Queue[bytes]
    ) -> bytes:
        call: messages.Call = messages.decoded(message, messages.Call)
        self.calls.append(call)
        assert set(models) == {call.model.file}
        do = self._answer if call.kind == "questions" else self._script
        found = do(Talk(call, say, told))
        return encoded(found if isinstance(found, Failed) else Done(result=found))


def asked_in(call: messages.Call) -> list[str]:
    """The operators that a packet asks about."""
    found = taken(call.work["questions"], tuple[Question, ...])
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


def errand(name: str = "toy", device: str = "cpu", work: Any = None, **more: Any) -> Errand:
    digest = (name.encode().hex() + "0" * 64)[:64]
    model = SentModel(digest, digest, digest, name, 1, {})
    return Errand("toy", work or {"name": name}, model, name.encode(), device, **more)
