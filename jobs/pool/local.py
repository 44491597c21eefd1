"""The pool of this machine, which runs one task at a time during `wait`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from iosched.jobs.observer import Interrupt, Uninterrupted
from iosched.jobs.open_model import profile_database
from iosched.jobs.pool.messages import InterruptedTaskError, Step
from iosched.jobs.pool.task import POLL_S, Context, How, JobBudget, Pending, Target, Task, WorkerPool
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import OpenModel
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.store.database import ProfileDatabase

R = TypeVar("R")

_LOCAL = "this machine"
"""The only worker. Tasks for different devices run one after another."""


class LocalPool(WorkerPool):
    """Runs tasks on this machine; see `WorkerPool`. A context manager that closes open models.

    Args:
        profile_db: the profile database of open models; by default the user's.
        guard: a context to run each task in.
        interrupt: tells tasks that check it to stop once the user has interrupted.
    """

    def __init__(
        self,
        profile_db: Path | None = None,
        guard: Callable[[Task[Any]], AbstractContextManager[object]] = nullcontext,
        interrupt: Interrupt | None = None,
    ) -> None:
        self._profile_db, self._guard = profile_db, guard
        self._interrupt = interrupt or Uninterrupted()
        self._running: Pending[Any] | None = None
        self._how: How | None = None
        self._waiting: list[Pending[Any]] = []
        self._stack = ExitStack()
        self._databases: dict[str, ProfileDatabase | None] = {}
        self._open: dict[tuple[str, int, OpenSettings], OpenModel] = {}

    def __enter__(self) -> LocalPool:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def target(self, text: str, profile_db: Path | None = None, *, may_simulate: bool = True) -> Target:
        """Resolves the value of `--device`; see `resolve`."""
        del profile_db, may_simulate
        return Target(resolve(text).info.key, text, _LOCAL)

    def budget(self, seconds: float | None) -> JobBudget | None:
        """Creates a job's budget, which starts now."""
        return None if seconds is None else JobBudget(seconds, time.monotonic())

    def submit(self, task: Task[R]) -> Pending[R]:
        """Queues a task for a later `wait`."""
        pending = Pending(task)
        self._waiting.append(pending)
        return pending

    def wait(self, pending: Sequence[Pending[Any]], timeout_s: float = POLL_S) -> None:
        """Runs the oldest queued task unless one of `pending` is done."""
        if any(each.is_done for each in pending) or not self._waiting:
            return
        first = self._running = self._waiting.pop(0)
        task, first.began_s = first.task, time.monotonic()
        try:
            with self._guard(task):
                result = task.kind.do(task.work, _LocalContext(self, first))
            first.set_result(result)
        except Exception as error:  # noqa: BLE001 - `Pending.result` raises it
            first.set_exception(error)
        finally:
            self._running = self._how = None

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Tells a task to stop; removes a queued one."""
        if pending is self._running:
            self._how = how
        elif pending in self._waiting:
            self._waiting.remove(pending)
            pending.set_exception(InterruptedTaskError("interrupted"))

    def stopped(self) -> How | None:
        """The way the running task has to stop; None while it continues."""
        return self._how or ("now" if self._interrupt.came else None)

    def opened(self, device: str, model: Model, settings: OpenSettings) -> OpenModel:
        """Opens the model until the pool is closed. Models on one device share its threads."""
        key = (device, id(model), settings)
        if key not in self._open:
            found, others = resolve(device), [each for (name, *_), each in self._open.items() if name == device]
            if device not in self._databases:
                database = profile_database(found, settings, self._profile_db)
                self._databases[device] = self._stack.enter_context(database)
            opened = found.open(model, settings, self._databases[device], alongside=next(iter(others), None))
            self._stack.callback(opened.close)
            self._open[key] = opened
        return self._open[key]


@dataclass(frozen=True, eq=False)
class _LocalContext(Context):
    """The `Context` of a task on this machine."""

    pool: LocalPool
    pending: Pending[Any]

    @property
    def model(self) -> Model:
        return self.pending.task.model

    def opened(self, device: str, asked: OpenSettings) -> OpenModel:
        return self.pool.opened(device, self.model, asked)

    def stopped(self) -> How | None:
        return self.pool.stopped()

    def step(self, step: int, value: float) -> None:
        self.pending.task.on_said(Step(call=0, step=step, value=value))
