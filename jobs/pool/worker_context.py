"""The `Context` of a task on a worker. It also serves as the observer and the interrupt of the job."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.jobs.observer import Interrupt, Observer
from iosched.jobs.open_model import SharedResources
from iosched.jobs.pool.messages import Call, Opened, Progress, Step
from iosched.jobs.pool.prefetch import RemotePrefetch
from iosched.jobs.pool.task import How
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import InvalidModelError
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import OpenModel, OpenModelHere
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.cost import Prefetchable

if TYPE_CHECKING:
    from iosched.jobs.pool.worker import Worker

_PROGRESS_S = 0.5
"""Minimum interval between progress messages, so that their cost is negligible."""

Fetch = Callable[[], bytes]
"""Returns the bytes of the ONNX file of a message."""


class WorkerContext:
    """One assignment. Used from the worker's thread only.

    Attributes:
        can_come: True: interruptions arrive as messages and are deferred until the job checks for them.
        accepted: whether the user asked for the best known result.
    """

    can_come = True

    def __init__(self, worker: Worker, call: Call, fetch: Fetch) -> None:
        self._worker, self._call, self._fetch = worker, call, fetch
        self._reported_at = 0.0
        self.accepted = False

    @property
    def observer(self) -> Observer:
        """This context, which sends progress."""
        return self

    @property
    def interrupt(self) -> Interrupt:
        """This context, which receives stop requests."""
        return self

    @property
    def model(self) -> Model:
        """The task's model."""
        return self._worker.loaded(self._call.model, self._fetch)

    def settings(self, asked: OptimizeSettings) -> OptimizeSettings:
        """Adapts a job's settings to the worker's device, or to a simulated GPU, and to the remaining time."""
        left_s, worker = self._call.left_s, self._worker
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
        return self._worker.opened(self._call.model, self._fetch, self._opening(asked))

    def cost(self, asked: OpenSettings) -> MeasuredCosts:
        """Returns the latencies of the model; those of a waiting search if it has the model open."""
        return self._worker.cost(self._call.model, self._fetch, self._opening(asked))

    def _opening(self, asked: OpenSettings) -> OpenSettings:
        return replace(asked, threads=self._worker.threads_of(asked.threads))

    def lent(self, opening: OpenSettings) -> SharedResources:
        """Returns the worker's database and a prefetcher as shared resources."""
        return SharedResources(
            self._worker.database, partial(self._opened, opening), counts_opening=self._call.left_s is not None
        )

    def _opened(self, opening: OpenSettings, model: OpenModel, time_budget: TimeBudget) -> Prefetchable | None:
        self._worker.say(Opened(call=self.number))
        return None if model.here is None else self.ahead(opening, model.here, lambda: time_budget.search_left_s <= 0)

    def ahead(
        self, opening: OpenSettings, model: OpenModelHere, is_over: Callable[[], bool] = lambda: False
    ) -> Prefetchable | None:
        """Returns a prefetcher for the questions of a search; None if no other workers may answer them."""
        if not self._call.asks:
            return None
        return RemotePrefetch(self._worker, self, self._call.model, self._opening(opening), model, is_over)

    def write(self, path: Path) -> None:
        """Writes the ONNX file."""
        data, sent = self._fetch(), self._call.model
        if sha256(data).hexdigest() != sent.file:
            raise InvalidModelError(f"the file of {sent.name!r} was changed on its way: start again")
        path.write_bytes(data)

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Sends progress unless it was sent a moment ago."""
        now = time.monotonic()
        if now - self._reported_at >= _PROGRESS_S:
            self._reported_at = now
            self._worker.say(Progress(call=self.number, done=done, total=total, text=text))

    def step(self, step: int, value: float) -> None:
        """Sends the output of a score command."""
        self._worker.say(Step(call=self.number, step=step, value=value))

    def stopped(self) -> How | None:
        """Returns how to end the assignment; None if it should continue."""
        self._worker.listen(0)
        stop = self._worker.stopped(self.number)
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

    @property
    def number(self) -> int:
        """The number of the assignment."""
        return self._call.call

    @property
    def left_s(self) -> float | None:
        """The remaining seconds; None for no limit."""
        return self._call.left_s
