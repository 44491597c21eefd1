"""The job `optimize --dry-run`: estimates the size of a search without measuring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from iosched.jobs.open_model import opened
from iosched.jobs.settings import OptimizeSettings
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.measured_costs import MeasuredCosts
from iosched.profiler.devices.profiled_device import AttachedModel, OpenModel, Prices
from iosched.profiler.devices.resolve import resolve
from iosched.scheduler import lattice as lattices
from iosched.scheduler.blocks import partition
from iosched.scheduler.counts import width
from iosched.scheduler.equivalence import BlockKey, block_key, stage_classes
from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import bits
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import Signatures
from iosched.scheduler.strategies import SEARCHES, is_searched, masks_of


@dataclass(frozen=True)
class BlockEstimate:
    """The size of the search in one block of the graph that the device schedules.

    Attributes:
        index: the number of the block.
        operators: the number of operators, or of units of the device, in the block.
        width: the largest number of them of which no two are connected by a path.
        states: the number of nonempty states of the search.
        transitions: the number of pairs of a state and an ending of it.
        stages: the number of distinct stages among these endings.
        signatures: the number of signatures of these stages that do not occur in an earlier block.
        known: the number of these signatures with a latency in the profile database, measured here or, on a simulated
            GPU, elsewhere. Disturbed and rough latencies count.
        measurements: the maximum number of other signatures that the search measures. The second measurements of stages
            of the best schedules are not counted.
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
    """The sizes of all blocks, and the duration of measuring: `prices` is None if latencies are computed.

    Attributes:
        known: the number of stages in the profile database that the search may ask for, over all strategies and numbers
            of lanes, as in `OptimizeResult.signatures`; `BlockEstimate` counts each stage once, with all lanes.
        disturbed: the number of these with only disturbed measurements.
        repeats: the maximum number of measurements that the search repeats for that reason.
        stage_s: approximate seconds to measure a stage, from the database of this device.
        notes: notes on the origin of measured stages of a simulated GPU.
    """

    device_kind: str
    device_name: str
    cost: str
    blocks: tuple[BlockEstimate, ...]
    prices: Prices | None = None
    known: int = 0
    disturbed: int = 0
    repeats: int = 0
    stage_s: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def measurements(self) -> int:
        """Maximum number of stages to measure, and of measurements to repeat."""
        return sum(block.measurements for block in self.blocks) + self.repeats

    @property
    def seconds(self) -> float:
        """Approximate maximum seconds of measuring."""
        if self.prices is None:
            return 0.0
        return self.measurements * self.measurement_s + self.prices.comparison_s

    @property
    def measurement_s(self) -> float:
        """Approximate seconds to measure a stage: as earlier on this device, or the usual time of its kind."""
        return self.stage_s or (0.0 if self.prices is None else self.prices.measurement_s)


def estimate(model: Model, settings: OptimizeSettings) -> Estimate:
    """Counts the states and stages of the search that `optimize` would do; measures and writes nothing.

    Complexity: that of `lattice.build` for each block, and one signature for each class of equal stages.

    Raises:
        UsageError: a setting is wrong.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device is not attached, or onnxruntime is not installed.
    """
    device = resolve(settings.device, model)
    device.check(settings.opening)
    opening = replace(settings.opening, may_time=False)
    with opened(device, model, opening, settings.profile_db, writes=False) as open_model:
        attached = open_model.attached
        counter = None if attached is None else _Counter(attached, settings, attached.cost.with_own_counts())
        counted = partial(_known_imported, open_model) if counter is None else counter.known_and_missing
        graph, key_of = open_model.graph, open_model.cost.operator_key
        has_blocks = open_model.baselines.only_way is None
        blocks = tuple(_blocks(graph, settings.pruning, key_of, counted)) if has_blocks else ()
        info, notes = device.info, open_model.details.imported.notes
        found = Estimate(info.kind, info.name, info.cost_kind, blocks, notes=notes)
        return replace(found, known=sum(each.known for each in blocks)) if counter is None else counter.added_to(found)


def _known_imported(opened: OpenModel, stages: list[Stage]) -> tuple[int, int]:
    measured = opened.details.imported.measured
    return (0 if measured is None else sum(measured.known_us(stage) is not None for stage in stages)), 0


@dataclass(frozen=True, eq=False)
class _Counter:
    attached: AttachedModel
    settings: OptimizeSettings
    asked: MeasuredCosts

    @cached_property
    def _may_know(self) -> bool:
        devices = self.attached.cost.database.stats().devices if self.settings.resume else ()
        return any(each.device == self.attached.cost.device and each.stages for each in devices)

    def known_and_missing(self, stages: list[Stage]) -> tuple[int, int]:
        """The number of stages in the database, and the maximum number of others that the search measures."""
        if not self._may_know:
            return 0, self._most(stages, known=[])
        known = [stage for stage in stages if self._is_known(stage)]
        return len(known), self._most(stages, known)

    def _is_known(self, stage: Stage) -> bool:
        before = self.asked.signatures
        self.asked.known(stage)
        return self.asked.signatures > before

    def added_to(self, found: Estimate) -> Estimate:
        if self._may_know and found.blocks:
            self._ask_for_other_ways()
        cost = self.attached.cost
        return replace(
            found,
            prices=self.attached.measuring.prices,
            known=self.asked.signatures,
            disturbed=self.asked.disturbed,
            repeats=self.asked.repeatable if is_searched(self.settings.strategy) else 0,
            stage_s=cost.database.seconds_per_stage(cost.device),
        )

    def _ask_for_other_ways(self) -> None:
        """Asks for each operator on one lane, and for stages of strategies other than concurrent."""
        graph, strategy = self.attached.graph, self.settings.strategy
        for names in (part.operators for part in partition(graph)):
            for name in names:
                self.asked.known_work_us(name)
            masks = masks_of(graph, names, SEARCHES[strategy]) if is_searched(strategy) else {}
            lattice = lattices.build(lattices.relation(graph, names), self.settings.pruning)
            known = KnownLatencies.start(self.asked, names, lattice, masks)
            for other in set(known.strategies) - {Strategy.CONCURRENT}:
                for position in np.flatnonzero(np.isnan(known.value[other])).tolist():
                    self.asked.known(known.stage_by(position, other))

    def _most(self, stages: list[Stage], known: list[Stage]) -> int:
        missing = len(stages) - len(known)
        alone = sum(len(stage.operators) == 1 for stage in stages)
        known_alone = sum(len(stage.operators) == 1 for stage in known)
        if not is_searched(self.settings.strategy):
            return 0
        single = self.attached.measuring.prices.samples_alone * (alone - known_alone)
        beyond = missing - (alone - known_alone)
        limit = self.attached.effort.max_measurements
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
    """One stage for each signature not in `seen`; adds these to `seen`."""
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
