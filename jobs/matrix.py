"""The job `matrix`: finds schedules of a model for several targets, and the latency of each on every target.

The source is table 4.2 of Ding's thesis.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from iosched.jobs.matrix_cells import PRICE, SEARCH, MatrixIntervals, Price, Priced, Search, Searched, fastest
from iosched.jobs.observer import Observer, Silence
from iosched.jobs.pool.local import LocalPool
from iosched.jobs.pool.task import Kind, Target, Task, WorkerPool, refuse_measuring_again
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName, OpenSettings, refuse_for_simulated_gpus
from iosched.profiler.devices.profiled_device import LEVEL
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Scope
from iosched.scheduler.strategies import SearchStrategy, pruning_of, refuse_limits

R = TypeVar("R")


@dataclass(frozen=True)
class MatrixSettings:
    """Settings of `matrix`.

    Attributes:
        devices: the devices, as for `--device`; each is a target at every batch size.
        precision: the precision of GPUs: "fp32", "tf32" or "fp16".
        launch: how simulated GPUs launch kernels: by one CUDA graph ("graph") or one by one ("streams").
        strategy: "concurrent", "merge", "both" or "dos".
        r: the largest number of operators in a group, None for any; "dos" has its own limits, and refuses others.
        s: the largest number of groups in a stage, None for any.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        profile_db: the profile database; by default the user's.
        resume: whether to use latencies in the profile database, on simulated GPUs those of other machines.
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
        """Settings for opening the model on each device."""
        return OpenSettings(
            self.threads, self.precision, launch=self.launch, resume=self.resume, gap_percent=self.gap_percent
        )


@dataclass(frozen=True)
class MatrixTarget:
    """A device at a batch size, and the schedule for it.

    Attributes:
        device: the short name of the device ("v100", "cpu", "cuda:0").
        batch_size: the batch size of the model's inputs.
        cost: "analytic", or "measured" on the CPU and on attached GPUs.
        schedule: the best known schedule for this target, of the model's operators.
        proven: the scope in which `schedule` is proven optimal: "whole", "blocks" or None.
        sequential_us: the latency of the sequential schedule on this target in microseconds.
        taken_from: the number of another target, if the schedule found for that one is faster here than the one found
            for this target; `schedule` is then that one. None if the search for this target found the best one, which
            is always so if it is optimal.
        notes: notes on the origin of measured stages of a simulated GPU, and on interference with measurements here.
        speedup: the speedup over the sequential schedule; None if latencies are measured.
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
        """Whether the schedule is proven optimal for the whole graph."""
        return self.proven == "whole"


@dataclass(frozen=True)
class MatrixResult:
    """The targets, and the latencies of all schedules on each.

    Attributes:
        targets: one for each device and batch size.
        latency_us: the latencies in microseconds, as `latency_us[executed on][optimized for]`.
        measured_share: the part of each, from 0 to 1, that was measured on such a GPU on another machine; None on
            targets without such measurements, or that are measured here.
        intervals: their intervals; None on measured targets.
        level: the intended coverage probability of the intervals.
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

        None if measured: sums over stages from different times have no confidence interval.
        """
        if self.targets[executed].cost == "measured":
            return None
        own = self.latency_us[executed][executed]
        return self.latency_us[executed][optimized] / own if own > 0 else 1.0

    def is_equal(self, executed: int, optimized: int) -> bool:
        """Whether on target `executed` the schedule for `optimized` cannot be distinguished from its own."""
        known = self.intervals[executed][optimized] if self.intervals else None
        return known is not None and known.slowdown.is_equal


def matrix(
    batches: Iterable[tuple[int, Model]],
    settings: MatrixSettings,
    observer: Observer | None = None,
    pool: WorkerPool | None = None,
) -> MatrixResult:
    """Finds a schedule for every device at every batch size, and its latency on every target.

    Targets are in the order of devices, and for one device in that of batch sizes. On its own target, no schedule is
    slower than another one: if a search ends without a proof and the schedule of another target is faster, that one is
    used (`MatrixTarget.taken_from`).

    Args:
        batches: batch sizes, each with the model bound to it; iterated once.
        observer: is shown the number of finished searches, then of targets with all schedules priced.
        pool: whose workers search; by default this machine. On a cluster all is measured.

    Raises:
        UsageError: there is no such device, or the model's operators depend on its batch size.
        DeviceError: a device is not attached, and there is no specification of it; or there is no cluster.
        DeviceLostError: all workers of a device were lost.
        ExecutionError: too many workers were lost with one cell.
        KeyboardInterrupt: the user interrupts; what was measured is kept.
    """
    if pool is None:
        if all(resolve(device).info.cost_kind == "measured" for device in settings.devices):
            refuse_for_simulated_gpus(settings.opening)
        with LocalPool(settings.profile_db) as local:
            return _matrix(local, batches, settings, observer or Silence())
    refuse_measuring_again(settings.resume)
    refuse_for_simulated_gpus(settings.opening)
    return _matrix(pool, batches, settings, observer or Silence())


@dataclass(frozen=True)
class _Cell:
    target: Target
    batch_size: int
    model: Model

    @property
    def text(self) -> str:
        return f"{self.target.device}, batch size {self.batch_size}"


def _matrix(
    pool: WorkerPool, batches: Iterable[tuple[int, Model]], settings: MatrixSettings, observer: Observer
) -> MatrixResult:
    named = [pool.target(device, may_simulate=False) for device in settings.devices]
    targets = list({target.device: target for target in named}.values())
    models = list(batches)
    for batch_size, model in models:
        _check_same_operators(models[0][1].graph, model.graph, batch_size)
    cells = [_Cell(target, *each) for target in targets for each in models]
    opening = settings.opening
    searches = [Search(cell.target.asked, opening, settings.strategy, settings.pruning) for cell in cells]
    done = _Done(pool, observer, 2 * len(cells))
    asks = [pool.count(cell.target.workers) > len(models) for cell in cells]
    found = done.of(cells, [_task(SEARCH, *each) for each in zip(searches, cells, asks, strict=True)], 0)
    schedules = tuple(each.schedule for each in found)
    prices = [Price(cell.target.asked, opening, schedules, own) for own, cell in enumerate(cells)]
    priced = done.of(cells, [_task(PRICE, *each) for each in zip(prices, cells, strict=True)], len(cells))
    return _result(cells, found, priced)


def _task(kind: Kind[Any, R], work: object, cell: _Cell, asks: bool = False) -> Task[R]:
    return Task(kind, work, cell.model, cell.target.workers, asks=asks)


@dataclass(frozen=True)
class _Done:
    pool: WorkerPool
    observer: Observer
    total: int

    def of(self, cells: Sequence[_Cell], tasks: Sequence[Task[R]], done: int) -> list[R]:
        asked = [self.pool.submit(task) for task in tasks]
        waiting = dict(zip(asked, cells, strict=True))
        try:
            while waiting:
                self.observer.progress(done, self.total, next(iter(waiting.values())).text)
                self.pool.wait(tuple(waiting))
                for pending in [each for each in waiting if each.is_done]:
                    pending.result()
                    del waiting[pending]
                    done += 1
            return [each.result() for each in asked]
        finally:
            for pending in waiting:
                self.pool.stop(pending, "now")


def _result(cells: Sequence[_Cell], found: Sequence[Searched], priced: Sequence[Priced]) -> MatrixResult:
    sources = [fastest(each.latency_us, own) for own, each in enumerate(priced)]
    targets = tuple(
        MatrixTarget(
            cell.target.device,
            priced[own].name,
            cell.batch_size,
            priced[own].cost,
            found[sources[own]].schedule,
            found[own].proven if sources[own] == own else None,
            priced[own].sequential_us,
            None if sources[own] == own else sources[own],
            priced[own].notes,
            priced[own].speedups[sources[own]],
        )
        for own, cell in enumerate(cells)
    )
    return MatrixResult(
        targets,
        _columns([each.latency_us for each in priced], sources),
        _columns([each.shares for each in priced], sources),
        _columns([each.intervals for each in priced], sources),
    )


def _columns(table: Sequence[Sequence[R]], numbers: Sequence[int]) -> tuple[tuple[R, ...], ...]:
    return tuple(tuple(row[number] for number in numbers) for row in table)


def _check_same_operators(first: ComputationGraph, graph: ComputationGraph, batch_size: int) -> None:
    if set(first.by_name) != set(graph.by_name):
        raise UsageError(
            f"at batch size {batch_size} the model has other operators than at the first batch size, so that"
            " schedules cannot be exchanged: use one batch size at a time"
        )
