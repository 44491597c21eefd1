"""What jobs submit to a pool, what they get back, and what a task is given where it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from iosched.jobs.interrupt import Interrupt
from iosched.jobs.opening import Lent
from iosched.jobs.pool.budget import Budget
from iosched.jobs.pool.messages import Progress, Rows, Step
from iosched.jobs.progress import Observer
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel, OpenModelHere
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.scheduler.cost import Prefetchable

W = TypeVar("W")
R = TypeVar("R")

How = Literal["best", "now", "pruned"]
"""How a task is to end: soon, with the best that is known; without a result; or since others were better."""

POLL_S = 0.2
"""How often somebody who waits looks whether the user has interrupted."""


class Context(Protocol):
    """A task where it runs."""

    @property
    def model(self) -> Model:
        """What it is about."""
        ...

    @property
    def observer(self) -> Observer:
        """Is shown how far the task is."""
        ...

    @property
    def interrupt(self) -> Interrupt:
        """Says whether the task is to end."""
        ...

    def settings(self, asked: OptimizeSettings) -> OptimizeSettings:
        """The settings of a job as they are here."""
        ...

    def opened(self, device: str, asked: OpenSettings) -> OpenModel:
        """The model, open on a device; whoever runs tasks closes it."""
        ...

    def lent(self, opening: OpenSettings) -> Lent:
        """What a job that opens the model itself is lent."""
        ...

    def ahead(
        self, opening: OpenSettings, model: OpenModelHere, is_over: Callable[[], bool] = lambda: False
    ) -> Prefetchable | None:
        """What answers the questions of a search of an open model ahead; None where nobody does."""
        ...

    def write(self, path: Path) -> None:
        """Writes the model to a file."""
        ...

    def stopped(self) -> How | None:
        """How the task is to end; None where it is to go on."""
        ...

    def step(self, step: int, value: float) -> None:
        """Tells what a score command has printed."""
        ...


@dataclass(frozen=True)
class Kind(Generic[W, R]):
    """A kind of task.

    Attributes:
        name: what messages name it by.
        work: says what is to be done; travels as JSON.
        result: what comes of it; likewise.
        do: does it. Raises `IoschedError`s, which travel, and `KeyboardInterrupt` where it was told to stop.
        is_repeatable: whether it may be done twice, as a measurement, since its worker may be lost or slow.
    """

    name: str
    work: type[W]
    result: type[R]
    do: Callable[[W, Context], R]
    is_repeatable: bool = True


def ignored(said: Progress | Step) -> None:
    """Does nothing."""
    del said


@dataclass(frozen=True)
class Task(Generic[R]):
    """Something that one worker of a device does on its own.

    Attributes:
        kind: what kind of task it is, and `work` what is to be done.
        model: what it is about.
        device: whose workers may do it: "cpu", or the key of a GPU.
        asks: whether the questions of its search may go to other workers of the device.
        budget: of the job; the task fails once it is exceeded.
        rows: of other devices, which a worker needs for the tasks of this job.
        on_said: is called with what the worker says meanwhile; has to return soon.
    """

    kind: Kind[Any, R]
    work: object
    model: Model
    device: str
    asks: bool = False
    budget: Budget | None = None
    rows: Rows = ()
    on_said: Callable[[Progress | Step], None] = ignored


@dataclass(eq=False)
class Pending(Generic[R]):
    """A task that was submitted, and its result when there is one.

    Attributes:
        error: in place of a result.
        began_s: when it was submitted or, on this machine, begun, by `time.monotonic`.
        ended_s: when its result came.
    """

    task: Task[R]
    error: BaseException | None = None
    began_s: float = field(default_factory=time.monotonic)
    ended_s: float = 0.0
    _results: list[R] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether there is a result, or an error."""
        return bool(self._results) or self.error is not None

    def fulfil(self, result: R) -> None:
        """Ends with a result."""
        self._results.append(result)
        self.ended_s = time.monotonic()

    def fail(self, error: BaseException) -> None:
        """Ends with an error."""
        self.error, self.ended_s = error, time.monotonic()

    def result(self) -> R:
        """The result.

        Raises:
            IoschedError: what the worker raised, or what became of the task.
        """
        if self.error is not None:
            raise self.error
        return self._results[0]


@dataclass(frozen=True)
class Target:
    """A device that costs are asked for.

    Attributes:
        device: its short name.
        asked: how settings name it.
        workers: the device whose workers find the costs; another one where they simulate it.
        is_elsewhere: whether these workers have a profile database of their own.
        rows: what was measured on GPUs elsewhere, where they simulate it.
    """

    device: str
    asked: str
    workers: str
    is_elsewhere: bool = False
    rows: Rows = field(default=(), compare=False)

    @property
    def is_simulated(self) -> bool:
        """Whether workers of another device compute what is asked."""
        return self.is_elsewhere and self.device != self.workers

    def on(self, settings: OptimizeSettings) -> OptimizeSettings:
        """The settings of a job for this device.

        Raises:
            UsageError: workers elsewhere are to measure again what they know.
        """
        if self.is_elsewhere:
            refuse_measuring_anew(settings.resume)
        return replace(settings, device=self.asked, profile_db=None if self.is_elsewhere else settings.profile_db)


class Pool(Protocol):
    """Workers that do tasks.

    Attributes:
        n_spare: how many tasks a worker should have waiting beside the one that it does.
    """

    n_spare: int

    def target(self, text: str, profile_db: Path | None = None, *, may_simulate: bool = True) -> Target:
        """The device that a text of `--device` means.

        Args:
            profile_db: the profile database; by default the user's own.
            may_simulate: whether a GPU may be meant that is not there.

        Raises:
            UsageError: there is no such device; says which there are.
            DeviceError: there is no cluster, or nothing in it.
        """
        ...

    def count(self, device: str) -> int:
        """How many workers a device can have, whether or not they are up."""
        ...

    def n_up(self, devices: Iterable[str]) -> int:
        """How many workers the best equipped of these devices has now; at least one, which may be on its way."""
        ...

    def submit(self, task: Task[R]) -> Pending[R]:
        """Has a worker do a task, beginning at the next `wait`.

        Raises:
            UsageError: its model is too large to be sent.
        """
        ...

    def wait(self, pending: Sequence[Pending[Any]], timeout_s: float = POLL_S) -> None:
        """Has workers work until one of these tasks is done; on a cluster at most so long."""
        ...

    def stop(self, pending: Pending[Any], how: How) -> None:
        """Has a task end in this way; one that no worker has begun ends at once, without a result."""
        ...

    def budget(self, seconds: float | None) -> Budget | None:
        """The budget of a job: begins now, or when a first worker has a model open."""
        ...


def outcome(pool: Pool, pending: Pending[R], interrupt: Interrupt) -> R:
    """Waits for the result of a task; at an interruption the user is asked, and the worker told.

    Raises:
        KeyboardInterrupt: the user wants no result.
        IoschedError: what the worker raised, or what became of the task.
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


def refuse_measuring_anew(resume: bool) -> None:
    """Refuses `--no-resume`: what a worker does not know of its device it is told by the profile database.

    Raises:
        UsageError: it is asked for.
    """
    if not resume:
        raise UsageError(
            "--no-resume and --cluster contradict each other: workers tell each other what they measured by the"
            " profile database\nName an empty one with --profile-db to have everything measured anew"
        )
