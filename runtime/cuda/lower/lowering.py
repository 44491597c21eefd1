"""Lowers a schedule to an execution plan for streams.

Groups of a stage run on different lanes. By default a stage waits for the whole previous stage, as in the papers: from
k lanes to m lanes by k * m edges of the captured graph, or by an empty node with k + m where these are fewer. With
`barriers=False` a call waits only for its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from operator import attrgetter

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.runtime.arena import place
from iosched.runtime.cuda.builder import Cut, Join, KernelCall, Reshape
from iosched.runtime.cuda.kernel import JoinNode, Kernel, SessionKernel
from iosched.runtime.cuda.kernels.copy import MAX_PAIRS, Copy
from iosched.runtime.cuda.layout import is_row_major
from iosched.runtime.cuda.lower.joined import sums_in_separables
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.source.elements import MAX_ACCESS_NBYTES
from iosched.runtime.hazards import CheckedPlan
from iosched.runtime.placement import Placement
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View
from iosched.runtime.waits import LaneStep, Span, find_waits, input_spaces
from iosched.scheduler.lattice import in_order
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.start_order import start_order
from iosched.scheduler.strategies import groups_side_by_side, is_linked, runs_as_one

MAX_LANES = 8
"""Maximum number of streams of a plan."""

CUDA_LOWERING = 10
"""Increased when stages run or are timed differently, which invalidates stored measurements."""


@dataclass(frozen=True, eq=False)
class Lowering:
    """A plan for streams that has passed the hazard check.

    Attributes:
        checked: the plan; its lanes are streams.
        kernels: indexed by the tasks' `kernel`.
        weights: row-major constants by buffer.
        sessions: operators that run in onnxruntime, with their ONNX types.
        by_demand: whether the capture launches tasks in the order of `order_by_demand`.
    """

    checked: CheckedPlan
    kernels: tuple[Kernel, ...]
    weights: Mapping[str, np.ndarray]
    sessions: Mapping[str, tuple[str, ...]]
    by_demand: bool = False

    @property
    def plan(self) -> ExecutionPlan:
        """The plan itself."""
        return self.checked.plan

    @property
    def kernel_count(self) -> int:
        """Kernel launches of one run."""
        return sum(not isinstance(self.kernels[task.kernel], JoinNode) for task in self.plan.tasks)


@dataclass(frozen=True)
class _CallSite:
    operator: str
    stage: int
    group: int


@dataclass(frozen=True)
class _PlacedCall:
    name: str
    kernel: Kernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    lane: int
    stage: int


def lower(lowered: LoweredModel, schedule: Schedule, *, barriers: bool = True) -> Lowering:
    """The plan of the model under `schedule`; needs no GPU. Linear in calls, besides waits and arena.

    Args:
        barriers: whether a stage waits for the whole previous stage, or each call only for its inputs.

    Raises:
        HazardError: the plan fails the hazard check: a bug in the lowering.
    """
    stages = tuple(schedule.stages)
    sequence = [pair for number, stage in enumerate(stages) for pair in _stage_calls(lowered, stage, number)]
    return _PlanBuilder(lowered, barriers, sequence, len(stages), whole=True).lower()


def lower_stage(lowered: LoweredModel, stage: Stage) -> Lowering | None:
    """The plan of one stage; None if the stage merges operators that cannot be merged.

    Tensors are placed as in the whole model; tensors of earlier stages are inputs.
    """
    if runs_as_one(stage) and _calls_as_one(lowered, stage) is None:
        return None
    own: dict[str, list[tuple[KernelCall, _CallSite]]] = {name: [] for name in stage.operators}
    ordered = replace(stage, groups=tuple(in_order(lowered.model.graph, group) for group in stage.groups))
    for call, site in _stage_calls(lowered, ordered, 0):
        own[site.operator].append((call, site))
    sequence: list[tuple[KernelCall, _CallSite | None]] = []
    for operator in lowered.model.graph.operators:
        others = () if operator.name in own else lowered.calls[operator.name]
        sequence += own.get(operator.name, ())
        sequence += [(call, None) for call in others]
    return _PlanBuilder(lowered, True, sequence, 1, whole=False).lower()


def _stage_calls(lowered: LoweredModel, stage: Stage, number: int) -> Iterable[tuple[KernelCall, _CallSite]]:
    if (calls := _calls_as_one(lowered, stage)) is not None:
        yield from ((call, _CallSite(stage.operators[0], number, 0)) for call in calls)
        return
    for group, names in _runs_of_groups(lowered, stage):
        own = [(call, _CallSite(name, number, group)) for name in names for call in lowered.calls[name]]
        yield from sums_in_separables(own, lowered.private)


def _runs_of_groups(lowered: LoweredModel, stage: Stage) -> Iterable[tuple[int, Iterable[str]]]:
    """Each group with its operators; for a linked stage, the runs of one group's operators in starting order."""
    if not is_linked(stage):
        return enumerate(groups_side_by_side(stage))
    group_of = {name: number for number, names in enumerate(stage.groups) for name in names}
    return groupby(start_order(lowered.model.graph, stage), group_of.__getitem__)


_AS_ONE: dict[Strategy, Callable[[LoweredModel, tuple[str, ...]], list[KernelCall] | None]] = {
    Strategy.MERGE: LoweredModel.merged_calls
}
"""Calls of the merged operator by strategy; None if it cannot be merged."""


def _calls_as_one(lowered: LoweredModel, stage: Stage) -> list[KernelCall] | None:
    return _AS_ONE[stage.strategy](lowered, stage.operators) if runs_as_one(stage) else None


@dataclass(eq=False)
class _PlanBuilder:
    lowered: LoweredModel
    barriers: bool
    sequence: Sequence[tuple[KernelCall, _CallSite | None]]  # all calls of the model; calls of this plan have a site
    n_stages: int
    whole: bool

    def __post_init__(self) -> None:
        self.graph = self.lowered.model.graph
        self.builder = self.lowered.builder
        self.placement = self.lowered.placement_of([call for call, _ in self.sequence])
        self.caller_inputs, self.caller_outputs = self.lowered.caller_inputs, self.lowered.caller_outputs
        self.sessions = SessionViews(self.graph.tensor)

    def lower(self) -> Lowering:
        placed = _with_joins(self._placed()) if self.barriers else self._placed()
        n_lanes = max((each.lane for each in placed), default=0) + 1
        steps = [_step(each, self.placement) for each in placed]
        waits = find_waits(steps, n_lanes, barriers=self.barriers)
        kernels: dict[Kernel, int] = {}
        lanes: list[list[PlanTask]] = [[] for _ in range(n_lanes)]
        for each, waited in zip(placed, waits, strict=True):
            number = kernels.setdefault(each.kernel, len(kernels))
            lanes[each.lane].append(PlanTask(each.name, number, each.reads, each.writes, waited, each.stage))
        tasks = tuple(map(tuple, lanes))
        buffers = self._buffers(placed, input_spaces(steps))
        outputs = self._outputs() if self.whole else ()
        inputs = tuple(_whole(buffer, placed) for buffer in buffers if buffer.is_input)
        used = {buffer.name for buffer in buffers}
        return Lowering(
            CheckedPlan(ExecutionPlan(tasks, *place(tasks, buffers), outputs, inputs)),
            tuple(kernels),
            {name: array for name, array in self.builder.weights.items() if name in used},
            {each.name: each.kernel.operators for each in placed if isinstance(each.kernel, SessionKernel)},
        )

    def _placed(self) -> list[_PlacedCall]:
        lanes, placement = self._lanes(), self.placement
        found: list[_PlacedCall] = []
        if self.whole:
            found += [self._conversion(name, 0, inward=True) for name in self.caller_inputs]
        for index, (call, site) in enumerate(self.sequence):
            if site is None:
                continue
            place_of = (lanes[site.stage, site.group], site.stage)
            if index in placement.elided:
                pairs = placement.copies.get(index, ())
                for start in range(0, len(pairs), MAX_PAIRS):
                    names, targets = zip(*pairs[start : start + MAX_PAIRS], strict=True)
                    operands = tuple(placement.views[name] for name in names)
                    found.append(_PlacedCall(site.operator, Copy(), operands, targets, *place_of))
                continue
            for kernel, reads, writes in self._calls(call, site.operator):
                found.append(_PlacedCall(site.operator, kernel, reads, writes, *place_of))
        if self.whole:
            found += [self._conversion(name, self.n_stages - 1, inward=False) for name in self.caller_outputs]
        return found

    def _calls(self, call: KernelCall, operator: str) -> Iterable[Call]:
        reads, writes = ({name: self.placement.views[name] for name in names} for names in (call.reads, call.writes))
        if isinstance(call.kernel, SessionKernel):
            return self.sessions.calls(operator, call.kernel, reads, writes)
        return _kernels(
            call.kernel, tuple(reads[name] for name in call.reads), tuple(writes[name] for name in call.writes)
        )

    def _conversion(self, name: str, stage: int, *, inward: bool) -> _PlacedCall:
        callers = (self.caller_inputs if inward else self.caller_outputs)[name]
        spec = self.graph.tensor[name]
        outside = View(callers, spec.dtype, spec.shape or (), 0, spec.nbytes)
        inside = self.placement.views[name]
        reads, writes = ((outside,), (inside,)) if inward else ((inside,), (outside,))
        return _PlacedCall(f"{name} in" if inward else f"{name} out", Copy(), reads, writes, 0, stage)

    def _lanes(self) -> dict[tuple[int, int], int]:
        """Lane 0 gets the group with the most work."""
        work: dict[int, dict[int, int]] = {}
        for site in dict.fromkeys(site for _, site in self.sequence if site is not None):
            operator = self.graph.by_name[site.operator]
            groups = work.setdefault(site.stage, {})
            groups[site.group] = groups.get(site.group, 0) + operator.flops + operator.nbytes
        found = {}
        for stage, groups in work.items():
            ranked = sorted(groups, key=lambda group: (-groups[group], group))
            found.update({(stage, group): rank % MAX_LANES for rank, group in enumerate(ranked)})
        return found

    def _buffers(self, placed: Sequence[_PlacedCall], earlier: Mapping[str, MemorySpace]) -> tuple[Buffer, ...]:
        names = dict.fromkeys(view.buffer for each in placed for view in (*each.reads, *each.writes))
        spaces = dict.fromkeys(self.builder.weights, MemorySpace.WEIGHT)
        spaces |= dict.fromkeys(self.caller_outputs.values(), MemorySpace.OUTPUT)
        if self.whole:
            spaces |= {name: MemorySpace.OUTPUT for name in self.graph.outputs if name not in self.caller_outputs}
        callers = {alias: name for name, alias in (*self.caller_inputs.items(), *self.caller_outputs.items())}
        found = []
        for name in names:
            added = self.sessions.buffers.get(name)
            spec = added or self.graph.tensor.get(callers.get(name, "")) or self.builder.tensors[name]
            space = spaces.get(name, earlier.get(name, MemorySpace.ARENA))
            found.append(Buffer(name, space, spec.nbytes, pitch=self.placement.pitches.get(name, 0)))
        return tuple(found)

    def _outputs(self) -> tuple[View, ...]:
        found = []
        for name in self.graph.outputs:
            spec = self.graph.tensor[name]
            found.append(View(self.caller_outputs.get(name, name), spec.dtype, spec.shape, 0, spec.nbytes))
        return tuple(found)


def _kernels(kernel: Kernel, reads: tuple[View, ...], writes: tuple[View, ...]) -> Iterable[Call]:
    if isinstance(kernel, Reshape):
        yield Copy(reshapes=True), reads, writes
    elif isinstance(kernel, Cut):
        start = 0
        for view in writes:
            yield Copy(axis=kernel.axis, start=start), reads, (view,)
            start += (view.shape or ())[kernel.axis]
    elif isinstance(kernel, Join):
        raise ValueError("a Join needs no kernel")
    else:
        yield kernel, reads, writes


def _with_joins(placed: Sequence[_PlacedCall]) -> list[_PlacedCall]:
    """The calls, with a `JoinNode` between two stages where it saves edges; none next to a call in onnxruntime."""
    stages = [list(calls) for _, calls in groupby(placed, attrgetter("stage"))]
    found: list[_PlacedCall] = []
    for before, after in pairwise([[], *stages]):
        k, m = (len({each.lane for each in stage}) for stage in (before, after))
        in_graph = not any(isinstance(each.kernel, SessionKernel) for each in (*before, *after))
        if in_graph and k * m > k + m:
            found.append(_PlacedCall("join", JoinNode(), (), (), 0, after[0].stage))
        found += after
    return found


def _step(placed: _PlacedCall, placement: Placement) -> LaneStep:
    """The step of a call; a call in onnxruntime has the device to itself, and a join is ordered with all calls."""
    reads, writes = (tuple(_span(view, placement) for view in views) for views in (placed.reads, placed.writes))
    return LaneStep(placed.lane, reads, writes, placed.stage, isinstance(placed.kernel, SessionKernel | JoinNode))


def _span(view: View, placement: Placement) -> Span:
    """A view's columns in its buffer's rows; its bytes if the buffer is not a table."""
    width = view.nbytes // placement.rows.get(view.buffer, 1)
    return Span(view.buffer, view.offset, view.offset + width)


def _whole(buffer: Buffer, placed: Sequence[_PlacedCall]) -> View:
    views = (view for each in placed for view in each.reads if view.buffer == buffer.name)
    found = next((view for view in views if view.nbytes == buffer.nbytes), None)
    return found or View(buffer.name, "uint8", (buffer.nbytes,), 0, buffer.nbytes)


Call = tuple[Kernel, tuple[View, ...], tuple[View, ...]]


@dataclass(eq=False)
class SessionViews:
    """Tensors of calls in onnxruntime, in the model's own types and row-major.

    Attributes:
        specs: of the model's tensors.
        buffers: added for converted copies.
    """

    specs: Mapping[str, TensorSpec]
    buffers: dict[str, View] = field(default_factory=dict)

    def calls(
        self, operator: str, kernel: SessionKernel, reads: Mapping[str, View], writes: Mapping[str, View]
    ) -> Iterable[Call]:
        """`kernel`, with copies before and after it where tensors must be converted.

        Args:
            operator: makes the buffers of copies unique.
            reads, writes: views by tensor.
        """
        before = {name: self._plain(operator, name, view) for name, view in reads.items()}
        after = {name: self._plain(operator, name, view) for name, view in writes.items()}
        yield from _copies((reads[name], before[name]) for name in reads)
        yield kernel, tuple(before.values()), tuple(after.values())
        yield from _copies((after[name], writes[name]) for name in writes)

    def _plain(self, operator: str, name: str, view: View) -> View:
        spec = self.specs[name]
        if _is_plain(view, spec):
            return view
        buffer, shape = f"{name}@session:{operator}", spec.shape or ()
        self.buffers[buffer] = View(buffer, spec.dtype, shape, 0, spec.nbytes)
        return self.buffers[buffer]


def _copies(pairs: Iterable[tuple[View, View]]) -> Iterable[Call]:
    return [(Copy(), (source,), (target,)) for source, target in pairs if source != target]


def _is_plain(view: View, spec: TensorSpec) -> bool:
    aligned = view.offset % MAX_ACCESS_NBYTES == 0
    dense = view.strides is None or is_row_major(view.shape or (), view.strides, np.dtype(view.dtype).itemsize)
    return aligned and view.dtype == spec.dtype and dense
