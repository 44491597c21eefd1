"""A worker: one whole device, and the thread that does there what the driver asks for. It knows no transport.

All that is measured is measured by that thread, one after another, since a device that does two things at once measures
neither; a search that waits for others' answers is no work, and other calls are done meanwhile, on its thread.
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
from iosched.profiler.devices.device import OpenModelHere, ProfiledDevice
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import Row

_KEPT_MODELS = 2


class Worker:
    """One whole device; all but `take` belongs to its own thread.

    Attributes:
        device: "cpu", or the key of a GPU that is attached.
        threads: processor threads that it may use.
        database: has what this worker has measured, and what it was sent.
    """

    def __init__(
        self, device: str, threads: int, say: Callable[[bytes], None], kinds: Mapping[str, Kind[Any, Any]]
    ) -> None:
        """Begins to work; the first that it says is what it is.

        Args:
            say: takes what is said, from the worker's thread.
            kinds: the kinds of tasks that it does, by name.
        """
        self.device, self.threads = device, threads
        self._say, self._kinds = say, kinds
        self._inbox: SimpleQueue[tuple[bytes, Fetch]] = SimpleQueue()
        self._calls: deque[tuple[Call, Fetch]] = deque()
        self._known: dict[int, Sequence[Row]] = {}
        self._stops: dict[int, Stop] = {}
        self._models: OrderedDict[tuple[str, str], Model] = OrderedDict()
        self._open: Asking | None = None
        self._asking: list[Asking] = []
        Thread(target=self._run, name=f"worker on {device}", daemon=True).start()

    def take(self, message: bytes, fetch: Fetch) -> None:
        """Takes a `messages.ToldMessage`, from any thread, and returns at once."""
        self._inbox.put((message, fetch))

    def say(self, message: SaidMessage) -> None:
        """Says something to the driver."""
        self._say(encoded(message))

    def _run(self) -> None:
        try:
            self.database = ProfileDatabase(None, on_kept=self._on_kept)
            self.say(self._probed())
            while True:
                self.listen()
                self.serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, the driver has to hear of it
            self.say(Unusable(reason=" ".join(str(error).split()) or type(error).__name__))

    def _probed(self) -> Facts:
        return probed(self.device_for(probe_model()), OpenSettings(threads=self.threads_of(None)), self.threads)

    def listen(self, wait_s: float | None = None) -> None:
        """Takes what has come; waits where nothing has, at most so long, or until something does."""
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait()
            while True:
                self._hear(*item)
                item = self._inbox.get_nowait()
        except Empty:
            pass

    def _hear(self, message: bytes, fetch: Fetch) -> None:
        heard = messages.told(message)
        if isinstance(heard, Call):
            self._calls.append((heard, fetch))
        elif isinstance(heard, Known):
            self._known[heard.call] = heard.rows
        elif (before := self._stops.get(heard.call)) is None or before.how != "now":
            self._stops[heard.call] = heard

    def serve(self) -> None:
        """Does one call that has come, if any."""
        if self._calls:
            self._do(*self._calls.popleft())

    def known(self, call: int) -> Sequence[Row] | None:
        """The rows that answer what the search of a call has asked; None where they have not come."""
        return self._known.pop(call, None)

    def stopped(self, call: int) -> Stop | None:
        """How a call is to end; None where it is to go on."""
        return self._stops.get(call)

    def _do(self, call: Call, fetch: Fetch) -> None:
        self.learn(call.rows)
        try:
            self.say(Done(call=call.call, result=self._result(call, WorkerContext(self, call, fetch))))
        except DeviceLostError:
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it is, the driver has to hear of it
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
        """Takes what others have measured: for the searches that wait here, where any do."""
        self._count(rows)
        self.database.merge(rows)

    def _on_kept(self, rows: Sequence[Row]) -> None:
        self._count(rows)
        self.say(Measured(rows=tuple(rows)))

    def _count(self, rows: Sequence[Row]) -> None:
        for each in self._asking:
            each.model.cost.measured_by_others(rows)

    def device_for(self, model: Model | None = None) -> ProfiledDevice:
        """The device.

        Raises:
            UsageError: it is not attached, or a library is missing.
        """
        found = resolve(self.device, model)
        if found.info.cost_kind != "measured":
            raise UsageError(f"{self.device} is not attached to this worker's machine, or cannot be used there")
        return found

    def loaded(self, sent: SentModel, fetch: Fetch) -> Model:
        """The model that was sent; the latest are kept.

        Raises:
            InvalidModelError: it is not the one that the driver has.
        """
        key = (sent.sha256, sent.name)
        if key not in self._models:
            self._models[key] = unpacked(sent, fetch())
        self._models.move_to_end(key)
        while len(self._models) > _KEPT_MODELS:
            self._models.popitem(last=False)
        return self._models[key]

    def threads_of(self, asked: int | None) -> int | None:
        """The threads that a job uses here.

        Raises:
            UsageError: more are asked for than this worker has.
        """
        if self.device != "cpu":
            return asked
        if asked is not None and asked > self.threads:
            raise UsageError(f"--threads {asked} is more than the {self.threads} that a worker has: leave it out")
        return asked or self.threads

    def cost(self, sent: SentModel, fetch: Fetch, settings: OpenSettings) -> MeasuredCosts:
        """Latencies of a model that is open: that of a search that waits here, or else `opened`."""
        asking = (each.cost for each in self._asking if (each.sent, each.settings) == (sent, settings))
        return next(asking, None) or self.opened(sent, fetch, settings).cost

    def opened(self, sent: SentModel, fetch: Fetch, settings: OpenSettings) -> OpenModelHere:
        """The model, open on the device; it stays open until another one is.

        Raises:
            InvalidModelError: it is not the one that the driver has, or onnxruntime refuses it.
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
        """Frees what is open."""
        if self._open is not None:
            self._open.model.close()
            self._open = None

    @contextmanager
    def waiting(self, asking: Asking) -> Iterator[None]:
        """A context in which a search waits for others' answers."""
        self._asking.append(asking)
        try:
            yield
        finally:
            self._asking.pop()
