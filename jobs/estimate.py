"""How large a search will be, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from iosched.jobs.effort import CPU_EFFORT, GPU_EFFORT
from iosched.jobs.optimization import OptimizeSettings
from iosched.jobs.plan import analytic_cost
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cuda.attached import attach, index_for
from iosched.profiler.devices.cuda.cost import open_cost
from iosched.profiler.devices.known import KnownStages
from iosched.profiler.devices.resolve import planned_gpu
from iosched.profiler.store.database import ProfileDatabase, default_path
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler import lattice as lattices
from iosched.scheduler.blocks import partition
from iosched.scheduler.classes import BlockKey, block_key, stage_classes
from iosched.scheduler.counts import width
from iosched.scheduler.effort import Effort
from iosched.scheduler.lattice import bits
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import Signatures
from iosched.scheduler.strategies import is_searched

SECONDS_PER_MEASUREMENT = {"cpu": 0.1, "cuda": 0.03}
"""What a stage takes to be compiled, warmed up and sampled; on the CPU seldom half a second, see
`cpu_cost.STAGE_SETTINGS`. That of GPUs is a guess."""

COMPARISON_SECONDS = {"cpu": 8.0, "cuda": 1.0}
"""What comparing whole models takes at the end, if they run for a few milliseconds."""


@dataclass(frozen=True)
class BlockEstimate:
    """One block as the device schedules it.

    Attributes:
        signatures: stages that differ in what they cost, and in none of the blocks before.
        known: those that the profile database has.
        measurements: most that the search will measure of the others; once more for those of the best schedules.
    """

    index: int
    operators: int
    width: int
    states: int
    transitions: int
    stages: int
    signatures: int
    known: int
    measurements: int


@dataclass(frozen=True)
class Estimate:
    """All blocks, and what measuring takes; nothing where the device is planned for."""

    device_kind: str
    device_name: str
    cost: str
    blocks: tuple[BlockEstimate, ...]

    @property
    def measurements(self) -> int:
        """Most stages that will be measured."""
        return sum(block.measurements for block in self.blocks)

    @property
    def seconds(self) -> float:
        """About how long, at most."""
        if self.cost == "analytic":
            return 0.0
        return self.measurements * SECONDS_PER_MEASUREMENT[self.device_kind] + COMPARISON_SECONDS[self.device_kind]


def estimate(model: Model, settings: OptimizeSettings) -> Estimate:
    """Counts what `optimize` with these settings would go through; measures and writes nothing.

    Complexity: that of `lattice.build` for each block, and one signature for each class of equal stages.

    Raises:
        UsageError: a setting is wrong.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
    """
    gpu = planned_gpu(settings.device)
    pruning = settings.pruning
    index = index_for(model, settings.device)
    if index is not None:
        return _on_gpu(model, settings, pruning, index)
    if gpu is not None:
        cost = analytic_cost(model, gpu, settings.precision)
        blocks = tuple(_blocks(model.graph, pruning, cost.operator_key, lambda stages: (0, 0)))
        return Estimate("cuda", gpu.name, "analytic", blocks)
    with _database(settings) as database, CpuBackend(model, lanes=settings.threads) as backend:
        measured = StageCost(backend, database)
        counter = _Counter(KnownStages(measured), settings, CPU_EFFORT, samples_alone=2)
        blocks = tuple(_blocks(backend.graph, pruning, measured.operator_key, counter.known_and_missing))
        return Estimate("cpu", cpu_name(), "measured", blocks)


def _on_gpu(model: Model, settings: OptimizeSettings, pruning: Pruning, index: int) -> Estimate:
    gpu = attach(index)
    with _database(settings) as database:
        measured = open_cost(gpu, model, settings.precision, database, times=False)
        counter = _Counter(KnownStages(measured), settings, GPU_EFFORT, samples_alone=1)
        blocks = tuple(_blocks(measured.backend.graph, pruning, measured.operator_key, counter.known_and_missing))
    return Estimate("cuda", gpu.name, "measured", blocks)


def _database(settings: OptimizeSettings) -> ProfileDatabase:
    """The database, or an empty one: one that is not there yet is not made for asking."""
    path = settings.profile_db or default_path()
    return ProfileDatabase(path if path is not None and path.exists() else None)


@dataclass(frozen=True, eq=False)
class _Counter:
    known: KnownStages
    settings: OptimizeSettings
    effort: Effort
    samples_alone: int  # how often an operator alone is measured: on all lanes, and on one where that says something

    def known_and_missing(self, stages: list[Stage]) -> tuple[int, int]:
        """How many of these are known, and how many of the others the search may measure."""
        if not self.settings.resume:
            return 0, self._most(stages, known=[])
        known = [stage for stage in stages if self.known.latency_us(stage) is not None]
        return len(known), self._most(stages, known)

    def _most(self, stages: list[Stage], known: list[Stage]) -> int:
        missing = len(stages) - len(known)
        alone = sum(len(stage.operators) == 1 for stage in stages)
        known_alone = sum(len(stage.operators) == 1 for stage in known)
        if not is_searched(self.settings.strategy):
            return 0
        single = self.samples_alone * (alone - known_alone)
        beyond = missing - (alone - known_alone)
        limit = self.effort.max_measurements
        if self.settings.exhaustive or limit is None:
            return single + beyond
        return single + min(beyond, max(limit - (len(known) - known_alone), 0))


def _blocks(
    graph: ComputationGraph,
    pruning: Pruning,
    key_of: Callable[[str], str],
    known_and_missing: Callable[[list[Stage]], tuple[int, int]],
) -> Iterator[BlockEstimate]:
    seen: set[str] = set()
    alike: dict[BlockKey, BlockEstimate] = {}
    for index, part in enumerate(partition(graph)):
        labels = {name: key_of(name) for name in part.operators}
        key = block_key(graph, part.operators, labels)
        if key in alike:
            yield replace(alike[key], index=index, signatures=0, known=0, measurements=0)
            continue
        order = lattices.relation(graph, part.operators)
        lattice = lattices.build(order, pruning)
        new = _new_stages(graph, part.operators, lattice, labels, seen)
        known, measurements = known_and_missing(new)
        sizes = len(order), width(order), len(lattice.states) - 1, len(lattice.sources), len(lattice.stages)
        alike[key] = BlockEstimate(index, *sizes, len(new), known, measurements)
        yield alike[key]


def _new_stages(
    graph: ComputationGraph,
    names: tuple[str, ...],
    lattice: lattices.Lattice,
    labels: Mapping[str, str],
    seen: set[str],
) -> list[Stage]:
    """One stage of each class that no block before had; adds them to `seen`."""
    classes = stage_classes(graph, names, lattice, dict(labels))
    signature_of = Signatures(graph, lambda operator: labels[operator.name]).of
    found = []
    for position in np.unique(classes, return_index=True)[1].tolist():
        groups = lattice.order.groups(int(lattice.stages[position]))
        stage = Stage(Strategy.CONCURRENT, tuple(tuple(names[index] for index in bits(group)) for group in groups))
        signature = signature_of(stage)
        if signature not in seen:
            seen.add(signature)
            found.append(stage)
    return found
