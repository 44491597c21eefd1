"""Schedules of one model for several targets, each costed on every target (Ding's thesis, table 4.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from iosched.jobs.costing import analytic_latency_us, gpu_latency_us, measured_latency_us
from iosched.jobs.effort import CPU_EFFORT, GPU_EFFORT
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.analytic import AnalyticCost
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cpu.units import expand
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.profiler.devices.cuda.cost import open_cost
from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.resolve import attached_index, planned_gpu
from iosched.profiler.store.database import ProfileDatabase, default_path
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.baselines import sequential
from iosched.scheduler.cost import CostModel
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.proof import Scope
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult, search
from iosched.scheduler.strategies import SearchStrategy, pruning_of

Progress = Callable[[int, int | None, str], None]
"""Told how many steps are done, of how many (None: not known), and what is next."""

CPU = "cpu"

_ROUNDING = 1e-9


@dataclass(frozen=True)
class MatrixSettings:
    """What to schedule for.

    Attributes:
        devices: as `--device` takes them; each is a target at every batch size.
        precision: what GPUs compute in.
        strategy: "concurrent", "merge", "both" or "dos".
        r: most operators in a group, None for any number; "dos" has its own limits.
        s: most groups in a stage, None for any number.
        threads: cores that the CPU uses; all by default.
        profile_db: the database of what is measured; the user's own by default.
    """

    devices: tuple[str, ...]
    precision: PrecisionName = DEFAULT_PRECISION
    strategy: SearchStrategy = "both"
    r: int | None = 3
    s: int | None = 8
    threads: int | None = None
    profile_db: Path | None = None

    @property
    def pruning(self) -> Pruning:
        """The limits on stages that the strategy is searched under."""
        return pruning_of(self.strategy, Pruning(self.r, self.s))


@dataclass(frozen=True)
class MatrixTarget:
    """A device at a batch size, and the schedule for it.

    Attributes:
        device: key of the device ("v100", "cpu", "cuda:0").
        name: the device's own name.
        batch_size: of the model's inputs.
        cost: "analytic", or "measured" on the CPU and on attached GPUs.
        schedule: the best one for this target, in terms of the model's operators.
        proven: what that is proven to be the best schedule of under this cost: the whole graph, each block, or nothing.
        sequential_us: latency of one operator after another on this target.
        taken_from: the target whose schedule is faster here than what the search for this one ended with, and is
            therefore its schedule too; None where the search's own is the best, as it always is where it is optimal.
    """

    device: str
    name: str
    batch_size: int
    cost: str
    schedule: Schedule
    proven: Scope | None
    sequential_us: float
    taken_from: int | None = None

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no legal schedule of the whole graph is better."""
        return self.proven == "whole"


@dataclass(frozen=True)
class MatrixResult:
    """Targets, and `latency_us[executed on][optimized for]` over them in microseconds."""

    targets: tuple[MatrixTarget, ...]
    latency_us: tuple[tuple[float, ...], ...]

    @property
    def cost(self) -> str:
        """ "analytic" or "measured" where all rows are, else "mixed"."""
        costs = {target.cost for target in self.targets}
        return costs.pop() if len(costs) == 1 else "mixed"

    def slowdown(self, executed: int, optimized: int) -> float | None:
        """Latency on target `executed` over that of its own schedule; 1 on the diagonal.

        None where it is measured: sums of stages that were measured at different times make no rounds, so that the
        ratio would have no interval.
        """
        if self.targets[executed].cost == "measured":
            return None
        own = self.latency_us[executed][executed]
        return self.latency_us[executed][optimized] / own if own > 0 else 1.0


def matrix(
    batches: Iterable[tuple[int, Model]], settings: MatrixSettings, progress: Progress = lambda *_: None
) -> MatrixResult:
    """Schedules for every device at every batch size, and costs each schedule on every target.

    Targets stand by device, then by batch size. No schedule loses to another on its own target: where a search ends
    unproven and the schedule of another target is faster, that one is taken (`MatrixTarget.taken_from`).

    Args:
        batches: batch sizes with the model bound to each; asked for one after another.
        settings: devices and how to search.
        progress: told about every target.

    Raises:
        UsageError: there is no such device, or the model's operators depend on its batch size.
        DeviceError: a device is not here and cannot be modelled.
    """
    with ExitStack() as open_things:
        places = list(_places(batches, settings, open_things))
        found = []
        for index, place in enumerate(places):
            progress(index, len(places), f"{place.device}, batch size {place.batch_size}")
            found.append(place.search())
        progress(len(places), len(places), "every schedule on every target")
        costs = [[place.latency_us(one.schedule) for one in found] for place in places]
        sequential_us = [place.latency_us(sequential(place.graph)) for place in places]
    sources = [_fastest(row, own) for own, row in enumerate(costs)]
    targets = tuple(
        MatrixTarget(
            place.device,
            place.name,
            place.batch_size,
            place.cost,
            found[sources[own]].schedule,
            found[own].proven if sources[own] == own else None,
            sequential_us[own],
            None if sources[own] == own else sources[own],
        )
        for own, place in enumerate(places)
    )
    return MatrixResult(targets, tuple(tuple(row[source] for source in sources) for row in costs))


def _fastest(row: Sequence[float], own: int) -> int:
    """The fastest schedule of a row; its own where none is faster beyond rounding."""
    best = min(range(len(row)), key=row.__getitem__)
    return best if row[best] < row[own] * (1 - _ROUNDING) else own


@dataclass(frozen=True)
class _Found:
    """A schedule in terms of operators, and what it is proven to be the best schedule of."""

    schedule: Schedule
    proven: Scope | None

    @classmethod
    def of(cls, found: SearchResult) -> _Found:
        return cls(found.schedule, found.proven)


@dataclass(frozen=True)
class _Place:
    """A device at a batch size, with the search for it and its latency of a schedule, both in terms of operators."""

    device: str
    name: str
    batch_size: int
    cost: str
    graph: ComputationGraph
    search: Callable[[], _Found]
    latency_us: Callable[[Schedule], float]


def _places(batches: Iterable[tuple[int, Model]], settings: MatrixSettings, open_things: ExitStack) -> Iterator[_Place]:
    """All targets, by device and then by batch size."""
    machine = _Machine(settings, open_things)
    makers = dict(machine.maker(device) for device in settings.devices)
    found: dict[str, list[_Place]] = {key: [] for key in makers}
    first: ComputationGraph | None = None
    for batch_size, model in batches:
        first = model.graph if first is None else first
        _check_same_operators(first, model.graph, batch_size)
        for key, make in makers.items():
            found[key].append(make(batch_size, model))
    for places in found.values():
        yield from places


def _check_same_operators(first: ComputationGraph, graph: ComputationGraph, batch_size: int) -> None:
    if set(first.by_name) != set(graph.by_name):
        raise UsageError(
            f"at batch size {batch_size} the model has other operators than at the first one, so that their schedules"
            " cannot change places: ask for one batch size at a time"
        )


def _planned(settings: MatrixSettings, gpu: GpuSpec, batch_size: int, model: Model) -> _Place:
    cost = AnalyticCost(model.graph, gpu, settings.precision)

    def found() -> _Found:
        pruning = settings.pruning
        return _Found.of(search(model.graph, cost, strategy=settings.strategy, pruning=pruning))

    latency_us = partial(analytic_latency_us, cost)
    return _Place(gpu.key, gpu.name, batch_size, "analytic", model.graph, found, latency_us)


_Maker = Callable[[int, Model], _Place]


@dataclass(eq=False)
class _Machine:
    """What this machine measures: all batch sizes share worker threads, GPUs and one database, opened when needed."""

    settings: MatrixSettings
    open_things: ExitStack
    first: CpuBackend | None = None

    def maker(self, device: str) -> tuple[str, _Maker]:
        """The key of a device, and what makes a place of it for each batch size.

        Raises:
            UsageError: no such device.
            DeviceError: a GPU that was asked for by its number cannot be used.
        """
        index = attached_index(device)
        if index is not None:
            return f"cuda:{index}", partial(self._attached, attach(index), f"cuda:{index}")
        gpu = planned_gpu(device)
        return (CPU, self._cpu) if gpu is None else (gpu.key, partial(_planned, self.settings, gpu))

    def _cpu(self, batch_size: int, model: Model) -> _Place:
        backend = self.open_things.enter_context(CpuBackend(model, lanes=self.settings.threads, beside=self.first))
        self.first = self.first or backend
        if not backend.is_supported():
            raise UsageError("this model's inputs have no fixed size, so there is no schedule to measure")
        cost = StageCost(backend, self._database)

        def found() -> _Found:
            coarse = self._search(backend.graph, cost, CPU_EFFORT)
            return replace(coarse, schedule=expand(backend.coarse, coarse.schedule))

        latency_us = partial(measured_latency_us, cost)
        return _Place(CPU, cpu_name(), batch_size, "measured", model.graph, found, latency_us)

    def _attached(self, gpu: AttachedGpu, key: str, batch_size: int, model: Model) -> _Place:
        cost = open_cost(gpu, model, self.settings.precision, self._database)
        search_here = partial(self._search, cost.backend.graph, cost, GPU_EFFORT)
        latency_us = partial(gpu_latency_us, cost)
        return _Place(key, gpu.name, batch_size, "measured", model.graph, search_here, latency_us)

    @cached_property
    def _database(self) -> ProfileDatabase:
        return self.open_things.enter_context(ProfileDatabase(self.settings.profile_db or default_path()))

    def _search(self, graph: ComputationGraph, cost: CostModel, effort: Effort) -> _Found:
        pruning = self.settings.pruning
        return _Found.of(search(graph, cost, strategy=self.settings.strategy, pruning=pruning, effort=effort))
