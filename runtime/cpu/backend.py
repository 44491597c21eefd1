"""Runs a model on the CPU: prepares it once, then compiles any schedule or stage of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from iosched.models.graph import ComputationGraph, TensorSpec
from iosched.models.model import Model
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
from iosched.runtime.memory import release_freed_memory
from iosched.runtime.placement import Placement
from iosched.runtime.topology import default_threads, lanes_in_a_cache
from iosched.scheduler.schedule import Division, Schedule, Stage, Strategy
from iosched.scheduler.start_order import start_order
from iosched.scheduler.strategies import is_linked, runs_as_one
from iosched.scheduler.unit_graph import join_units, numbered_unit_stages

Arrays = Mapping[str, np.ndarray]


Nodes = Mapping[str, tuple[int, ...]]
"""For each unit, its nodes in the kernel graph."""

_AS_ONE: dict[Strategy, Callable[[KernelGraph, KernelGraph, Sequence[Sequence[int]]], AsOne | None]] = {
    Strategy.MERGE: merge_nodes,
    Strategy.SESSION: session_nodes,
}
"""For each strategy that turns several units into one, how the kernel graph changes; None if impossible."""


class PlanExecutor(Protocol):
    """Runs one plan on `inputs`: an array for each INPUT and INOUT buffer, by name."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run the plan once and return an array for each OUTPUT buffer, by name."""
        ...

    def time(
        self, inputs: Arrays, repeats: int, *, flush_nbytes: int = 0, fresh: Mapping[str, Spans] = ...
    ) -> tuple[float, ...]:
        """Run the plan `repeats` times and return the microseconds of each run.

        Args:
            flush_nbytes: bytes read before each run to flush the caches; the inputs are then rewritten unchanged.
            fresh: byte ranges to rewrite, by input; inputs that it does not name are rewritten completely.
        """
        ...

    def trace(self, inputs: Arrays, repeats: int) -> tuple[tuple[float, ...], np.ndarray]:
        """Run the plan `repeats` times and record when each task runs.

        Returns:
            Microseconds of each run, and an array `(repeats, tasks, 2)`: begin and end of each task in microseconds
            since the run began, in the order of `ExecutionPlan.tasks`. A task begins after its waits.
        """
        ...

    def close(self) -> None:
        """Free the executor's own sessions, threads and buffers."""
        ...


@dataclass(frozen=True, eq=False)
class CompiledStage:
    """Stages ready to be measured alone, with sample arrays in place of the results of earlier stages."""

    executor: PlanExecutor
    inputs: Arrays
    fresh: Mapping[str, Spans] = field(default_factory=dict)

    def time(self, repeats: int, *, flush_nbytes: int = 0) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run; see `PlanExecutor.time`."""
        return self.executor.time(self.inputs, repeats, flush_nbytes=flush_nbytes, fresh=self.fresh)


@dataclass(frozen=True, eq=False)
class CompiledModel:
    """A whole model under one schedule; arrays have the model's input and output names."""

    executor: PlanExecutor
    lowering: Lowering
    constant_outputs: Arrays
    forwarded_outputs: tuple[str, ...]
    origins: tuple[TaskOrigin, ...]

    @classmethod
    def of(
        cls, executor: PlanExecutor, lowering: Lowering, kernels: KernelGraph, origins: tuple[TaskOrigin, ...] = ()
    ) -> Self:
        """Add the outputs that no kernel computes to an executor of `lowering`."""
        outside = [name for name in kernels.outputs if name not in kernels.producer]
        constant = {name: kernels.weights[name] for name in outside if name in kernels.weights}
        forwarded = tuple(name for name in outside if name in kernels.inputs)
        return cls(executor, lowering, constant, forwarded, origins)

    @property
    def kernel_count(self) -> int:
        """Kernel calls of one run."""
        return len(self.lowering.plan.tasks)

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run the model once."""
        outputs = self.executor.run(inputs)
        for name, array in self.constant_outputs.items():
            outputs[name] = array.copy()
        for name in self.forwarded_outputs:
            outputs[name] = np.array(inputs[name])
        return outputs

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run."""
        return self.executor.time(inputs, repeats)

    def trace(self, inputs: Arrays, repeats: int) -> TracedRuns:
        """Run `repeats` (at least 1) times and record when each task runs.

        Raises:
            ExecutionError: a kernel fails.
        """
        return TracedRuns.of(self.origins, *self.executor.trace(inputs, repeats))

    def close(self) -> None:
        """Free sessions and buffers."""
        self.executor.close()


@dataclass(frozen=True, eq=False)
class _Lowered:
    """A lowering with its origin: stages of units by their number in the schedule, and the nodes of each unit."""

    lowering: Lowering
    kernels: KernelGraph
    stages: Sequence[tuple[int, Stage]]
    nodes: Nodes


class CpuBackend:
    """One model on the cores of this machine.

    Attributes:
        coarse: the graph to schedule: the model's operators, merged where onnxruntime fuses across them.
        lanes: worker threads, one for each core.
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
        sharing: CpuBackend | None = None,
        units: Sequence[Sequence[str]] = (),
    ) -> None:
        """Prepare `model`.

        Args:
            lanes: number of threads; default `default_threads()`.
            native: whether to use the compiled executor instead of the Python one; default: if available.
            invokes: whether the compiled executor runs operators without sessions where it can.
            sharing: another backend whose worker threads and processors this one uses, so that idle threads of one
                do not spin while the other runs. It must outlive this one.
            units: operators to schedule as one, see `join_units`; onnxruntime's fusions may enlarge them.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
            UsageError: `units` are invalid.
        """
        join_units(model.graph, units)  # fails before onnxruntime reads the model
        self.lanes = lanes or default_threads()
        self.is_native = available() if native is None else native
        if sharing is not None:
            self.lanes, self.is_native = sharing.lanes, sharing.is_native
        self.cpus: LaneCpus = LaneCpus(self.lanes) if sharing is None else sharing.cpus
        with self.cpus.nearby():
            self.kernels: KernelGraph = _prepared(model, self.lanes)
        self.coarse: CoarseGraph = coarsen(model.graph, self.kernels, tensor_owners(model), units)
        self._placement = place_tensors(self.kernels)
        self._cache = KernelCache(invokes=self.is_native and invokes)
        self._owns_cpus = sharing is None
        self._owned = NativeRuntime() if self.is_native and sharing is None else None
        self._native: NativeRuntime | None = self._owned if sharing is None else sharing._native
        self._python = PythonRuntime()

    @property
    def graph(self) -> ComputationGraph:
        """The graph to schedule."""
        return self.coarse.units.graph

    @property
    def weights_nbytes(self) -> int:
        """Total size of the constants; shared ones count once."""
        return sum(array.nbytes for array in self.kernels.weights.values())

    def share_weights(self, known: MutableMapping[object, np.ndarray]) -> None:
        """Use equal arrays of `known` and add the others to it: backends for other lane counts have equal ones.

        Call it before anything is compiled.
        """
        weights = self.kernels.graph.weights
        for name, array in weights.items():
            if array.dtype != object:
                content = hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest()
                weights[name] = known.setdefault((array.dtype.str, array.shape, content), array)

    @cached_property
    def first_reads(self) -> FirstReads:
        """For each node, the bytes that it is the first to read."""
        return first_reads(self.kernels, self._placement)

    def is_supported(self) -> bool:
        """Whether plans are possible: all types and input sizes are known, and there is a node to run."""
        known = self.kernels.is_typed and all(self.kernels.tensors[name].is_static for name in self.kernels.inputs)
        return known and bool(self.kernels.nodes)

    def lower(self, schedule: Schedule, *, barriers: bool = False) -> Lowering:
        """The plan of the model under `schedule`, whose stages name operators or units of the coarse graph."""
        return self._lower(schedule, barriers).lowering

    def plan_nbytes(self, schedule: Schedule) -> int:
        """Bytes that a run under `schedule` touches: its plan's, and each constant of its kernels, counted once.

        Tensors of unknown size and allocations inside kernels are not counted.
        """
        lowered = self._lower(schedule, barriers=False)
        kernels = lowered.kernels
        constants = {name for names in kernels.constants for name in names}
        return lowered.lowering.plan.nbytes + sum(kernels.weights[name].nbytes for name in constants)

    def _lower(self, schedule: Schedule, barriers: bool) -> _Lowered:
        stages = numbered_unit_stages(self.coarse.units, schedule)
        kernels, placement, nodes = self._with_stages_as_one(stage for _, stage in stages)
        placed = [self._placed(stage, kernels, nodes, self.lanes) for _, stage in stages]
        lowering = lower(
            *(kernels, placement, [groups for groups, _ in placed], self.lanes, self._cache),
            divisions=[division for _, division in placed],
            barriers=barriers,
        )
        return _Lowered(lowering, kernels, stages, nodes)

    def compile(self, schedule: Schedule, *, barriers: bool = False) -> CompiledModel:
        """Compile the model under `schedule`, whose stages name operators or units of the coarse graph.

        Args:
            barriers: whether a stage waits for all of the previous one instead of only for what it reads.
        """
        lowered = self._lower(schedule, barriers)
        origins = task_origins(lowered.lowering, self.coarse, lowered.stages, lowered.nodes)
        return CompiledModel.of(self._executor(lowered.lowering), lowered.lowering, lowered.kernels, origins)

    def compile_on(
        self, schedule: Schedule, hosts: Sequence[tuple[NativeRuntime | None, Sequence[int]]]
    ) -> list[CompiledModel]:
        """Compile the model once for each host; the results may run at the same time.

        Args:
            hosts: the threads and arena to use, or None for the Python executor, and the processor of each lane.
        """
        lowered = self._lower(schedule, barriers=False)
        executors = [self._executor_on(lowered.lowering, *host) for host in hosts]
        return [CompiledModel.of(each, lowered.lowering, lowered.kernels) for each in executors]

    def guessed_lanes(self, stage: Stage) -> tuple[tuple[int, ...], ...]:
        """The lanes of each group of a stage without division."""
        return own_lanes(self.kernels, _numbered(stage, self.coarse.nodes), None, self.lanes)

    def unit_lanes(self, stage: Stage) -> dict[str, int]:
        """For each unit of a concurrent stage, the number of lanes that share its kernels."""
        groups = _numbered(stage, self.coarse.nodes)
        lanes = own_lanes(self.kernels, groups, stage.division, self.lanes)
        calls = stage_calls(self.kernels, self._placement, groups, lanes, 0)
        taken = {name: set(self.coarse.nodes[name]) for name in stage.operators}
        return {name: len({call.lane for call in calls if call.node in nodes}) or 1 for name, nodes in taken.items()}

    def compile_stage(self, stage: Stage, *, lanes: int | None = None) -> CompiledStage | None:
        """Compile one stage to run alone; None if this device cannot run it that way."""
        return self.compile_stages([stage], lanes=lanes)

    def compile_stages(self, stages: Sequence[Stage], *, lanes: int | None = None) -> CompiledStage | None:
        """Compile consecutive stages without the rest of the model, with sample inputs.

        None if stages are to be merged and none of them can be; if only some can, the groups of the others run
        concurrently.
        """
        as_one = [stage for stage in stages if runs_as_one(stage) or stage.strategy is Strategy.SESSION]
        kernels, placement, nodes = self._with_stages_as_one(as_one)
        if as_one and kernels is self.kernels:
            return None
        placed = [self._placed(stage, kernels, nodes, lanes or self.lanes) for stage in stages]
        lowering = lower(
            *(kernels, placement, [groups for groups, _ in placed], lanes or self.lanes, self._cache),
            divisions=[division for _, division in placed],
            partial=True,
        )
        buffers = [buffer.name for buffer in lowering.plan.buffers if buffer.is_input]
        inputs = {name: _sample(kernels.tensors[name]) for name in buffers}
        first = self.first_reads if kernels is self.kernels else first_reads(kernels, placement)
        run = [index for stage in stages for group in _numbered(stage, nodes) for index in group]
        return CompiledStage(self._executor(lowering), inputs, fresh_spans(first, placement, run, inputs))

    def close(self) -> None:
        """Stop the worker threads, free the sessions and release the processors that the backend owns."""
        if self._owned is not None:
            self._owned.close()
        if self._owns_cpus:
            self.cpus.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _executor(self, lowering: Lowering) -> PlanExecutor:
        with self.cpus.nearby():
            return self._executor_on(lowering, self._native, self.cpus.of(len(lowering.plan.lanes)))

    def _executor_on(self, lowering: Lowering, native: NativeRuntime | None, cpus: Sequence[int]) -> PlanExecutor:
        if native is None or not supports(lowering.plan):
            return PythonExecutor(lowering.checked, lowering.kernels, runtime=self._python, cpus=cpus)
        return NativeExecutor(lowering.checked, lowering.kernels, runtime=native, cpus=cpus)

    def _placed(
        self, stage: Stage, kernels: KernelGraph, nodes: Nodes, lanes: int
    ) -> tuple[list[list[int]], Division | None]:
        """The groups of a stage as nodes, and its division; units of a linked stage are groups, in starting order."""
        groups = _numbered(stage, nodes)
        if not is_linked(stage):
            return groups, stage.division
        own = own_lanes(kernels, groups, stage.division, lanes)
        lanes_of = {unit: of_group for group, of_group in zip(stage.groups, own, strict=True) for unit in group}
        units = start_order(self.graph, stage)
        return [[*nodes[unit]] for unit in units], Division(lanes, tuple(lanes_of[unit] for unit in units))

    def _with_stages_as_one(self, stages: Iterable[Stage]) -> tuple[KernelGraph, Placement, Nodes]:
        """The kernel graph with the units of each merge or session stage replaced by one, where possible."""
        kernels, nodes = self.kernels, dict(self.coarse.nodes)
        for stage in stages:
            as_one = _AS_ONE.get(stage.strategy)
            found = as_one and as_one(self.kernels, kernels, [nodes[unit] for unit in stage.operators])
            if found:
                kernels, own = found
                nodes |= {**dict.fromkeys(stage.operators, ()), stage.operators[0]: own}
        return kernels, (self._placement if kernels is self.kernels else place_tensors(kernels)), nodes


def _prepared(model: Model, lanes: int) -> KernelGraph:
    kernels = build_kernel_graph(model)
    release_freed_memory()  # onnxruntime held several copies of the model
    graph, block = kernels.graph, kernels.channel_block
    for rewrite in kernel_rewrites(block):
        rewrite(graph)
    parts = partial_sums(graph, block, lanes)
    kernels = replace(kernels, nodes=graph.nodes, parts=parts, lanes_in_a_cache=lanes_in_a_cache())
    return share_rows(kernels, lanes)


def _numbered(stage: Stage, nodes: Nodes) -> list[list[int]]:
    return [[index for unit in group for index in nodes[unit]] for group in stage.groups]


def _sample(spec: TensorSpec) -> np.ndarray:
    """Placeholder for a computed tensor of a measured stage: normal floats, or zeros, which are valid indices."""
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
    """The origin of each task of the plan, in the order of `ExecutionPlan.tasks`.

    A node belongs to all operators of its unit, since onnxruntime fuses across them.

    Args:
        stages: stages of units with their numbers in the schedule; a task's own stage is an index into them.
        nodes: nodes of each unit. If units run as one, the first has the nodes of all of them.
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
    """The units of a stage, grouped if they run as one."""
    gone = tuple(unit for unit in stage.operators if coarse.nodes[unit] and not nodes[unit])
    if gone:
        yield stage.operators
        return
    yield from ((unit,) for unit in stage.operators)
