"""The job `rank`: what each of many models costs on each of several devices."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from iosched.jobs.pace import share_s
from iosched.jobs.progress import Observer, Silence
from iosched.jobs.ranking.cost import ModelCost, model_cost
from iosched.jobs.ranking.measures import DEFAULT_MEASURE, MEASURES, Measure
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import DeviceLostError, IoschedError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.launch import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.devices.resolve import remarks, resolve
from iosched.profiler.store.database import default_path
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName

Source = Model | Callable[[], Model]
"""A model, or what loads it when its turn comes, so that a hundred need not be in memory together."""


class UnreachedError(IoschedError):
    """The user interrupted before a model had a latency on a device."""


@dataclass(frozen=True)
class RankSettings:
    """The devices, and how latencies are found.

    Attributes:
        devices: the devices, as `--device` takes them.
        measure: what is measured on devices that are here: whole models ("models"), their stages alone ("stages"), or
            nothing ("none"). On a GPU that is not attached latencies are computed.
        threads: the number of CPU cores to use; by default all that the process may use, as far as its quota goes.
        precision: what devices compute in.
        launch: how GPUs that are not attached are thought to be given their kernels.
        budget_s: the seconds for everything; each model has an equal part of what is left. None for no limit.
        profile_db: the profile database; by default the user's own.
        resume: whether the latencies in the database are used.
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
        model: the name of the model.
        device: the short name of the device.
        cost: its latency there; None where there is none.
        failure: what was raised instead; None where there is a latency.
        flops: operations in one run; None where the model cannot be read.
        params: how many numbers its weights have; None where it cannot be read.
    """

    model: str
    device: str
    cost: ModelCost | None = None
    failure: Exception | None = None
    flops: int | None = None
    params: int | None = None

    @property
    def latency_us(self) -> float:
        """The latency; infinite where there is none."""
        return math.inf if self.cost is None else self.cost.latency_us

    @property
    def is_unreached(self) -> bool:
        """Whether there is no latency because the user interrupted before."""
        return isinstance(self.failure, UnreachedError)

    @property
    def error(self) -> str | None:
        """Why there is no latency, in one line; None where there is one."""
        if self.failure is None:
            return None
        text, kind = " ".join(str(self.failure).split()), type(self.failure).__name__
        return text or kind if isinstance(self.failure, IoschedError) else f"{kind}: {text}"


@dataclass(frozen=True)
class RankResult:
    """Models on devices, device by device, the fastest first, and those without a latency at the end.

    Attributes:
        rows: a row for each model on each device.
        seconds: how long all took.
        notes: sentences that a user should read.
    """

    rows: tuple[RankRow, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def failure(self) -> Exception | None:
        """What was raised for the first row, if no row has a latency; else None."""
        return self.rows[0].failure if all(row.failure for row in self.rows) else None

    @property
    def was_interrupted(self) -> bool:
        """Whether the user interrupted before there was a row for each model on each device."""
        return any(row.is_unreached for row in self.rows)

    @property
    def hit_rate(self) -> float | None:
        """The part, from 0 to 1, of all latencies of stages asked for that the database had; None if none was."""
        found = [row.cost for row in self.rows if row.cost is not None]
        hits, measured = sum(each.cache_hits for each in found), sum(each.measurements for each in found)
        return hits / (hits + measured) if hits + measured else None


class RankInterruptedError(KeyboardInterrupt):
    """The user interrupted when there were rows that were done.

    Attributes:
        result: has these rows, and behind them the others, each with an `UnreachedError`.
    """

    def __init__(self, result: RankResult) -> None:
        super().__init__()
        self.result = result


def rank(
    models: Mapping[str, Source],
    settings: RankSettings = RankSettings(),
    observer: Observer | None = None,
) -> RankResult:
    """Finds what each model costs on each device, and sorts the models by it.

    Stages that are alike in several models are measured once. A model that cannot be read or run is a row that says
    why. What was measured is kept: a call that was interrupted goes on where it was.

    Args:
        models: by name; those that have to be loaded are loaded one at a time.
        settings: the devices, and how latencies are found.
        observer: is shown how many models on how many devices are done.

    Raises:
        UsageError: there is no model or device, or a setting is wrong.
        DeviceError: a device is not attached, or a library is missing.
        DeviceLostError: a GPU stopped working.
        RankInterruptedError: the user interrupts; it is a `KeyboardInterrupt` that has the rows that were done.
        KeyboardInterrupt: the user interrupts before there is one.
    """
    check_asked(models, settings)
    devices = _devices(settings)
    with _shared(settings) as shared:
        return _Ranking(shared, devices, observer or Silence(), time.monotonic()).of(models)


def check_asked(models: Mapping[str, Source], settings: RankSettings) -> None:
    """Accepts what can be asked for.

    Raises:
        UsageError: there is no model, or a setting is wrong.
    """
    if not models:
        raise UsageError("there is no model to rank")
    if settings.measure not in MEASURES:
        raise UsageError(f"unknown measure {settings.measure!r}: there are {', '.join(MEASURES)}")


def ranked(rows: Sequence[RankRow], n_devices: int, seconds: float, notes: Iterable[str] = ()) -> RankResult:
    """The result of rows that are model by model, each on all of so many devices."""
    by_device = (rows[place::n_devices] for place in range(n_devices))
    sorted_rows = (row for found in by_device for row in sorted(found, key=lambda row: row.latency_us))
    return RankResult(tuple(sorted_rows), seconds, tuple(dict.fromkeys(notes)))


def loaded(source: Source) -> Model | Exception:
    """The model, or why it cannot be read."""
    try:
        return source if isinstance(source, Model) else source()
    except Exception as error:  # noqa: BLE001 - whatever a file is, it is a row
        return error


def limited(settings: RankSettings, device: str, started: float, left: float) -> OptimizeSettings:
    """The settings on a device, with an equal part of the time that remains for the rows that are left.

    Args:
        started: when all began, by `time.monotonic`.
        left: how many rows are done one after another in the time that remains, with this one.

    Raises:
        UsageError: no time remains.
    """
    on_device = settings.on(device)
    budget_s = share_s(on_device.budget_s, started, max(left, 1))
    if budget_s == 0:
        raise UsageError("there was no time left for this model: give a larger --budget")
    return replace(on_device, budget_s=budget_s)


def _devices(settings: RankSettings) -> Mapping[str, str]:
    """The names that devices are given by, and their short ones; raises where one cannot be used with the settings."""
    found: dict[str, str] = {}
    for name in settings.devices:
        device = resolve(name)
        device.check(settings.on(name).opening)
        found.setdefault(device.info.key, name)
    if not found:
        raise UsageError("there is no device to rank models on")
    return {name: key for key, name in found.items()}


@contextmanager
def _shared(settings: RankSettings) -> Iterator[RankSettings]:
    """The settings with a profile database that all models share, also where none is to be kept."""
    if (settings.profile_db or default_path()) is not None:
        yield settings
        return
    with TemporaryDirectory(prefix="iosched-rank-") as folder:
        yield replace(settings, profile_db=Path(folder) / "profile.sqlite")


@dataclass(frozen=True, eq=False)
class _Ranking:
    """One call of `rank`.

    Attributes:
        devices: the short names of the devices by those that they were given by.
        started: when it began, by `time.monotonic`.
    """

    settings: RankSettings
    devices: Mapping[str, str]
    observer: Observer
    started: float

    def of(self, models: Mapping[str, Source]) -> RankResult:
        """Ranks the models."""
        rows: list[RankRow] = []
        try:
            for row in self._in_turn(models):
                rows.append(row)
        except KeyboardInterrupt:
            if not rows:
                raise
            pairs = [(name, self.devices[device]) for name in models for device in self.devices]
            unreached = [RankRow(*pair, failure=UnreachedError("interrupted")) for pair in pairs[len(rows) :]]
            raise RankInterruptedError(self._result([*rows, *unreached])) from None
        return self._result(rows)

    def _in_turn(self, models: Mapping[str, Source]) -> Iterator[RankRow]:
        """The rows as they are done: model by model, each on all devices."""
        total = len(models) * len(self.devices)
        for number, (name, source) in enumerate(models.items()):
            model = loaded(source)
            for place, device in enumerate(self.devices):
                done = number * len(self.devices) + place
                self.observer.progress(done, total, f"{name} on {self.devices[device]}")
                yield self._row(name, model, device, total - done)

    def _result(self, rows: Sequence[RankRow]) -> RankResult:
        """The result of rows that are model by model, each on all devices."""
        notes = (line for device in self.devices for line in remarks(device))
        return ranked(rows, len(self.devices), time.monotonic() - self.started, notes)

    def _row(self, name: str, model: Model | Exception, device: str, left: int) -> RankRow:
        """The row of one model on one device; so many rows are `left` with this one."""
        row = RankRow(name, self.devices[device])
        if isinstance(model, Exception):
            return replace(row, failure=model)
        row = replace(row, flops=model.flops, params=model.n_parameters)
        try:
            settings = limited(self.settings, device, self.started, left)
            cost = model_cost(model, self.settings.measure, settings)
            return replace(row, device=cost.device, cost=cost)
        except DeviceLostError:
            raise
        except Exception as error:  # noqa: BLE001 - one model of a hundred is not the end of the others
            return replace(row, failure=error)
