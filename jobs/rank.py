"""The job `rank`: latencies of many models on several devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from iosched.jobs.observer import Observer, Silence
from iosched.jobs.pool.local import LocalPool
from iosched.jobs.pool.task import JobBudget, Pending, Target, WorkerPool, refuse_measuring_again
from iosched.jobs.ranking.measures import DEFAULT_MEASURE, MEASURES, Measure
from iosched.jobs.ranking.model_cost import ModelCost
from iosched.jobs.ranking.rank_task import cost_task
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import share_s
from iosched.models.errors import DeviceLostError, IoschedError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.devices.resolve import remarks, resolve
from iosched.profiler.store.database import default_path
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName

Source = Model | Callable[[], Model]
"""A model, or a function that loads it when needed, to save memory."""


class UnreachedError(IoschedError):
    """The user interrupted before a model had a latency on a device."""


@dataclass(frozen=True)
class RankSettings:
    """Settings of `rank`.

    Attributes:
        devices: the devices, as for `--device`.
        measure: measures whole models ("models"), only stages ("stages") or nothing ("none") on attached devices. On a
            simulated GPU latencies are computed.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        precision: the precision.
        launch: how simulated GPUs launch kernels.
        budget_s: the seconds for everything; each model gets an equal share of the remaining time. None for no limit.
        profile_db: the profile database; by default the user's.
        resume: whether to use the latencies in the database.
        gap_percent: the gap that a search may leave, see `OptimizeSettings`.
    """

    devices: tuple[str, ...] = ("auto",)
    measure: Measure = DEFAULT_MEASURE
    threads: int | None = None
    precision: PrecisionName = DEFAULT_PRECISION
    launch: LaunchName = DEFAULT_LAUNCH
    budget_s: float | None = None
    profile_db: Path | None = None
    resume: bool = True
    gap_percent: float | None = None

    def on(self, device: str) -> OptimizeSettings:
        """The settings of the search on one of the devices."""
        return OptimizeSettings(
            device=device,
            threads=self.threads,
            precision=self.precision,
            launch=self.launch,
            budget_s=self.budget_s,
            profile_db=self.profile_db,
            resume=self.resume,
            gap_percent=self.gap_percent,
        )


@dataclass(frozen=True)
class RankRow:
    """A model on a device.

    Attributes:
        cost: its latency there; None if there is none.
        failure: the error; None if there is a latency.
        flops: operations in one run; None if the model cannot be read.
        params: the number of parameters; None if the model cannot be read.
    """

    model: str
    device: str
    cost: ModelCost | None = None
    failure: Exception | None = None
    flops: int | None = None
    params: int | None = None

    @property
    def latency_us(self) -> float:
        """The latency; infinite if there is none."""
        return math.inf if self.cost is None else self.cost.latency_us

    @property
    def is_unreached(self) -> bool:
        """Whether there is no latency because the user interrupted before."""
        return isinstance(self.failure, UnreachedError)

    @property
    def error(self) -> str | None:
        """Why there is no latency, in one line; None if there is one."""
        if self.failure is None:
            return None
        text, kind = " ".join(str(self.failure).split()), type(self.failure).__name__
        return text or kind if isinstance(self.failure, IoschedError) else f"{kind}: {text}"


@dataclass(frozen=True)
class RankResult:
    """Rows by device, the fastest first, those without a latency last."""

    rows: tuple[RankRow, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def failure(self) -> Exception | None:
        """The error of the first row, if no row has a latency."""
        return self.rows[0].failure if all(row.failure for row in self.rows) else None

    @property
    def was_interrupted(self) -> bool:
        """Whether the user interrupted before there was a row for each model on each device."""
        return any(row.is_unreached for row in self.rows)

    @property
    def hit_rate(self) -> float | None:
        """The part, from 0 to 1, of all requested stage latencies that the database had; None if none was requested."""
        found = [row.cost for row in self.rows if row.cost is not None]
        hits, measured = sum(each.cache_hits for each in found), sum(each.measurements for each in found)
        return hits / (hits + measured) if hits + measured else None


class RankInterruptedError(KeyboardInterrupt):
    """The user interrupted after some rows were finished.

    Attributes:
        result: these rows, followed by the others, each with an `UnreachedError`.
    """

    def __init__(self, result: RankResult) -> None:
        super().__init__()
        self.result = result


def rank(
    models: Mapping[str, Source],
    settings: RankSettings = RankSettings(),
    observer: Observer | None = None,
    pool: WorkerPool | None = None,
) -> RankResult:
    """Sorts models by their latency on each device.

    Equal stages of several models are measured once. A model that cannot be read or run is a row with the error.
    Measurements are stored, so an interrupted call continues.

    Args:
        models: by name; functions are called when needed.
        observer: is shown the number of finished rows.
        pool: whose workers find the costs; by default this machine. Workers of a cluster also compute those of GPUs
            that the cluster does not have.

    Raises:
        UsageError: there is no model or device, or a setting is wrong.
        DeviceError: a device is not attached, or a library is missing; or there is no cluster.
        DeviceLostError: a GPU stopped working, or all workers of a device were lost.
        RankInterruptedError: the user interrupts; it is a `KeyboardInterrupt` with the finished rows.
        KeyboardInterrupt: the user interrupts before a row is finished.
    """
    if not models:
        raise UsageError("no model to rank: name at least one")
    if settings.measure not in MEASURES:
        raise UsageError(f"unknown measure {settings.measure!r}: choose from {', '.join(MEASURES)}")
    if pool is not None:
        refuse_measuring_again(settings.resume)
        return _ranked(pool, models, settings, observer)
    for name in settings.devices:
        resolve(name).check(settings.on(name).opening)
    with _shared(settings) as shared, LocalPool() as local:
        return _ranked(local, models, shared, observer)


def _ranked(
    pool: WorkerPool, models: Mapping[str, Source], settings: RankSettings, observer: Observer | None
) -> RankResult:
    targets = [pool.target(device, settings.profile_db) for device in settings.devices]
    by_device = {target.device: target for target in reversed(targets)}
    devices = tuple(dict.fromkeys(by_device[target.device] for target in targets))
    if not devices:
        raise UsageError("no device to rank models on: name at least one")
    budget = pool.budget(settings.budget_s)
    return _Ranking(pool, settings, devices, models, observer or Silence(), time.monotonic(), budget).of()


def loaded(source: Source) -> Model | Exception:
    """The model, or why it cannot be read."""
    try:
        return source if isinstance(source, Model) else source()
    except Exception as error:  # noqa: BLE001 - an unreadable file is a row, too
        return error


def limited(settings: RankSettings, device: str, started: float, left: float) -> OptimizeSettings:
    """The settings on a device, with an equal share of the remaining time for each remaining row.

    Args:
        started: when the budget began, by `time.monotonic`.
        left: the number of remaining rows that run one after another, including this one.

    Raises:
        UsageError: no time remains.
    """
    on_device = settings.on(device)
    budget_s = share_s(on_device.budget_s, started, max(left, 1))
    if budget_s == 0:
        raise UsageError("no time was left for this model: use a larger --budget")
    return replace(on_device, budget_s=budget_s)


@contextmanager
def _shared(settings: RankSettings) -> Iterator[RankSettings]:
    """The settings with a database that all models share, temporary if none is to be kept."""
    if (settings.profile_db or default_path()) is not None:
        yield settings
        return
    with TemporaryDirectory(prefix="iosched-rank-") as folder:
        yield replace(settings, profile_db=Path(folder) / "profile.sqlite")


@dataclass(eq=False)
class _Ranking:
    pool: WorkerPool
    settings: RankSettings
    devices: tuple[Target, ...]
    models: Mapping[str, Source]
    observer: Observer
    started: float
    budget: JobBudget | None
    rows: dict[tuple[str, str], RankRow] = field(default_factory=dict)
    asked: dict[Pending[ModelCost], RankRow] = field(default_factory=dict)

    def of(self) -> RankResult:
        try:
            for name, source in self.models.items():
                model = loaded(source)
                for target in self.devices:
                    self._ask(name, model, target)
                    while len(self.asked) >= self._most:
                        self._take()
            while self.asked:
                self._take()
        except KeyboardInterrupt:
            self._stop()
            if not self.rows:
                raise
            raise RankInterruptedError(self._result()) from None
        except DeviceLostError:
            self._stop()
            raise
        return self._result()

    @property
    def _most(self) -> int:
        """The number of rows asked for at a time, so that no worker waits for a model to be read."""
        workers = sum(self.pool.n_up([device]) for device in {each.workers for each in self.devices})
        return (1 + self.pool.n_spare) * workers

    @property
    def _began(self) -> float:
        """When the budget began; now, if it has not begun."""
        began = None if self.budget is None else self.budget.opened_s
        return time.monotonic() if began is None else began

    @property
    def _total(self) -> int:
        return len(self.models) * len(self.devices)

    def _ask(self, name: str, model: Model | Exception, target: Target) -> None:
        self.observer.progress(len(self.rows), self._total, f"{name} on {target.device}")
        row = RankRow(name, target.device)
        try:
            if isinstance(model, Exception):
                raise model
            row = replace(row, flops=model.flops, params=model.n_parameters)
            left = self._total - len(self.rows) - len(self.asked)
            in_turn = left / self.pool.n_up([target.workers])
            settings = limited(self.settings, target.asked, self._began, in_turn)
            about = (self.settings.measure, settings, model, len(self.models), self.budget)
            self.asked[self.pool.submit(cost_task(self.pool, target, *about))] = row
        except Exception as error:  # noqa: BLE001 - one model of a hundred is not the end of the others
            self._done(replace(row, failure=error))

    def _take(self) -> None:
        self.pool.wait(tuple(self.asked))
        for pending in [each for each in self.asked if each.is_done]:
            row = self.asked.pop(pending)
            try:
                self._done(replace(row, cost=replace(pending.result(), device=row.device)))
            except DeviceLostError:
                raise
            except Exception as error:  # noqa: BLE001 - one model of a hundred is not the end of the others
                self._done(replace(row, failure=error))

    def _done(self, row: RankRow) -> None:
        self.rows[row.model, row.device] = row
        self.observer.progress(len(self.rows), self._total, f"{row.model} on {row.device} done")

    def _stop(self) -> None:
        for pending in self.asked:
            self.pool.stop(pending, "now")

    def _result(self) -> RankResult:
        found = [
            self.rows.get((name, target.device)) or RankRow(name, target.device, failure=UnreachedError("interrupted"))
            for target in self.devices
            for name in self.models
        ]
        order = {target.device: place for place, target in enumerate(self.devices)}
        rows = sorted(found, key=lambda row: (order[row.device], row.latency_us))
        notes = (line for each in self.devices if not each.is_remote for line in remarks(each.asked))
        return RankResult(tuple(rows), time.monotonic() - self.started, tuple(dict.fromkeys(notes)))
