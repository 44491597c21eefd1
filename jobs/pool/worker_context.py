"""A call on a worker: the `Context` of its task, which is also the observer and the interrupt of the job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.jobs.interrupt import Interrupt
from iosched.jobs.opening import Lent
from iosched.jobs.pace import Pace
from iosched.jobs.pool.messages import Call, Opened, Progress, Step
from iosched.jobs.pool.prefetch import RemotePrefetch
from iosched.jobs.pool.task import How
from iosched.jobs.progress import Observer
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import InvalidModelError
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import OpenModel, OpenModelHere
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.cost import Prefetchable

if TYPE_CHECKING:
    from iosched.jobs.pool.worker import Worker

_PROGRESS_S = 0.5
"""Progress is for people: it is said so seldom that it costs nothing."""

Fetch = Callable[[], bytes]
"""Brings the ONNX file that a message is about."""


class WorkerContext:
    """One call; belongs to the worker's thread.

    Attributes:
        can_come: True: interruptions come as messages, and are held back until the job asks for them.
        accepted: whether the user wants the best that is known, and soon.
    """

    can_come = True

    def __init__(self, worker: Worker, call: Call, fetch: Fetch) -> None:
        """Does nothing yet."""
        self._worker, self._call, self._fetch = worker, call, fetch
        self._said_at = 0.0
        self.accepted = False

    @property
    def observer(self) -> Observer:
        """This call, which says how far it is."""
        return self

    @property
    def interrupt(self) -> Interrupt:
        """This call, which is told to stop."""
        return self

    @property
    def model(self) -> Model:
        """The model that was sent."""
        return self._worker.loaded(self._call.model, self._fetch)

    def settings(self, asked: OptimizeSettings) -> OptimizeSettings:
        """The settings of a job on the worker's device, or on a GPU that it simulates, in the time that is left."""
        left_s, worker = self._call.left_s, self._worker
        if left_s is not None:
            asked = replace(asked, budget_s=left_s if asked.budget_s is None else min(left_s, asked.budget_s))
        if asked.device != worker.device:
            return replace(asked, profile_db=None)
        worker.close_model()
        worker.device_for(self.model)
        return replace(asked, threads=worker.threads_of(asked.threads), profile_db=None)

    def opened(self, device: str, asked: OpenSettings) -> OpenModel:
        """The model, open on the worker's device."""
        del device
        return self._worker.opened(self._call.model, self._fetch, self._opening(asked))

    def cost(self, asked: OpenSettings) -> MeasuredCosts:
        """Latencies of the model: where it is open for a search that waits, those of that one."""
        return self._worker.cost(self._call.model, self._fetch, self._opening(asked))

    def _opening(self, asked: OpenSettings) -> OpenSettings:
        return replace(asked, threads=self._worker.threads_of(asked.threads))

    def lent(self, opening: OpenSettings) -> Lent:
        """The worker's database, and other workers to ask."""
        return Lent(self._worker.database, partial(self._opened, opening), counts_opening=self._call.left_s is not None)

    def _opened(self, opening: OpenSettings, model: OpenModel, pace: Pace) -> Prefetchable | None:
        self._worker.say(Opened(call=self.number))
        return None if model.here is None else self.ahead(opening, model.here, lambda: pace.search_left_s <= 0)

    def ahead(
        self, opening: OpenSettings, model: OpenModelHere, is_over: Callable[[], bool] = lambda: False
    ) -> Prefetchable | None:
        """What has other workers answer the questions of a search; None where they are not asked."""
        if not self._call.asks:
            return None
        return RemotePrefetch(self._worker, self, self._call.model, self._opening(opening), model, is_over)

    def write(self, path: Path) -> None:
        """Writes the file that was sent."""
        data, sent = self._fetch(), self._call.model
        if sha256(data).hexdigest() != sent.file:
            raise InvalidModelError(f"the file of {sent.name!r} was changed on its way: start again")
        path.write_bytes(data)

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says how far the work is, if that was not said a moment ago."""
        now = time.monotonic()
        if now - self._said_at >= _PROGRESS_S:
            self._said_at = now
            self._worker.say(Progress(call=self.number, done=done, total=total, text=text))

    def step(self, step: int, value: float) -> None:
        """Says what a score command has printed."""
        self._worker.say(Step(call=self.number, step=step, value=value))

    def stopped(self) -> How | None:
        """How the call is to end; None where it is to go on."""
        self._worker.listen(0)
        stop = self._worker.stopped(self.number)
        return None if stop is None else stop.how

    @property
    def came(self) -> bool:
        """Whether an interruption has come, and `ask` has not been called since."""
        how = self.stopped()
        return how == "now" or (how is not None and not self.accepted)

    def ask(self) -> None:
        """Goes on with the best that is known, or ends, as the user wants.

        Raises:
            KeyboardInterrupt: the user wants no result.
        """
        if self.stopped() == "now":
            raise KeyboardInterrupt
        self.accepted = True

    def holding(self) -> AbstractContextManager[None]:
        """A context in which interruptions are held back, as they are at all times."""
        return nullcontext()

    @property
    def number(self) -> int:
        """What the driver knows this call by."""
        return self._call.call

    @property
    def left_s(self) -> float | None:
        """The seconds that are left; None for no limit."""
        return self._call.left_s
