"""How jobs ask a fleet: which device is meant, what goes out with a model, and how an answer is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from iosched.jobs.fleet.budget import Budget
from iosched.jobs.fleet.errand import Errand, ignored
from iosched.jobs.fleet.messages import Progress, Rows, Step, Stop
from iosched.jobs.fleet.plain import broken, taken
from iosched.jobs.fleet.rows import is_of_gpu
from iosched.jobs.fleet.sending import packed
from iosched.jobs.fleet.work.ahead import Ahead
from iosched.jobs.fleet.work.cost import Cost
from iosched.jobs.fleet.work.simulation import Simulation
from iosched.jobs.interrupt import Interrupt
from iosched.jobs.progress import Observer
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.gpus import gpu_named
from iosched.profiler.store.database import ProfileDatabase, default_path, is_there

R = TypeVar("R")

POLL_S = 0.2
"""How often somebody who waits looks whether the user has interrupted."""


class UpWorker(Protocol):
    """A worker that is up."""

    @property
    def device(self) -> str:
        """The key of its device."""
        ...


class Status(Protocol):
    """What a fleet does at one moment."""

    @property
    def workers(self) -> Sequence[UpWorker]:
        """Those that are up."""
        ...


class AskedFleet(Protocol):
    """What jobs need of a fleet; see `fleet.Fleet`."""

    def devices(self) -> tuple[str, ...]:
        """Devices that the cluster has, by name."""
        ...

    def count(self, device: str) -> int:
        """How many workers a device can have."""
        ...

    def submit(self, errand: Errand) -> Future[Any]:
        """Has a worker do an errand; the result is plain data."""
        ...

    def tell(self, future: Future[Any], stop: Stop) -> None:
        """Has an errand end."""
        ...

    def status(self) -> Status:
        """What the fleet does now."""
        ...


def device_in(fleet: AskedFleet, text: str) -> str:
    """The device of the cluster that the text of `--device` means; "auto" is a GPU where there is one.

    Raises:
        UsageError: the cluster has no such device; says which it has.
        DeviceError: there is no cluster, or nothing in it.
    """
    there = sorted(fleet.devices(), key=lambda device: (device == "cpu", device))
    wanted = text.strip().lower()
    if wanted == "auto" and there:
        return there[0]
    if wanted not in there:
        has = ", ".join(there) or "no device at all"
        raise UsageError(f"the cluster has no device {text!r}: it has {has}")
    return wanted


@dataclass(frozen=True)
class Target:
    """A device that costs are asked for.

    Attributes:
        device: its name in results.
        workers: the device whose workers find the costs; another one where they simulate it.
        rows: what was measured on GPUs elsewhere, where they simulate it.
    """

    device: str
    workers: str
    rows: Rows = field(default=(), compare=False)


def target_in(fleet: AskedFleet, text: str, profile_db: Path | None) -> Target:
    """The device that a text means, as `device_in`; the CPUs of the cluster simulate a GPU that it lacks.

    Args:
        profile_db: the profile database; by default the user's own.

    Raises:
        UsageError: the cluster has no such device, and cannot simulate it.
        DeviceError: there is no cluster, or nothing in it.
    """
    gpu, there = gpu_named(text), fleet.devices()
    if gpu is None or gpu.key in there or "cpu" not in there:
        device = device_in(fleet, text)
        return Target(device, device)
    path = profile_db or default_path()
    if path is None or not is_there(path):
        return Target(gpu.key, "cpu")
    with ProfileDatabase(path) as database:
        return Target(gpu.key, "cpu", tuple(filter(is_of_gpu, database.rows())))


def cost_errand(
    fleet: AskedFleet,
    target: Target,
    measure: Measure,
    settings: OptimizeSettings,
    model: Model,
    jobs: int,
    budget: Budget | None = None,
) -> Errand:
    """Asks what a model costs, one of so many.

    Raises:
        UsageError: the model is too large to be sent.
    """
    own = replace(settings, device=target.device, profile_db=None)
    if target.device != target.workers:
        made = errand(target.workers, "simulation", Simulation(own), model, budget=budget)
        return replace(made, rows=target.rows)
    work = Cost(measure, own, ahead_on(fleet, target.device, jobs))
    return errand(target.device, "cost", work, model, budget=budget)


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


def workers_of(fleet: AskedFleet, devices: Iterable[str]) -> int:
    """How many workers the best equipped of these devices has now; at least one, which may be on its way."""
    up = [each.device for each in fleet.status().workers]
    return max((up.count(device) for device in devices), default=0) or 1


def ahead_on(fleet: AskedFleet, device: str, jobs: int = 1, fill: int = 0) -> Ahead | None:
    """How the searches of so many jobs ask workers of a device; where none of these is left without a job, they ask
    themselves sooner.

    Args:
        fill: rounds of questions are filled up with guesses to a multiple of this.
    """
    return Ahead(fill) if fleet.count(device) > jobs else None


def errand(
    device: str,
    kind: str,
    work: object,
    model: Model,
    on_said: Callable[[Progress | Step], None] = ignored,
    budget: Budget | None = None,
) -> Errand:
    """Work about a model.

    Raises:
        UsageError: the model is too large to be sent.
    """
    sent, data = packed(model)
    return Errand(kind, msgspec.to_builtins(work), sent, data, device, budget, on_said=on_said)


def read(plain: object, kind: type[R]) -> R:
    """The result of an errand.

    Raises:
        ExecutionError: the worker has returned something else.
    """
    try:
        return taken(plain, kind)
    except ValueError as error:
        raise broken(error) from error


def shown_to(observer: Observer) -> Callable[[Progress | Step], None]:
    """What shows an observer how far the worker is."""

    def show(said: Progress | Step) -> None:
        if isinstance(said, Progress):
            observer.progress(said.done, said.total, said.text)

    return show


def outcome(fleet: AskedFleet, future: Future[Any], interrupt: Interrupt) -> Any:
    """Waits for the result of an errand; at an interruption the user is asked, and the worker told.

    Raises:
        KeyboardInterrupt: the user wants no result.
        IoschedError: what the worker raised, or what became of it.
    """
    try:
        while not wait([future], timeout=POLL_S).done:
            if interrupt.came:
                interrupt.ask()
                fleet.tell(future, Stop(how="best"))
    except KeyboardInterrupt:
        fleet.tell(future, Stop(how="now"))
        raise
    return future.result()


def first_of(futures: Iterable[Future[Any]]) -> None:
    """Waits until one of them is done, or for a moment."""
    wait(list(futures), timeout=POLL_S, return_when=FIRST_COMPLETED)
