"""The CPU as a device: a model prepared once, then any schedule or stage of it compiled for the cores at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from iosched.models.graph import ComputationGraph, TensorSpec
from iosched.models.model import Model
from iosched.runtime.cores import cpu_count
from iosched.runtime.cpu.calls import own_lanes, stage_calls
from iosched.runtime.cpu.handovers import FirstReads, Spans, first_reads, fresh_spans
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.lane_cpus import LaneCpus
from iosched.runtime.cpu.library import available
from iosched.runtime.cpu.lower import KernelCache, Lowering, lower
from iosched.runtime.cpu.native import NativeExecutor, NativeRuntime, supports
from iosched.runtime.cpu.optimized import build_kernel_graph
from iosched.runtime.cpu.ownership import CoarseGraph, coarsen, tensor_owners
from iosched.runtime.cpu.partial_sums import partial_sums
from iosched.runtime.cpu.placement import place_tensors
from iosched.runtime.cpu.python_executor import PythonExecutor, PythonRuntime
from iosched.runtime.cpu.rewrite import kernel_rewrites
from iosched.runtime.cpu.segments import AsOne, merge_nodes, session_nodes
from iosched.runtime.cpu.shared_rows import share_rows
from iosched.runtime.executor import TaskOrigin, TracedRuns
from iosched.runtime.memory import give_back
from iosched.runtime.placement import Placement
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.strategies import runs_as_one
from iosched.scheduler.unit_graph import join_units
from iosched.scheduler.unit_stages import numbered_unit_stages

Arrays = Mapping[str, np.ndarray]


Nodes = Mapping[str, tuple[int, ...]]
"""For each unit its nodes in the kernel graph."""

_AS_ONE: dict[Strategy, Callable[[KernelGraph, KernelGraph, Sequence[Sequence[int]]], AsOne | None]] = {
    Strategy.MERGE: merge_nodes,
    Strategy.SESSION: session_nodes,
}
"""For each strategy that makes several units one, how the kernel graph changes; None where it cannot be."""


class PlanExecutor(Protocol):
    """Runs one plan on `inputs`: an array for every INPUT and INOUT buffer of the plan, by its name."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Runs the plan once; the result is an array for each OUTPUT buffer, by its name."""
        ...

    def time(
        self, inputs: Arrays, repeats: int, *, sweep_nbytes: int = 0, fresh: Mapping[str, Spans] = ...
    ) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs; before each, `sweep_nbytes` other bytes pass through the caches.

        Then these bytes of the inputs are written again as they are, and inputs that are not named as a whole.
        """
        ...

    def trace(self, inputs: Arrays, repeats: int) -> tuple[tuple[float, ...], np.ndarray]:
        """Microseconds of each of `repeats` runs, and an array (repeats, tasks, 2) of when each task began and ended.

        These are microseconds since the run began; tasks stand as `ExecutionPlan.tasks` has them. A task begins when it
        has what it waits for.
        """
        ...

    def close(self) -> None:
        """Frees the sessions, threads and buffers that are the executor's own."""
        ...


@dataclass(frozen=True, eq=False)
class CompiledStage:
    """Stages ready to be measured alone, mostly one, with the arrays that stand for what earlier stages computed."""

    executor: PlanExecutor
    inputs: Arrays
    fresh: Mapping[str, Spans] = field(default_factory=dict)

    def time(self, repeats: int, *, sweep_nbytes: int = 0) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs; before each, `sweep_nbytes` other bytes pass through the caches."""
        return self.executor.time(self.inputs, repeats, sweep_nbytes=sweep_nbytes, fresh=self.fresh)


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A whole model under one schedule.

    `run` takes and returns arrays by the model's own input and output names.
    """

    executor: PlanExecutor
    lowering: Lowering
    constant_outputs: Arrays
    forwarded_outputs: Mapping[str, str]
    origins: tuple[TaskOrigin, ...]

    @property
    def kernel_count(self) -> int:
        """Kernel calls of one run."""
        return len(self.lowering.plan.tasks)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run of the model."""
        outputs = self.executor.run(self._used(inputs))
        outputs.update({name: array.copy() for name, array in self.constant_outputs.items()})
        outputs.update({name: np.array(inputs[source]) for name, source in self.forwarded_outputs.items()})
        return outputs

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        return self.executor.time(self._used(inputs), repeats)

    def trace(self, inputs: Arrays, repeats: int) -> TracedRuns:
        """Times `repeats` runs, one at least, and notes when each task began and ended.

        Raises:
            ExecutionError: a kernel fails.
        """
        return TracedRuns.of(self.origins, *self.executor.trace(self._used(inputs), repeats))

    def close(self) -> None:
        """Frees sessions and buffers."""
        self.executor.close()

    @cached_property
    def _given(self) -> frozenset[str]:
        return frozenset(buffer.name for buffer in self.lowering.plan.buffers if buffer.is_given)

    def _used(self, inputs: Arrays) -> Arrays:
        return {name: np.asarray(array, order="C") for name, array in inputs.items() if name in self._given}


@dataclass(frozen=True, eq=False)
class _Lowered:
    """A lowering, and what it was made of: stages of units by their numbers in the schedule, and each unit's nodes."""

    lowering: Lowering
    kernels: KernelGraph
    stages: Sequence[tuple[int, Stage]]
    nodes: Nodes


class CpuBackend:
    """One model on this machine's cores.

    Attributes:
        coarse: the graph to schedule: the model's operators as far as onnxruntime's fusions keep them apart.
        lanes: worker threads, one for each core used.
        is_native: whether plans run in the compiled executor.
        cpus: the processors of the lanes.
    """

    def __init__(
        self,
        model: Model,
        *,
        lanes: int | None = None,
        native: bool | None = None,
        invokes: bool = True,
        beside: CpuBackend | None = None,
        units: Sequence[Sequence[str]] = (),
    ) -> None:
        """Prepares `model`.

        Args:
            lanes: threads to use; by default as many as `cpu_count` says.
            native: the compiled executor, or (False) the one in Python; by default the compiled one if it is there.
            invokes: operators that need no session run without one in the compiled executor.
            beside: uses the worker threads and the processors of this other backend, which must outlive it, so that the
                threads of the one do not spin while the other runs.
            units: operators to schedule as one, see `join_units`; onnxruntime's fusions may make them larger.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
            UsageError: `units` cannot be.
        """
        join_units(model.graph, units)  # before onnxruntime reads the model
        self.lanes = lanes or cpu_count()
        self.is_native = available() if native is None else native
        if beside is not None:
            self.lanes, self.is_native = beside.lanes, beside.is_native
        self.kernels: KernelGraph = _prepared(model, self.lanes)
        self.coarse: CoarseGraph = coarsen(model.graph, self.kernels, tensor_owners(model), units)
        self._placement = place_tensors(self.kernels)
        self._cache = KernelCache(invokes=self.is_native and invokes)
        self.cpus: LaneCpus = LaneCpus(self.lanes) if beside is None else beside.cpus
        self._owns_cpus = beside is None
        self._owned = NativeRuntime() if self.is_native and beside is None else None
        self._native: NativeRuntime | None = self._owned if beside is None else beside._native
        self._python = PythonRuntime()

    @property
    def graph(self) -> ComputationGraph:
        """The graph to schedule."""
        return self.coarse.units.graph

    @property
    def weights_nbytes(self) -> int:
        """Size of all that is constant; what is used more than once counts once."""
        return sum(array.nbytes for array in self.kernels.weights.values())

    @cached_property
    def first_reads(self) -> FirstReads:
        """Which bytes each node is the first to read."""
        return first_reads(self.kernels, self._placement)

    def is_supported(self) -> bool:
        """Whether plans can be made: types are known, every input is a tensor of known size, something is computed."""
        known = self.kernels.is_typed and all(self.kernels.tensors[name].is_static for name in self.kernels.inputs)
        return known and bool(self.kernels.nodes)

    def lower(self, schedule: Schedule, *, barriers: bool = False) -> Lowering:
        """The plan of the model under `schedule`, whose stages name operators or units of the coarse graph."""
        return self._lower(schedule, barriers).lowering

    def plan_nbytes(self, schedule: Schedule) -> int:
        """What a run under `schedule` touches: its plan's bytes, and every constant that its kernels read, once.

        Tensors whose size is not known before a run, and what onnxruntime allocates inside of kernels, are not counted.
        """
        lowered = self._lower(schedule, barriers=False)
        kernels = lowered.kernels
        constants = {name for names in kernels.constants for name in names}
        return lowered.lowering.plan.nbytes + sum(kernels.weights[name].nbytes for name in constants)

    def _lower(self, schedule: Schedule, barriers: bool) -> _Lowered:
        stages = numbered_unit_stages(self.coarse.units, schedule)
        kernels, placement, nodes = self._with_stages_as_one(stage for _, stage in stages)
        numbered = [_numbered(stage, nodes) for _, stage in stages]
        lowering = lower(
            *(kernels, placement, numbered, self.lanes, self._cache),
            divisions=[stage.division for _, stage in stages],
            barriers=barriers,
        )
        return _Lowered(lowering, kernels, stages, nodes)

    def compile(self, schedule: Schedule, *, barriers: bool = False) -> CompiledModel:
        """Compiles the model under `schedule`, whose stages name operators or units of the coarse graph.

        Args:
            barriers: whether a stage begins when all of the one before is done, or when what it reads is there.
        """
        lowered = self._lower(schedule, barriers)
        kernels = lowered.kernels
        outside = [name for name in kernels.outputs if name not in kernels.producer]
        return CompiledModel(
            executor=self._executor(lowered.lowering),
            lowering=lowered.lowering,
            constant_outputs={name: kernels.weights[name] for name in outside if name in kernels.weights},
            forwarded_outputs={name: name for name in outside if name in kernels.inputs},
            origins=task_origins(lowered.lowering, self.coarse, lowered.stages, lowered.nodes),
        )

    def guessed_lanes(self, stage: Stage) -> tuple[tuple[int, ...], ...]:
        """The lanes of each group of a stage of units that has no division."""
        return own_lanes(self.kernels, _numbered(stage, self.coarse.nodes), None, self.lanes)

    def unit_lanes(self, stage: Stage) -> dict[str, int]:
        """For each unit of a concurrent stage, over how many lanes its kernels are cut."""
        groups = _numbered(stage, self.coarse.nodes)
        lanes = own_lanes(self.kernels, groups, stage.division, self.lanes)
        calls = stage_calls(self.kernels, self._placement, groups, lanes, 0)
        taken = {name: set(self.coarse.nodes[name]) for name in stage.operators}
        return {name: len({call.lane for call in calls if call.node in nodes}) or 1 for name, nodes in taken.items()}

    def compile_stage(self, stage: Stage, *, lanes: int | None = None) -> CompiledStage | None:
        """Compiles one stage of units to be run alone; None where this device cannot run it that way."""
        return self.compile_stages([stage], lanes=lanes)

    def compile_stages(self, stages: Sequence[Stage], *, lanes: int | None = None) -> CompiledStage | None:
        """Compiles stages of units that run one after another, without the rest of the model.

        What they read and do not compute is given to them. None where stages are to be merged and none of them can be;
        where some can, the groups of the others run side by side.
        """
        as_one = [stage for stage in stages if runs_as_one(stage) or stage.strategy is Strategy.SESSION]
        kernels, placement, nodes = self._with_stages_as_one(as_one)
        if as_one and kernels is self.kernels:
            return None
        lowering = lower(
            *(kernels, placement, [_numbered(stage, nodes) for stage in stages], lanes or self.lanes, self._cache),
            divisions=[stage.division for stage in stages],
            partial=True,
        )
        buffers = [buffer.name for buffer in lowering.plan.buffers if buffer.is_given]
        inputs = {name: _sample(kernels.tensors[name]) for name in buffers}
        first = self.first_reads if kernels is self.kernels else first_reads(kernels, placement)
        run = [index for stage in stages for group in _numbered(stage, nodes) for index in group]
        return CompiledStage(self._executor(lowering), inputs, fresh_spans(first, placement, run, inputs))

    def close(self) -> None:
        """Stops the worker threads, frees all sessions and gives processors back, where they are its own."""
        if self._owned is not None:
            self._owned.close()
        if self._owns_cpus:
            self.cpus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _executor(self, lowering: Lowering) -> PlanExecutor:
        cpus = self.cpus.of(len(lowering.plan.lanes))
        if self._native is None or not supports(lowering.plan):
            return PythonExecutor(lowering.checked, lowering.kernels, runtime=self._python, cpus=cpus)
        return NativeExecutor(lowering.checked, lowering.kernels, runtime=self._native, cpus=cpus)

    def _with_stages_as_one(self, stages: Iterable[Stage]) -> tuple[KernelGraph, Placement, Nodes]:
        """The kernel graph with the units of stages made one where their strategy says so and they allow it."""
        kernels, nodes = self.kernels, dict(self.coarse.nodes)
        for stage in stages:
            as_one = _AS_ONE.get(stage.strategy)
            found = as_one and as_one(self.kernels, kernels, [nodes[unit] for unit in stage.operators])
            if found:
                kernels, own = found
                nodes |= {**dict.fromkeys(stage.operators, ()), stage.operators[0]: own}
        return kernels, (self._placement if kernels is self.kernels else place_tensors(kernels)), nodes


def _prepared(model: Model, lanes: int) -> KernelGraph:
    """The kernel graph of a model, with what can be shared out between `lanes` cores noted."""
    kernels = build_kernel_graph(model)
    give_back()  # onnxruntime held the model several times over
    graph, block = kernels.graph, kernels.channel_block
    for rewrite in kernel_rewrites(block):
        rewrite(graph)
    parts = partial_sums(graph, block, lanes)
    return share_rows(replace(kernels, nodes=graph.nodes, parts=parts), lanes)


def _numbered(stage: Stage, nodes: Nodes) -> list[list[int]]:
    """The nodes of each group."""
    return [[index for unit in group for index in nodes[unit]] for group in stage.groups]


def _sample(spec: TensorSpec) -> np.ndarray:
    """Stands for a computed tensor while a stage is measured: ordinary floats, or zeros, which every index may be."""
    shape = spec.shape or ()
    if spec.dtype in ("float32", "float64", "float16"):
        return np.random.default_rng(0).standard_normal(shape, np.float32).astype(spec.dtype)
    return np.zeros(shape, np.dtype(spec.dtype))


def task_origins(
    lowering: Lowering,
    coarse: CoarseGraph,
    stages: Sequence[tuple[int, Stage]],
    nodes: Mapping[str, tuple[int, ...]],
) -> tuple[TaskOrigin, ...]:
    """What each task of the plan is of, in the order of the plan's `tasks`.

    A node belongs to all operators of its unit: onnxruntime fuses across them.

    Args:
        lowering: of these stages.
        coarse: the graph of units.
        stages: stages of units, each with its number in the schedule; a task's own stage is an index into them.
        nodes: for each unit its nodes. Where several run as one, the first has the nodes of all, and the others none.
    """
    operators = {
        node: tuple(name for unit in units for name in coarse.units.members[unit])
        for _, stage in stages
        for units in _together(coarse, stage, nodes)
        for node in nodes[units[0]]
    }
    lanes = [lane for lane, tasks in enumerate(lowering.plan.lanes) for _ in tasks]
    return tuple(
        TaskOrigin(
            task.name, lane, stages[task.stage][0], tuple(dict.fromkeys(o for node in own for o in operators[node]))
        )
        for lane, task, own in zip(lanes, lowering.plan.tasks, lowering.nodes, strict=True)
    )


def _together(coarse: CoarseGraph, stage: Stage, nodes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, ...]]:
    """The units of a stage, those that run as one together."""
    gone = tuple(unit for unit in stage.operators if coarse.nodes[unit] and not nodes[unit])
    if gone:
        yield stage.operators
        return
    yield from ((unit,) for unit in stage.operators)
