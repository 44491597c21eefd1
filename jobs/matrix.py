"""The job `matrix`: finds schedules of a model for several targets, and the latency of each on every target.

The source is table 4.2 of Ding's thesis.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from iosched.jobs.costing import measured_share, schedule_latency_us, stages_as_run
from iosched.jobs.opening import check_schedulable
from iosched.jobs.progress import Observer, Silence
from iosched.jobs.schedules import schedule_by
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel
from iosched.profiler.devices.launch import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.devices.open_settings import OpenSettings, refuse_for_planned_gpus
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.devices.uncertainty import LEVEL
from iosched.profiler.measuring.statistics import Interval
from iosched.profiler.store.database import ProfileDatabase, default_path, is_there
from iosched.scheduler.baselines import sequential
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Scope
from iosched.scheduler.strategy_names import SearchStrategy, pruning_of, refuse_limits

_ROUNDING = 1e-9
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class MatrixSettings:
    """The targets, and how to search.

    Attributes:
        devices: the devices, as `--device` takes them; each is a target at every batch size.
        precision: what GPUs compute in: "fp32", "tf32" or "fp16".
        launch: how GPUs are thought to be given their kernels: by one CUDA graph ("graph"), or one by one ("streams").
        strategy: "concurrent", "merge", "both" or "dos".
        r: the largest number of operators in a group, None for any; "dos" has its own limits, and refuses others.
        s: the largest number of groups in a stage, None for any.
        threads: the number of CPU cores to use; by default all that the process may use, as far as its quota goes.
        profile_db: the profile database; by default the user's own.
        resume: whether the latencies in the profile database are used, on GPUs that are not attached those that were
            measured elsewhere.
        gap_percent: the gap that a search may leave, see `OptimizeSettings`.
    """

    devices: tuple[str, ...]
    precision: PrecisionName = DEFAULT_PRECISION
    launch: LaunchName = DEFAULT_LAUNCH
    strategy: SearchStrategy = "both"
    r: int | None = 3
    s: int | None = 8
    threads: int | None = None
    profile_db: Path | None = None
    resume: bool = True
    gap_percent: float | None = None

    def __post_init__(self) -> None:
        refuse_limits(self.strategy, Pruning(self.r, self.s))

    @property
    def pruning(self) -> Pruning:
        """The limits on stages that the strategy is searched under."""
        return pruning_of(self.strategy, Pruning(self.r, self.s))

    @property
    def opening(self) -> OpenSettings:
        """How the model is to be opened on each device."""
        return OpenSettings(
            self.threads, self.precision, launch=self.launch, resume=self.resume, gap_percent=self.gap_percent
        )


@dataclass(frozen=True)
class MatrixTarget:
    """A device at a batch size, and the schedule for it.

    Attributes:
        device: the short name of the device ("v100", "cpu", "cuda:0").
        name: the product's name.
        batch_size: the batch size of the model's inputs.
        cost: "analytic", or "measured" on the CPU and on attached GPUs.
        schedule: the best known schedule for this target, of the model's operators.
        proven: of what `schedule` is proven to be the best schedule by the device's latencies: of the whole graph, of
            each block, or of nothing.
        sequential_us: the latency of the sequential schedule on this target in microseconds.
        taken_from: the number of another target, if the schedule found for that one is faster here than the one found
            for this target; `schedule` is then that one. None if the search for this target found the best one, which
            is always so if it is optimal.
        notes: sentences that a user should read: where measured stages of a GPU that is not attached come from.
        speedup: how many times as fast as the sequential schedule this one is; None where latencies are measured.
    """

    device: str
    name: str
    batch_size: int
    cost: str
    schedule: Schedule
    proven: Scope | None
    sequential_us: float
    taken_from: int | None = None
    notes: tuple[str, ...] = ()
    speedup: Interval | None = None

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no legal schedule of the whole graph is better."""
        return self.proven == "whole"


@dataclass(frozen=True)
class MatrixIntervals:
    """How well a computed latency in microseconds is known, and its ratio to that of the target's own schedule."""

    latency_us: Interval
    slowdown: Interval


@dataclass(frozen=True)
class MatrixResult:
    """The targets, and how long each runs the schedules of all.

    Attributes:
        targets: a device at a batch size each.
        latency_us: the latencies in microseconds, as `latency_us[executed on][optimized for]`.
        measured_share: the part of each, from 0 to 1, that was measured on such a GPU elsewhere; None on targets that
            nothing was measured on elsewhere, or that are measured here.
        intervals: where each lies, in the same places; None on targets that are measured here.
        level: the probability with which the intervals are meant to hold what would be measured.
    """

    targets: tuple[MatrixTarget, ...]
    latency_us: tuple[tuple[float, ...], ...]
    measured_share: tuple[tuple[float | None, ...], ...]
    intervals: tuple[tuple[MatrixIntervals | None, ...], ...] = ()
    level: float = LEVEL

    @property
    def cost(self) -> str:
        """ "analytic" or "measured" if that is so for all targets, else "mixed"."""
        costs = {target.cost for target in self.targets}
        return costs.pop() if len(costs) == 1 else "mixed"

    def slowdown(self, executed: int, optimized: int) -> float | None:
        """Latency on target `executed` of the schedule for `optimized`, over that of its own schedule.

        None if latencies are measured there: each is a sum over stages that were measured at different times, so that
        their ratio would have no confidence interval.
        """
        if self.targets[executed].cost == "measured":
            return None
        own = self.latency_us[executed][executed]
        return self.latency_us[executed][optimized] / own if own > 0 else 1.0

    def is_equal(self, executed: int, optimized: int) -> bool:
        """Whether on target `executed` the schedule for `optimized` is as fast as its own, as far as that is known."""
        known = self.intervals[executed][optimized] if self.intervals else None
        return known is not None and known.slowdown.is_equal


def matrix(
    batches: Iterable[tuple[int, Model]], settings: MatrixSettings, observer: Observer | None = None
) -> MatrixResult:
    """Finds a schedule for every device at every batch size, and its latency on every target.

    Targets are in the order of devices, and for one device in that of batch sizes. On its own target, no schedule is
    slower than another one: if a search ends without a proof and the schedule of another target is faster, that one is
    used (`MatrixTarget.taken_from`).

    Args:
        batches: batch sizes, each with the model bound to it; iterated once.
        settings: the devices, and how to search.
        observer: is shown the number of targets that are done, and the next one.

    Raises:
        UsageError: there is no such device, or the model's operators depend on its batch size.
        DeviceError: a device is not attached, and there is no specification of it.
    """
    observer = observer or Silence()
    with ExitStack() as open_things:
        opened = list(_open_targets(batches, settings, open_things))
        found = []
        for index, target in enumerate(opened):
            observer.progress(index, len(opened), f"{target.opened.device.info.key}, batch size {target.batch_size}")
            found.append(schedule_by(target.opened, settings.strategy, settings.pruning))
        observer.progress(len(opened), len(opened), "every schedule on every target")
        schedules = [target.opened.units.expanded(one.schedule) for target, one in zip(opened, found, strict=True)]
        costs = [[schedule_latency_us(target.opened, schedule) for schedule in schedules] for target in opened]
        shares = [[measured_share(target.opened, schedule) for schedule in schedules] for target in opened]
        baselines = [sequential(target.model.graph) for target in opened]
        sequential_us = [
            schedule_latency_us(target.opened, each) for target, each in zip(opened, baselines, strict=True)
        ]
    sources = [fastest(row, own) for own, row in enumerate(costs)]
    schedules = [schedules[source] for source in sources]
    targets = tuple(
        MatrixTarget(
            target.opened.device.info.key,
            target.opened.device.info.name,
            target.batch_size,
            target.opened.device.info.cost_kind,
            schedules[own],
            found[own].proven if sources[own] == own else None,
            sequential_us[own],
            None if sources[own] == own else sources[own],
            target.opened.details.elsewhere.notes,
            _speedup(target.opened, baselines[own], schedules[own]),
        )
        for own, target in enumerate(opened)
    )
    intervals = tuple(tuple(_intervals(target.opened, schedules, own)) for own, target in enumerate(opened))
    return MatrixResult(targets, chosen(costs, sources), chosen(shares, sources), intervals)


def chosen(table: Sequence[Sequence[_Value]], sources: Sequence[int]) -> tuple[tuple[_Value, ...], ...]:
    """The columns of these numbers, in their order."""
    return tuple(tuple(row[source] for source in sources) for row in table)


def _intervals(opened: OpenModel, schedules: Sequence[Schedule], own: int) -> Iterator[MatrixIntervals | None]:
    """How well the latency of each schedule is known on a device whose own is number `own`."""
    known = opened.details.uncertainty
    stages = [() if known is None else stages_as_run(opened, schedule) for schedule in schedules]
    for each in stages:
        yield None if known is None else MatrixIntervals(known.latency_us(each), known.ratio(each, stages[own]))


def _speedup(opened: OpenModel, baseline: Schedule, schedule: Schedule) -> Interval | None:
    known = opened.details.uncertainty
    return None if known is None else known.ratio(stages_as_run(opened, baseline), stages_as_run(opened, schedule))


def fastest(row: Sequence[float], own: int) -> int:
    """The number of the fastest schedule on target `own`; `own` itself if no other is faster by more than rounding."""
    best = min(range(len(row)), key=row.__getitem__)
    return best if row[best] < row[own] * (1 - _ROUNDING) else own


@dataclass(frozen=True, eq=False)
class _OpenTarget:
    """One target: the model at a batch size, open on a device."""

    batch_size: int
    model: Model
    opened: OpenModel


def _open_targets(
    batches: Iterable[tuple[int, Model]], settings: MatrixSettings, open_things: ExitStack
) -> Iterator[_OpenTarget]:
    """All targets by device and then by batch size; those of a device share its threads, and all share a database."""
    devices = {device.info.key: device for device in map(resolve, settings.devices)}
    is_measured = any(device.info.cost_kind == "measured" for device in devices.values())
    if all(device.info.cost_kind == "measured" for device in devices.values()):
        refuse_for_planned_gpus(settings.opening)
    path = settings.profile_db or default_path()
    is_read = settings.resume and path is not None and is_there(path)
    database = open_things.enter_context(ProfileDatabase(path)) if is_measured or is_read else None
    found: dict[str, list[_OpenTarget]] = {key: [] for key in devices}
    first: ComputationGraph | None = None
    for batch_size, model in batches:
        first = model.graph if first is None else first
        check_same_operators(first, model.graph, batch_size)
        for key, device in devices.items():
            beside = found[key][0].opened if found[key] else None
            open_model = device.open(model, settings.opening, database, beside=beside)
            open_things.callback(open_model.close)
            check_schedulable(open_model)
            found[key].append(_OpenTarget(batch_size, model, open_model))
    for opened in found.values():
        yield from opened


def check_same_operators(first: ComputationGraph, graph: ComputationGraph, batch_size: int) -> None:
    """Accepts a model whose operators are those that it has at the first batch size.

    Raises:
        UsageError: they are others, so that schedules cannot change places.
    """
    if set(first.by_name) != set(graph.by_name):
        raise UsageError(
            f"at batch size {batch_size} the model has other operators than at the first one, so that their schedules"
            " cannot change places: ask for one batch size at a time"
        )
