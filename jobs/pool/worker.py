"""A worker runs tasks on one whole device. It does not depend on a transport.

A single thread runs all measurements, since concurrent measurements on a device distort each other. A search that waits
for answers measures nothing; the thread runs other assignments until they arrive.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from iosched.jobs.pool import messages
from iosched.jobs.pool.codec import read_as
from iosched.jobs.pool.messages import (
    Call,
    Done,
    Facts,
    Known,
    Measured,
    SaidMessage,
    SentModel,
    Stop,
    Unusable,
    encoded,
)
from iosched.jobs.pool.prefetch import QUESTIONS, Asking, Questions, answered
from iosched.jobs.pool.probe import probe_model, probed
from iosched.jobs.pool.sending import unpacked
from iosched.jobs.pool.task import Kind
from iosched.jobs.pool.worker_context import Fetch, WorkerContext
from iosched.models.errors import DeviceLostError, ExecutionError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import AttachedModel, ProfiledDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row

_KEPT_MODELS = 2


class Worker:
    """Owns one whole device. Only `take` may be called from other threads.

    Attributes:
        device: "cpu", or the key of an attached GPU.
        database: rows that this worker has measured or received.
    """

    def __init__(
        self, device: str, threads: int, say: Callable[[bytes], None], kinds: Mapping[str, Kind[Any, Any]]
    ) -> None:
        """Starts the worker's thread, whose first message is `Facts`.

        Args:
            say: sends a message to the driver; called from the worker's thread.
            kinds: the supported kinds of tasks, by name.
        """
        self.device, self.threads = device, threads
        self._say, self._kinds = say, kinds
        self._inbox: SimpleQueue[tuple[bytes, Fetch]] = SimpleQueue()
        self._assignments: deque[tuple[Call, Fetch]] = deque()
        self._known: dict[int, Sequence[Row]] = {}
        self._stops: dict[int, Stop] = {}
        self._models: OrderedDict[tuple[str, str], Model] = OrderedDict()
        self._open: Asking | None = None
        self._waiting: list[Asking] = []
        Thread(target=self._run, name=f"worker on {device}", daemon=True).start()

    def take(self, message: bytes, fetch: Fetch) -> None:
        """Queues a `messages.ToldMessage` and returns at once. Thread-safe."""
        self._inbox.put((message, fetch))

    def say(self, message: SaidMessage) -> None:
        """Sends a message to the driver."""
        self._say(encoded(message))

    def _run(self) -> None:
        try:
            self.database = ProfileDatabase(None, on_kept=self._on_kept)
            self.say(self._probed())
            while True:
                self.listen()
                self.serve()
        except Exception as error:  # noqa: BLE001 - report every error to the driver
            self.say(Unusable(reason=" ".join(str(error).split()) or type(error).__name__))

    def _probed(self) -> Facts:
        return probed(self.device_for(probe_model()), OpenSettings(threads=self.threads_of(None)), self.threads)

    def listen(self, wait_s: float | None = None) -> None:
        """Processes queued messages; if there are none, waits up to `wait_s` (None: forever) for one."""
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait()
            while True:
                self._receive(*item)
                item = self._inbox.get_nowait()
        except Empty:
            pass

    def _receive(self, message: bytes, fetch: Fetch) -> None:
        received = messages.told(message)
        if isinstance(received, Call):
            self._assignments.append((received, fetch))
        elif isinstance(received, Known):
            self._known[received.call] = received.rows
        elif (before := self._stops.get(received.call)) is None or before.how != "now":
            self._stops[received.call] = received

    def serve(self) -> None:
        """Runs one queued assignment, if there is one."""
        if self._assignments:
            self._do(*self._assignments.popleft())

    def known(self, call: int) -> Sequence[Row] | None:
        """Returns the rows that answer the questions of an assignment; None until they arrive."""
        return self._known.pop(call, None)

    def stopped(self, call: int) -> Stop | None:
        """Returns the stop request for an assignment; None without one."""
        return self._stops.get(call)

    def _do(self, call: Call, fetch: Fetch) -> None:
        self.learn(call.rows)
        try:
            self.say(Done(call=call.call, result=self._result(call, WorkerContext(self, call, fetch))))
        except DeviceLostError:
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - report every error to the driver
            self.say(messages.failed(call.call, error))
        finally:
            self._stops.pop(call.call, None)
            self._known.pop(call.call, None)

    def _result(self, call: Call, context: WorkerContext) -> object:
        if call.kind == QUESTIONS:
            return answered(read_as(call.work, Questions), context)
        kind = self._kinds.get(call.kind)
        if kind is None:
            raise ExecutionError(f"this worker does no task of the kind {call.kind[:40]!r}")
        return kind.do(read_as(call.work, kind.work), context)

    def learn(self, rows: Sequence[Row]) -> None:
        """Merges other workers' rows into the database and counts them for waiting searches."""
        self._count(rows)
        self.database.merge(rows)

    def _on_kept(self, rows: Sequence[Row]) -> None:
        self._count(rows)
        self.say(Measured(rows=tuple(rows)))

    def _count(self, rows: Sequence[Row]) -> None:
        for each in self._waiting:
            each.model.cost.measured_by_others(rows)

    def device_for(self, model: Model | None = None) -> ProfiledDevice:
        """Returns the device.

        Raises:
            UsageError: it is not attached, or a library is missing.
        """
        found = resolve(self.device, model)
        if found.info.cost_kind != "measured":
            raise UsageError(f"{self.device} is not attached to this worker's machine, or cannot be used there")
        return found

    def loaded(self, sent: SentModel, fetch: Fetch) -> Model:
        """Returns the model that was sent, from a small cache.

        Raises:
            InvalidModelError: it differs from the driver's model.
        """
        key = (sent.sha256, sent.name)
        if key not in self._models:
            self._models[key] = unpacked(sent, fetch())
        self._models.move_to_end(key)
        while len(self._models) > _KEPT_MODELS:
            self._models.popitem(last=False)
        return self._models[key]

    def threads_of(self, asked: int | None) -> int | None:
        """Returns the number of threads that a job uses on this worker.

        Raises:
            UsageError: the worker has fewer threads than `asked`.
        """
        if self.device != "cpu":
            return asked
        if asked is not None and asked > self.threads:
            raise UsageError(f"--threads {asked} is more than the {self.threads} that a worker has: leave it out")
        return asked or self.threads

    def cost(self, sent: SentModel, fetch: Fetch, settings: OpenSettings) -> MeasuredCosts:
        """Returns the latencies of a model: those of a waiting search if it has the model open, else of `opened`."""
        asking = (each.cost for each in self._waiting if (each.sent, each.settings) == (sent, settings))
        return next(asking, None) or self.opened(sent, fetch, settings).cost

    def opened(self, sent: SentModel, fetch: Fetch, settings: OpenSettings) -> AttachedModel:
        """Opens the model on the device. It stays open until another model is opened.

        Raises:
            InvalidModelError: it differs from the driver's model, or onnxruntime rejects it.
            DeviceError: the device cannot place it.
        """
        if self._open is not None and (self._open.sent, self._open.settings) == (sent, settings):
            return self._open.model
        self.close_model()
        model = self.loaded(sent, fetch)
        found = self.device_for(model).open(model, settings, self.database).here
        assert found is not None
        self._open = Asking(sent, settings, found, found.cost)
        return found

    def close_model(self) -> None:
        """Closes the open model, if there is one."""
        if self._open is not None:
            self._open.model.close()
            self._open = None

    @contextmanager
    def waiting(self, asking: Asking) -> Iterator[None]:
        """A context in which a search waits for the answers of other workers."""
        self._waiting.append(asking)
        try:
            yield
        finally:
            self._waiting.pop()
