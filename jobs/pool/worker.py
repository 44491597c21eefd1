"""A worker runs tasks on one whole device. It does not depend on a transport.

A single thread runs all measurements, since concurrent measurements on a device distort each other. A search that waits
for answers measures nothing; the thread runs other assignments until they arrive.
"""

from __future__ import annotations

import math
import platform
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import msgspec
import numpy as np
from onnx import TensorProto, helper, numpy_helper

from iosched.jobs.open_model import SharedResources
from iosched.jobs.pool import messages
from iosched.jobs.pool.codec import read_as
from iosched.jobs.pool.messages import QUESTIONS, Call, Facts, Questions, SentModel
from iosched.jobs.pool.sending import checked, unpacked
from iosched.jobs.pool.task import Context, How, Kind
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import DeviceLostError, ExecutionError, UsageError
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.devices.measured_costs import MeasuredCosts
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import AttachedModel, OpenModel, ProfiledDevice, attached
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import MOST_TRIES
from iosched.profiler.store.tables import CalibrationRow, Row, StageRow
from iosched.runtime.faults import Faults
from iosched.scheduler.cost import CostQuestion, Disturbable, Prefetchable, ask
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import Signatures

_PROBE_CHANNELS, _PROBE_SIZE = 16, 28

_KEPT_MODELS = 2
_POLL_S = 0.01
_MIN_QUESTIONS = 2
"""Below this number, asking other workers takes longer than measuring locally."""
_PROGRESS_S = 0.5
"""Minimum interval between progress messages, so that their cost is negligible."""

Fetch = Callable[[], bytes]
"""Returns the bytes of the ONNX file of a message."""


@dataclass(frozen=True, eq=False)
class _Open:
    """A model that is open on the device. `cost` answers questions about it."""

    sent: SentModel
    settings: OpenSettings
    model: AttachedModel
    cost: MeasuredCosts


class Worker:
    """Owns one whole device. Only `take` may be called from other threads.

    Attributes:
        device: "cpu", or the key of an attached GPU.
        database: rows that this worker has measured or received.
        known: rows that answer the questions of an assignment, by its number.
        stops: requests to stop an assignment, by its number.
        waiting: models of searches that wait for the answers of other workers.
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
        self.known: dict[int, Sequence[Row]] = {}
        self.stops: dict[int, messages.StopAssignment] = {}
        self.waiting: list[_Open] = []
        self._models: OrderedDict[tuple[str, str], Model] = OrderedDict()
        self._open: _Open | None = None
        Thread(target=self._run, name=f"worker on {device}", daemon=True).start()

    def take(self, message: bytes, fetch: Fetch) -> None:
        """Queues a `messages.DriverMessage` and returns at once. Thread-safe."""
        self._inbox.put((message, fetch))

    def say(self, message: messages.WorkerMessage) -> None:
        """Sends a message to the driver."""
        self._say(messages.encoded(message))

    def _run(self) -> None:
        try:
            self.database = ProfileDatabase(None, on_kept=self._on_kept)
            self.say(self._probed())
            while True:
                self.listen()
                self.serve()
        except Exception as error:  # noqa: BLE001 - report every error to the driver
            self.say(messages.Unusable(reason=" ".join(str(error).split()) or type(error).__name__))

    def _probed(self) -> messages.Facts:
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
        received = messages.driver_message(message)
        if isinstance(received, Call):
            self._assignments.append((received, fetch))
        elif isinstance(received, messages.Known):
            self.known[received.call] = received.rows
        elif (before := self.stops.get(received.call)) is None or before.how != "now":
            self.stops[received.call] = received

    def serve(self) -> None:
        """Runs one queued assignment, if there is one."""
        if self._assignments:
            self._do(*self._assignments.popleft())

    def _do(self, call: Call, fetch: Fetch) -> None:
        self.learn(call.rows)
        try:
            self.say(messages.Done(call=call.call, result=self._result(call, WorkerContext(self, call, fetch))))
        except DeviceLostError:
            raise
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - report every error to the driver
            self.say(messages.failed(call.call, error))
        finally:
            self.stops.pop(call.call, None)
            self.known.pop(call.call, None)

    def _result(self, call: Call, context: WorkerContext) -> object:
        if call.kind == QUESTIONS:
            return context.answer(read_as(call.work, Questions))
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
        self.say(messages.Measured(rows=tuple(rows)))

    def _count(self, rows: Sequence[Row]) -> None:
        for each in self.waiting:
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
        waiting = (each.cost for each in self.waiting if (each.sent, each.settings) == (sent, settings))
        return next(waiting, None) or self.opened(sent, fetch, settings).cost

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
        found = self.device_for(model).open(model, settings, self.database).attached
        assert found is not None
        self._open = _Open(sent, settings, found, found.cost)
        return found

    def close_model(self) -> None:
        """Closes the open model, if there is one."""
        if self._open is not None:
            self._open.model.close()
            self._open = None


class WorkerContext(Context):
    """One assignment, and the observer and the interrupt of its job. Used from the worker's thread only.

    Attributes:
        can_come: True: interruptions arrive as messages and are deferred until the job checks for them.
        accepted: whether the user asked for the best known result.
    """

    can_come = True

    def __init__(self, worker: Worker, call: Call, fetch: Fetch) -> None:
        self.observer = self.interrupt = self
        self.worker, self.call, self._fetch = worker, call, fetch
        self._reported_at = 0.0
        self.accepted = False

    @property
    def model(self) -> Model:
        """The task's model."""
        return self.worker.loaded(self.call.model, self._fetch)

    def settings(self, asked: OptimizeSettings) -> OptimizeSettings:
        """Adapts a job's settings to the worker's device, or to a simulated GPU, and to the remaining time."""
        left_s, worker = self.call.left_s, self.worker
        if left_s is not None:
            asked = replace(asked, budget_s=left_s if asked.budget_s is None else min(left_s, asked.budget_s))
        if asked.device != worker.device:
            return replace(asked, profile_db=None)
        worker.close_model()
        worker.device_for(self.model)
        return replace(asked, threads=worker.threads_of(asked.threads), profile_db=None)

    def opened(self, device: str, asked: OpenSettings) -> OpenModel:
        """Opens the model on the worker's device."""
        del device
        return self.worker.opened(self.call.model, self._fetch, self._opening(asked))

    def _opening(self, asked: OpenSettings) -> OpenSettings:
        return replace(asked, threads=self.worker.threads_of(asked.threads))

    def shared(self, opening: OpenSettings) -> SharedResources:
        """Returns the worker's database and a prefetcher as shared resources."""
        return SharedResources(
            self.worker.database, partial(self._opened, opening), counts_opening=self.call.left_s is not None
        )

    def _opened(self, opening: OpenSettings, own: OpenModel, pace: TimeBudget) -> Prefetchable | None:
        self.worker.say(messages.Opened(call=self.call.call))
        return None if own.attached is None else self.prefetcher(opening, own.attached, lambda: pace.search_left_s <= 0)

    def prefetcher(
        self, opening: OpenSettings, model: AttachedModel, is_over: Callable[[], bool] = lambda: False
    ) -> Prefetchable | None:
        """Returns a prefetcher for the questions of a search; None if no other workers may answer them."""
        if not self.call.asks:
            return None
        opened = _Open(self.call.model, self._opening(opening), model, model.cost.with_own_counts())
        return RemotePrefetch(self, opened, is_over)

    def answer(self, work: Questions) -> int:
        """Measures the answers, whose rows the worker sends to the driver; returns their number.

        The model stays open for the next packet.
        """
        cost, faults = self.worker.cost(self.call.model, self._fetch, self._opening(work.opening)), Faults()
        end = math.inf if self.call.left_s is None else time.monotonic() + self.call.left_s
        count = 0
        for question in work.questions:
            if self.stopped() is not None:
                raise KeyboardInterrupt
            if time.monotonic() >= end:
                break
            with faults.contained("a question"):  # the search will hit the same error itself
                ask(cost, question)
                count += 1
        return count

    def write(self, path: Path) -> None:
        """Writes the ONNX file."""
        path.write_bytes(checked(self.call.model, self._fetch()))

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Sends progress unless it was sent a moment ago."""
        now = time.monotonic()
        if now - self._reported_at >= _PROGRESS_S:
            self._reported_at = now
            self.worker.say(messages.Progress(call=self.call.call, done=done, total=total, text=text))

    def step(self, step: int, value: float) -> None:
        """Sends the output of a score command."""
        self.worker.say(messages.Step(call=self.call.call, step=step, value=value))

    def stopped(self) -> How | None:
        """Returns how to end the assignment; None if it should continue."""
        self.worker.listen(0)
        stop = self.worker.stops.get(self.call.call)
        return None if stop is None else stop.how

    @property
    def came(self) -> bool:
        """Whether an interruption has arrived since the last `ask`."""
        how = self.stopped()
        return how == "now" or (how is not None and not self.accepted)

    def ask(self) -> None:
        """Accepts the best known result, or ends the job.

        Raises:
            KeyboardInterrupt: the user wants no result.
        """
        if self.stopped() == "now":
            raise KeyboardInterrupt
        self.accepted = True

    def holding(self) -> AbstractContextManager[None]:
        """A context that defers interruptions; they are always deferred here."""
        return nullcontext()


@dataclass(frozen=True, eq=False)
class RemotePrefetch:
    """Lets all workers of the device answer a round of questions; see `scheduler.cost.Prefetchable`.

    Their rows arrive in this worker's database, where the search's cost model finds them. While the search waits, this
    worker answers packets of questions too.

    Attributes:
        opened: the model of the search.
        is_over: whether the search is out of time.
    """

    context: WorkerContext
    opened: _Open
    is_over: Callable[[], bool]

    def prefetch(self, questions: Sequence[CostQuestion]) -> None:
        """Waits for answers to the unknown questions; returns early at an interruption."""
        asked = tuple(self._distinct(self._unknown(questions)))
        if len(asked) < _MIN_QUESTIONS:
            return
        worker, number = self.context.worker, self.context.call.call
        worker.say(messages.Asked(call=number, opening=msgspec.to_builtins(self.opened.settings), questions=asked))
        worker.waiting.append(self.opened)
        try:
            while not (self.context.came or self.is_over()):
                if (rows := worker.known.pop(number, None)) is not None:
                    worker.learn(rows)
                    return
                worker.listen(_POLL_S)
                worker.serve()
        finally:
            worker.waiting.pop()

    def _unknown(self, questions: Iterable[CostQuestion]) -> Iterable[CostQuestion]:
        """Yields the questions that the database cannot answer."""
        cost = self.opened.model.cost
        for question in questions:
            if question.kind == "work":
                is_known = cost.known_work_us(question.stage.operators[0]) is not None
            else:
                is_known = question.kind != "again" and cost.known(question.stage) is not None
            if not is_known:
                yield question

    def _distinct(self, questions: Iterable[CostQuestion]) -> Iterable[CostQuestion]:
        """Removes duplicates: keeps the most thorough question per measurement."""
        found: dict[tuple[object, ...], CostQuestion] = {}
        for question in questions:
            key = self._key(question)
            before = found.get(key, question)
            worse_than_us = max(before.worse_than_us, question.worse_than_us)
            found[key] = replace(before, worse_than_us=worse_than_us)
        whole = {key[:-1] for key in found if key[-1] == "work"}
        return (found[key] for key in found if key[-1] != "latency" or key[:-1] not in whole)

    def _key(self, question: CostQuestion) -> tuple[object, ...]:
        stage = question.stage
        kind = "latency" if question.kind == "operator" else question.kind
        return (self._signatures.of(stage), stage.division, kind)

    @cached_property
    def _signatures(self) -> Signatures:
        key = self.opened.model.cost.operator_key
        return Signatures(self.opened.model.graph, lambda operator: key(operator.name))


def probed(device: ProfiledDevice, settings: OpenSettings, threads: int) -> Facts:
    """Opens and measures a small model on the device, which shows that the device works.

    Repeats the measurement a few times while other processes interfere.

    Raises:
        DeviceError: a library is missing, or the device does not work.
    """
    rows: list[Row] = []
    disturbed: list[str] = []
    with (
        ProfileDatabase(None, on_kept=rows.extend) as database,
        closing(device.open(probe_model(), settings, database)) as opened,
    ):
        here = attached(opened)
        key, versions = here.cost.device, dict(here.measuring.versions)
        stage = Stage(Strategy.CONCURRENT, ((here.graph.operators[0].name,),))
        for _ in range(MOST_TRIES):
            here.cost.stage_latency_us(stage)
            found = [row for row in rows if isinstance(row, StageRow)]
            if not found or not found[-1].disturbed_by:
                disturbed = []
                break
            disturbed.append(found[-1].disturbed_by)
            if isinstance(here.cost, Disturbable):
                here.cost.try_again()
    return Facts(
        versions={"iosched": iosched_version(), "python": platform.python_version(), **versions},
        device=device.info.key,
        name=device.info.name,
        key=key,
        threads=threads,
        yardstick=tuple(row for row in rows if isinstance(row, CalibrationRow)),
        disturbed_by=tuple(disturbed),
    )


@cache
def probe_model() -> Model:
    """Returns a model of one small convolution, which takes milliseconds on any device."""
    values = np.random.default_rng(0).standard_normal((_PROBE_CHANNELS, _PROBE_CHANNELS, 3, 3)).astype(np.float32)
    shape = [1, _PROBE_CHANNELS, _PROBE_SIZE, _PROBE_SIZE]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(values, "w")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return load_model(proto.SerializeToString(), name="probe")
