"""Interfaces between jobs, pools and tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.open_model import NO_SHARED_RESOURCES, SharedResources
from iosched.jobs.pool.messages import Progress, Rows, Step
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import AttachedModel, OpenModel
from iosched.scheduler.cost import Prefetchable

W = TypeVar("W")
R = TypeVar("R")

How = Literal["best", "now", "pruned"]
"""How a task ends: "best" returns the best known result, "now" no result; "pruned" ends a losing score command."""

POLL_S = 0.2
"""Interval at which a waiting job checks for an interruption by the user."""


_GRACE, _GRACE_S = 1.1, 5.0
"""A job without a result fails after this multiple of its budget plus these seconds."""


class Context(Protocol):
    """The environment of a task on its worker; the defaults are those of this machine.

    Attributes:
        observer: receives the progress of the task.
        interrupt: reports requests to end the task.
    """

    observer: Observer = Silence()
    interrupt: Interrupt = Uninterrupted()

    @property
    def model(self) -> Model:
        """The task's model."""
        ...

    def settings(self, asked: OptimizeSettings) -> OptimizeSettings:
        """Adapts a job's settings to the worker."""
        return asked

    def opened(self, device: str, asked: OpenSettings) -> OpenModel:
        """Opens the model on a device. The caller must not close it."""
        ...

    def shared(self, opening: OpenSettings) -> SharedResources:
        """Returns the shared resources for a job that opens the model itself."""
        del opening
        return NO_SHARED_RESOURCES

    def prefetcher(
        self, opening: OpenSettings, model: AttachedModel, is_over: Callable[[], bool] = lambda: False
    ) -> Prefetchable | None:
        """Returns a prefetcher for the questions of a search; None if no other workers may answer them."""
        del opening, model, is_over
        return None

    def write(self, path: Path) -> None:
        """Writes the model to a file."""
        write_model(self.model.proto, self.model.weights, path)

    def stopped(self) -> How | None:
        """Returns how to end the task; None if it should continue."""
        ...

    def step(self, step: int, value: float) -> None:
        """Reports the output of a score command."""
        ...


@dataclass(eq=False)
class JobBudget:
    """Limits the wall time of a job, from when the first worker has a model open. All tasks of a job share one budget.

    Attributes:
        seconds: the limit.
        opened_s: the start, by `time.monotonic`; None before.
    """

    seconds: float
    opened_s: float | None = None

    def open(self, now_s: float) -> None:
        """Starts the budget unless it has started."""
        if self.opened_s is None:
            self.opened_s = now_s

    def left_s(self, now_s: float) -> float | None:
        """Returns the remaining seconds; None before the start."""
        return None if self.opened_s is None else max(self.opened_s + self.seconds - now_s, 0.0)

    def is_exceeded(self, now_s: float, longest_stage_s: float) -> bool:
        """Whether the job has failed; a worker may finish its current stage."""
        return self.opened_s is not None and now_s >= self.opened_s + _GRACE * self.seconds + _GRACE_S + longest_stage_s


@dataclass(frozen=True)
class Kind(Generic[W, R]):
    """A kind of task. Messages contain its name; `work` and `result` are sent as JSON.

    Attributes:
        do: runs the task. Raises `IoschedError`s, which are sent to the driver, and `KeyboardInterrupt` when stopped.
        is_repeatable: whether the task may run twice if its worker is lost or slow. True for measurements.
    """

    name: str
    work: type[W]
    result: type[R]
    do: Callable[[W, Context], R]
    is_repeatable: bool = True


def ignored(said: Progress | Step) -> None:
    """Ignores a report."""
    del said


@dataclass(frozen=True)
class Task(Generic[R]):
    """A unit of work for one worker.

    Attributes:
        work: the input, of the kind's type.
        device: the device of the workers that may run it: "cpu", or the key of a GPU.
        asks: whether other workers of the device may answer the questions of its search.
        budget: the job's budget; the task fails when it is exceeded.
        rows: rows of other devices that the task needs.
        on_said: receives the worker's reports; must return quickly.
    """

    kind: Kind[Any, R]
    work: object
    model: Model
    device: str
    asks: bool = False
    budget: JobBudget | None = None
    rows: Rows = ()
    on_said: Callable[[Progress | Step], None] = ignored


class Pending(Future[R]):
    """A submitted task and, once it has ended, its result or error.

    `result` raises an `IoschedError` that the worker raised, or with which the pool could not complete the task.

    Attributes:
        began_s: when it was submitted, or begun on this machine, by `time.monotonic`.
        ended_s: when it ended.
    """

    def __init__(self, task: Task[R]) -> None:
        super().__init__()
        self.task = task
        self.began_s, self.ended_s = time.monotonic(), 0.0
        self.add_done_callback(self._end)

    @property
    def is_done(self) -> bool:
        """Whether the task has a result or an error."""
        return self.done()

    def _end(self, ended: Future[R]) -> None:
        del ended
        self.ended_s = time.monotonic()


@dataclass(frozen=True)
class Target:
    """A device to cost models for.

    Attributes:
        device: its short name.
        asked: its name in settings.
        workers: the device of the workers that compute the costs; a different one if they simulate the target.
        is_remote: whether these workers have their own profile database.
        rows: rows measured on attached GPUs, for simulation.
    """

    device: str
    asked: str
    workers: str
    is_remote: bool = False
    rows: Rows = field(default=(), compare=False)

    @property
    def is_simulated(self) -> bool:
        """Whether workers of another device simulate the target."""
        return self.is_remote and self.device != self.workers

    def on(self, settings: OptimizeSettings) -> OptimizeSettings:
        """Returns a job's settings for this device.

        Raises:
            UsageError: the settings ignore the profile database, by which workers elsewhere share measurements.
        """
        if self.is_remote:
            refuse_measuring_again(settings.resume)
        return replace(settings, device=self.asked, profile_db=None if self.is_remote else settings.profile_db)


class WorkerPool(Protocol):
    """Runs tasks on workers; the defaults are those of this machine.

    Attributes:
        n_spare: number of tasks to queue per worker in addition to the running one.
    """

    n_spare: int = 0

    def target(self, text: str, profile_db: Path | None = None, *, may_simulate: bool = True) -> Target:
        """Resolves the value of `--device`.

        Args:
            profile_db: the profile database; by default the user's.
            may_simulate: whether `text` may name a simulated GPU.

        Raises:
            UsageError: there is no such device; the message lists the available ones.
            DeviceError: the cluster cannot be reached, or is empty.
        """
        ...

    def count(self, device: str) -> int:
        """Returns the maximum number of workers for a device."""
        del device
        return 1

    def n_up(self, devices: Iterable[str]) -> int:
        """Returns the largest number of running workers of any of these devices; at least 1."""
        del devices
        return 1

    def submit(self, task: Task[R]) -> Pending[R]:
        """Queues a task, which starts at the next `wait`.

        Raises:
            UsageError: the model is too large to be sent.
        """
        ...

    def wait(self, pending: Sequence[Pending[Any]], timeout_s: float = POLL_S) -> None:
        """Runs tasks until one of `pending` is done; a cluster returns after `timeout_s` at the latest."""
        ...

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Stops a task. A task that has not started ends at once, without a result."""
        ...

    def budget(self, seconds: float | None) -> JobBudget | None:
        """Creates a job's budget, which starts now or when the first worker has a model open."""
        ...


def outcome(pool: WorkerPool, pending: Pending[R], interrupt: Interrupt) -> R:
    """Waits for the result of a task; asks the user how to end it after an interruption.

    Raises:
        KeyboardInterrupt: the user wants no result.
        IoschedError: the worker raised it, or the pool could not complete the task.
    """
    try:
        while not pending.is_done:
            pool.wait([pending])
            if interrupt.came:
                interrupt.ask()
                pool.stop(pending, "best")
    except KeyboardInterrupt:
        pool.stop(pending, "now")
        raise
    return pending.result()


def refuse_measuring_again(resume: bool) -> None:
    """Rejects `--no-resume`, since workers share measurements through the profile database.

    Raises:
        UsageError: `resume` is false.
    """
    if not resume:
        raise UsageError(
            "--no-resume and --cluster contradict each other: workers share measurements through the profile database"
            "\nName an empty one with --profile-db to measure everything again"
        )
