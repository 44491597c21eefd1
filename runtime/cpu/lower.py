"""Lowers stages to an execution plan for the CPU.

Stages follow one another on the lanes. Lanes wait only for true dependencies, so a lane that is done early starts the
next stage; with barriers it waits for the whole stage, as in the papers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from iosched.models.graph import TensorSpec
from iosched.models.node_attributes import has_subgraphs
from iosched.runtime.buffer_parts import place_parts
from iosched.runtime.cpu.calls import NodeCall, overlap, own_lanes, stage_calls, steps_of
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.kernels import Kernel, is_invocable
from iosched.runtime.cpu.programs import TaskKernel, build_kernel
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.placement import Placement
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait
from iosched.runtime.waits import find_waits, input_spaces
from iosched.scheduler.schedule import Division

LOWERING = 16
"""Increase it whenever stages run differently: it invalidates measured latencies."""

Stages = Sequence[Sequence[Sequence[int]]]  # stages of groups of node indices


@dataclass(frozen=True, eq=False)
class Lowering:
    """A checked plan with the kernels that its tasks index.

    Attributes:
        nodes: for each task, in the order of `ExecutionPlan.tasks`, the nodes that it computes, completely or in
            part; empty for plans in teams.
    """

    checked: CheckedPlan
    kernels: tuple[Kernel, ...]
    nodes: tuple[tuple[int, ...], ...] = ()

    @property
    def plan(self) -> ExecutionPlan:
        """The plan."""
        return self.checked.plan


class KernelCache:
    """Kernels built for one kernel graph, so that stages and plans share them.

    Attributes:
        invokes: whether operators that need no session run without one.
    """

    def __init__(self, *, invokes: bool = False) -> None:
        self.invokes = invokes
        self._built: dict[object, TaskKernel] = {}

    def get(self, kernels: KernelGraph, calls: Sequence[NodeCall], kept: frozenset[str]) -> TaskKernel:
        """The kernel that runs the `calls` of a task, built when first needed; `kept` as in `build_kernel`."""
        key = (tuple((call.node, call.is_copy, call.reads, call.writes, call.cores) for call in calls), kept)
        if key not in self._built:
            self._built[key] = build_kernel(kernels, calls, kept, invokes=self.invokes)
        return self._built[key]


def lower(
    kernels: KernelGraph,
    placement: Placement,
    stages: Stages,
    lanes: int,
    cache: KernelCache,
    *,
    divisions: Sequence[Division | None] = (),
    partial: bool = False,
    barriers: bool = False,
) -> Lowering:
    """Lower `stages` of node indices to a plan for `lanes` lanes; O(calls * writers of a buffer).

    Args:
        divisions: of the stages, in order; a stage without one, or with one for another number of lanes, is divided by
            estimated work.
        partial: `stages` are only some of the graph's nodes (a measured stage): tensors from other nodes come from the
            caller, and tensors that other nodes read are kept.
        barriers: a stage starts when the previous one is done; otherwise a call waits only for what it reads.
    """
    calls = [
        call
        for number, (groups, division) in enumerate(zip_longest(stages, divisions))
        for call in stage_calls(kernels, placement, groups, own_lanes(kernels, groups, division, lanes), number)
    ]
    steps = steps_of(calls)
    waits = find_waits(steps, lanes, barriers=barriers)
    runs = _fuse(kernels, calls, waits, lanes, invokes=cache.invokes)
    tasks, found = _tasks(kernels, placement, calls, runs, waits, lanes, cache)
    buffers = _buffers(kernels, tasks, input_spaces(steps) if partial else None)
    computed = [] if partial else [name for name in kernels.outputs if name in kernels.producer]
    outputs = tuple(placement.views[name] for name in computed)
    inputs = tuple(placement.views[buffer.name] for buffer in buffers if buffer.is_input)
    nodes = tuple(tuple(calls[position].node for position in run) for own in runs for run in own)
    plan = ExecutionPlan(*place_parts(tasks, buffers), outputs, inputs)
    return Lowering(CheckedPlan(plan), found, nodes)


def _fuse(
    kernels: KernelGraph, calls: Sequence[NodeCall], waits: Sequence[tuple[Wait, ...]], lanes: int, *, invokes: bool
) -> list[list[list[int]]]:
    """For each lane, its calls (by position) cut into runs; each run becomes one task.

    Only calls in sessions are fused: they have a high fixed cost.
    """
    alone = [invokes and _needs_no_session(kernels, call) for call in calls]
    awaited = {(wait.lane, wait.steps) for found in waits for wait in found}
    runs: list[list[list[int]]] = [[] for _ in range(lanes)]
    steps = [0] * lanes
    for position, call in enumerate(calls):
        own = runs[call.lane]
        last_is_awaited = (call.lane, steps[call.lane]) in awaited
        joins = own and not waits[position] and not last_is_awaited and not alone[position] and not alone[own[-1][-1]]
        if joins and can_follow(kernels, [calls[p] for p in own[-1]], call):
            own[-1].append(position)
        else:
            own.append([position])
        steps[call.lane] += 1
    return runs


def _needs_no_session(kernels: KernelGraph, call: NodeCall) -> bool:
    return call.cores == 1 and is_invocable(call.share.node if call.share else kernels.nodes[call.node])


def can_follow(kernels: KernelGraph, run: Sequence[NodeCall], call: NodeCall) -> bool:
    """Whether `call` may run in the same session as `run`, right after it.

    A session sees names, not bytes: a call that reads bytes which the run writes must read exactly one tensor of the
    run. Reading a Concat's buffer, of which the run writes a part, would read old bytes.
    """
    if call.is_copy or run[-1].is_copy or run[-1].stage != call.stage:
        return False
    if _stands_alone(kernels, call.node) or _stands_alone(kernels, run[-1].node):
        return False
    touched = [view for earlier in run for _, view in (*earlier.reads, *earlier.writes)]
    if any(overlap(view, other) for _, view in call.writes for other in touched):
        return False  # the call adds in place to a tensor of the run
    written = [pair for earlier in run for pair in earlier.writes]
    return all(pair in written or not any(overlap(pair[1], view) for _, view in written) for pair in call.reads)


def _stands_alone(kernels: KernelGraph, index: int) -> bool:
    """Control flow captures outer names, so nothing around it may be renamed; the same holds for session nodes."""
    node = kernels.nodes[index]
    return has_subgraphs(node) or node.name in kernels.inside


def _tasks(
    kernels: KernelGraph,
    placement: Placement,
    calls: Sequence[NodeCall],
    runs: Sequence[Sequence[Sequence[int]]],
    waits: Sequence[tuple[Wait, ...]],
    lanes: int,
    cache: KernelCache,
) -> tuple[tuple[tuple[PlanTask, ...], ...], tuple[Kernel, ...]]:
    task_of_step = [[number for number, run in enumerate(own, start=1) for _ in run] for own in runs]
    kept = _kept(kernels, placement, calls, runs)
    index_of: dict[int, int] = {}
    found: list[Kernel] = []
    tasks: list[tuple[PlanTask, ...]] = []
    for own in runs:
        lane_tasks = []
        for run in own:
            members = [calls[position] for position in run]
            needed = frozenset(name for call in members for name, _ in call.writes if (name, run[0]) in kept)
            built = cache.get(kernels, members, needed)
            if id(built.kernel) not in index_of:
                index_of[id(built.kernel)] = len(found)
                found.append(built.kernel)
            after = tuple(Wait(w.lane, task_of_step[w.lane][w.steps - 1]) for w in waits[run[0]])
            name = "+".join(_call_name(kernels, call) for call in members)
            kernel = index_of[id(built.kernel)]
            in_place = tuple(view for view in built.writes if view in built.reads)
            lane_tasks.append(PlanTask(name, kernel, built.reads, built.writes, after, members[0].stage, in_place))
        tasks.append(tuple(lane_tasks))
    return tuple(tasks), tuple(found)


def _call_name(kernels: KernelGraph, call: NodeCall) -> str:
    node = kernels.nodes[call.node]
    name = node.name or node.output[0]
    return f"{name}[{call.lane}]" if call.share else name


def _kept(
    kernels: KernelGraph,
    placement: Placement,
    calls: Sequence[NodeCall],
    runs: Sequence[Sequence[Sequence[int]]],
) -> set[tuple[str, int]]:
    """Pairs (tensor, first call of the run that writes it) of tensors that must leave the run's session."""
    run_of = {position: run[0] for own in runs for run in own for position in run}
    readers = _reading_runs(calls, run_of)
    in_plan = {call.node for call in calls} | placement.elided
    kept = set()
    for position, call in enumerate(calls):
        for name, view in call.writes:
            outside = any(index not in in_plan for index in kernels.readers[name])
            by_other_runs = any(
                run != run_of[position] and overlap(view, read) for read, run in readers.get(view.buffer, ())
            )
            shared = view.buffer != name or name in placement.hosts or name in kernels.outputs
            empty = view.shape is not None and not view.nbytes  # its readers are unknown, and keeping it is free
            if outside or by_other_runs or shared or empty or not kernels.readers[name]:
                kept.add((name, run_of[position]))
    return kept


def _reading_runs(calls: Sequence[NodeCall], run_of: dict[int, int]) -> dict[str, list[tuple[View, int]]]:
    readers: dict[str, list[tuple[View, int]]] = {}
    for position, call in enumerate(calls):
        for _, view in call.reads:
            readers.setdefault(view.buffer, []).append((view, run_of[position]))
    return readers


def _buffers(
    kernels: KernelGraph, tasks: Sequence[Sequence[PlanTask]], inputs: Mapping[str, MemorySpace] | None
) -> tuple[Buffer, ...]:
    used = dict.fromkeys(view.buffer for view in _all_views(tasks))
    found = []
    for name in used:
        spec = kernels.tensors[name]
        space = _space(kernels, spec)
        if inputs is not None and (name in inputs or space is MemorySpace.OUTPUT):
            space = inputs.get(name, MemorySpace.ARENA)
        found.append(Buffer(name, space, spec.nbytes if spec.is_static else 0))
    return tuple(found)


def _space(kernels: KernelGraph, spec: TensorSpec) -> MemorySpace:
    if spec.name in kernels.inputs:
        return MemorySpace.INPUT
    if not spec.is_static:
        return MemorySpace.DYNAMIC
    return MemorySpace.OUTPUT if spec.name in kernels.outputs else MemorySpace.ARENA


def _all_views(tasks: Sequence[Sequence[PlanTask]]) -> Iterator[View]:
    for lane in tasks:
        for task in lane:
            yield from task.reads
            yield from task.writes
