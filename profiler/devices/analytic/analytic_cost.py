"""The cost model of a simulated GPU: latencies of stages by the analytic model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from operator import add
from typing import NamedTuple

import numpy as np

from iosched.models.graph import ComputationGraph, Operator
from iosched.profiler.devices.analytic.constants import LAUNCH_CONSTANTS, LaunchConstants
from iosched.profiler.devices.analytic.kernels import Kernel, KernelKind, kernels_of, kind_of, merged_kernels
from iosched.profiler.devices.analytic.work import ModelledGpu, Work
from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH
from iosched.profiler.devices.throughput import Throughputs
from iosched.scheduler.latencies import sums
from iosched.scheduler.lattice import Latencies, Lattice, Masks
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.signature import default_label
from iosched.scheduler.start_order import start_order
from iosched.scheduler.strategies import groups_side_by_side, is_linked, runs_as_one
from iosched.scheduler.unit_graph import UnitGraph, join_units

_AS_ONE: dict[Strategy, Callable[[ComputationGraph, Sequence[Operator]], tuple[Kernel, ...]]] = {
    Strategy.MERGE: merged_kernels
}
"""Kernels of operators that run as one, by strategy."""
_BUSY, _ISSUED, _GROUPS = 0, 1, 2  # indices of `_ends_us`


class AnalyticCost:
    """Latencies of stages of `graph` on `gpu` by the analytic model: a `CostModel` with `OperatorKeys` and
    `AdditiveGroups`.

    The latency of a stage of several groups is

        forks + max(busy of all groups, issue of all kernels, path of g + interference * (busy of the others + spill))

    for the group g that maximizes it. A group's path is the sum of its operators' latencies alone, its busy time is
    that of the same work on a fully used GPU, and spill is the time lost because the groups together exceed the L2
    cache. The lower bound of a concurrent stage is its latency. In a stage of lanes, the path is instead the one
    through operators that wait for each other, with a fork for each wait for another lane, and all other operators
    interfere.

    Args:
        precision: "tf32" and "fp16" use tensor cores if the GPU has them; "fp16" halves the bytes of float32 values.
        launches: constants that depend on how kernels are launched.
        units: the units that stages name; by default operators. A unit takes as long as its operators.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        gpu: GpuSpec,
        precision: PrecisionName = DEFAULT_PRECISION,
        *,
        launches: LaunchConstants = LAUNCH_CONSTANTS[DEFAULT_LAUNCH],
        units: UnitGraph | None = None,
    ) -> None:
        self.units = units or join_units(graph, ())
        self.graph = self.units.graph
        self._operators = graph
        self.gpu = gpu
        self.precision = precision
        wide = any(spec.dtype == "float32" for spec in (*graph.inputs, *graph.tensors))
        self.modelled = ModelledGpu(gpu, precision, launches, halved=precision == "fp16" and wide)
        label = default_label(graph)
        self._labels = {
            unit: "+".join(label(graph.by_name[name]) for name in names) for unit, names in self.units.members.items()
        }
        self._work = self._work_of_each()
        self._groups: dict[tuple[str, ...], Work] = {}

    def stage_latency_us(self, stage: Stage) -> float:
        """Latency of `stage` in microseconds; O(operators)."""
        groups = self._groups_of(stage)
        if len(groups) == 1:
            return groups[0].path_us
        return self.modelled.launches.fork_us * len(groups) + max(self._stage_ends_us(stage, groups))

    def busy_us(self, stage: Stage) -> float:
        """Microseconds for which the work of `stage` would fill the whole GPU; at most its latency; O(operators)."""
        return sum(group.busy_us for group in self._groups_of(stage))

    def shares_us(self, stage: Stage) -> dict[Kernel, float]:
        """The growth of the stage's latency in microseconds per relative growth of each kernel; O(operators).

        Equal kernels are one entry. All shares, launches and forks make up the stage's latency.
        """
        kernels = self._kernels_of(stage)
        if len(kernels) == 1:
            return _tally((kernel, self.modelled.alone_us(kernel)) for kernel in kernels[0])
        groups = self._groups_of(stage)
        spilling, interference = self._spilling(groups), self.modelled.launches.interference
        ends = self._stage_ends_us(stage, groups)
        last = ends.index(max(ends))
        if last == _ISSUED:
            return {}
        if last == _BUSY:
            return _tally((kernel, self.modelled.work([kernel]).busy_us) for group in kernels for kernel in group)
        if is_linked(stage):
            _, path = self._longest_path(stage)
            parts = [path, [name for name in stage.operators if name not in path]]
            kernels, last = [[kernel for name in part for kernel in self._kernels(name)] for part in parts], _GROUPS

        def share_us(kernel: Kernel, is_longest: bool) -> float:
            work = self.modelled.work([kernel])
            own_us = self.modelled.alone_us(kernel) if is_longest else interference * work.busy_us
            return own_us + interference * spilling * work.spill_us

        return _tally(
            (kernel, share_us(kernel, end == last)) for end, group in enumerate(kernels, _GROUPS) for kernel in group
        )

    def lower_bound_us(self, stage: Stage) -> float:
        """One launch if operators run as one, else `stage_latency_us`."""
        return self.modelled.launches.kernel_us if runs_as_one(stage) else self.stage_latency_us(stage)

    def concurrent_bounds_us(self, names: Sequence[str], lattice: Lattice) -> Latencies:
        """`stage_latency_us` of all concurrent stages of a block, in microseconds, (M,)."""
        return side_by_side_us(self.modelled, [self._work[name] for name in names], lattice)

    @property
    def throughputs(self) -> Throughputs:
        """Throughputs of stages, with the busy share of the SMs."""
        return Throughputs(self.graph, self.gpu.peak_tflops(self.precision), self.busy_us)

    def operator_key(self, name: str) -> str:
        """The operator's type, attributes, and its tensors' shapes and types; no names."""
        return self._labels[name]

    def operator_kind(self, name: str) -> KernelKind | None:
        """The kind of the operator's longest kernel; None without kernels."""
        kernels = self._kernels(name)
        longest = max(kernels, key=lambda kernel: self.modelled.work([kernel]).path_us, default=None)
        return None if longest is None else kind_of(longest)

    @property
    def groups_are_additive(self) -> bool:
        """True: the kernels of a group run in order, and each takes as long as alone."""
        return True

    def schedule_latency_us(self, schedule: Schedule) -> float:
        """The sum of the latencies of the stages."""
        return sum(self.stage_latency_us(stage) for stage in schedule.stages)

    def in_flight_us(self, schedule: Schedule, count: int) -> float:
        """Microseconds between the ends of runs of `schedule`, if `count` of them run like groups of one stage.

        Each waits for itself only, so nothing forks, and gains end where the GPU, its memory or the issue of kernels is
        fully used.
        """
        runs = [self._run(schedule)] * count
        return self._run(schedule).path_us if count == 1 else max(self._ends_us(runs, self._spilling(runs))) / count

    def _run(self, schedule: Schedule) -> Work:
        whole = Work()
        for stage in schedule.stages:
            groups = self._groups_of(stage)
            work, footprint = reduce(Work.then, groups), sum(group.footprint_nbytes for group in groups)
            whole = whole.then(replace(work, path_us=self.stage_latency_us(stage), footprint_nbytes=footprint))
        return whole

    def _groups_of(self, stage: Stage) -> list[Work]:
        if runs_as_one(stage):
            operators = [self.graph.by_name[name] for name in stage.operators]
            return [self.modelled.work(_AS_ONE[stage.strategy](self.graph, operators))]
        return [self._group(group) for group in groups_side_by_side(stage)]

    def _group(self, names: tuple[str, ...]) -> Work:
        known = self._groups.get(names)
        if known is None:
            known = Work()
            for name in names:
                known = known.then(self._work[name])
            self._groups[names] = known
        return known

    def _kernels_of(self, stage: Stage) -> list[list[Kernel]]:
        if runs_as_one(stage):
            operators = [self.graph.by_name[name] for name in stage.operators]
            return [list(_AS_ONE[stage.strategy](self.graph, operators))]
        return [[kernel for name in group for kernel in self._kernels(name)] for group in groups_side_by_side(stage)]

    def _kernels(self, unit: str) -> list[Kernel]:
        members = (self._operators.by_name[name] for name in self.units.members[unit])
        return [kernel for operator in members for kernel in kernels_of(self._operators, operator)]

    def _work_of_each(self) -> dict[str, Work]:
        known: dict[str, Work] = {}
        for name, label in self._labels.items():
            if label not in known:
                known[label] = self.modelled.work(self._kernels(name))
        return {name: known[label] for name, label in self._labels.items()}

    def _stage_ends_us(self, stage: Stage, groups: Sequence[Work]) -> list[float]:
        ends = self._ends_us(groups, self._spilling(groups))
        if not is_linked(stage):
            return ends
        spill_us = self._spilling(groups) * _added(group.spill_us for group in groups)
        path_us, _ = self._longest_path(stage)
        return [*ends[:_GROUPS], path_us + self.modelled.launches.interference * (ends[_BUSY] + spill_us)]

    def _longest_path(self, stage: Stage) -> tuple[float, tuple[str, ...]]:
        """The latency of the longest path, without the interference of its own operators, and these operators."""
        launches = self.modelled.launches
        lane_of = {name: lane for lane, group in enumerate(stage.groups) for name in group}
        before = {after: name for group in stage.groups for name, after in pairwise(group)}
        ends_us: dict[str, tuple[float, str | None]] = {}
        for name in start_order(self.graph, stage):
            waits_for = (*self.graph.predecessors[name], *((before[name],) if name in before else ()))
            ready = (
                (ends_us[each][0] + (launches.fork_us if lane_of[each] != lane_of[name] else 0.0), each)
                for each in waits_for
                if each in ends_us
            )
            last_us, last = max(ready, default=(0.0, None))
            work = self._work[name]
            ends_us[name] = last_us + work.path_us - launches.interference * work.busy_us, last
        end: str | None = max(ends_us, key=lambda name: ends_us[name][0])
        path, longest_us = [], ends_us[str(end)][0]
        while end is not None:
            path.append(end)
            end = ends_us[end][1]
        return longest_us, tuple(reversed(path))

    def _ends_us(self, groups: Sequence[Work], spilling: float) -> list[float]:
        """End times of work that fills the GPU, of the issue of all kernels, and of each group; the latest counts."""
        launches = self.modelled.launches
        busy = _added(group.busy_us for group in groups)
        spill = spilling * _added(group.spill_us for group in groups)
        issued = launches.issue_us * sum(group.n_kernels for group in groups)
        hindered = (group.path_us + launches.interference * (busy - group.busy_us + spill) for group in groups)
        return [busy, issued, *hindered]

    def _spilling(self, groups: Sequence[Work]) -> float:
        footprint = sum(group.footprint_nbytes for group in groups)
        return max(1 - self.gpu.l2_nbytes / footprint, 0.0) if footprint else 0.0


def _added(latencies_us: Iterable[float]) -> float:
    """The sum, rounded after each term as in `side_by_side_us`; `sum` is more exact from Python 3.12 on."""
    return reduce(add, latencies_us, 0.0)


def _tally(shares: Iterable[tuple[Kernel, float]]) -> dict[Kernel, float]:
    found: dict[Kernel, float] = {}
    for kernel, us in shares:
        found[kernel] = found.get(kernel, 0.0) + us
    return found


class _Groups(NamedTuple):
    path_us: Latencies
    busy_us: Latencies
    spill_us: Latencies
    footprint_nbytes: Latencies
    n_kernels: Latencies


def side_by_side_us(gpu: ModelledGpu, work: Sequence[Work], lattice: Lattice) -> Latencies:
    """Latency of each concurrent stage in microseconds, (M,), with the sums of `AnalyticCost` to the last bit.

    Complexity: O(M * groups), and O(operators) for each distinct group.
    """
    launches, l2_nbytes = gpu.launches, gpu.gpu.l2_nbytes
    rounds = [(where, _groups(work, masks)) for where, masks in lattice.groups]
    n_groups, busy, spill, footprint, kernels = np.zeros((5, len(lattice.stages)))
    for where, group in rounds:
        n_groups[where] += 1
        busy[where] += group.busy_us
        spill[where] += group.spill_us
        footprint[where] += group.footprint_nbytes
        kernels[where] += group.n_kernels
    spill *= np.maximum(1 - l2_nbytes / np.maximum(footprint, 1), 0)
    last = np.maximum(busy, launches.issue_us * kernels)
    for where, group in rounds:
        ends = group.path_us + launches.interference * (busy[where] - group.busy_us + spill[where])
        last[where] = np.maximum(last[where], ends)
    found: Latencies = np.where(n_groups > 1, launches.fork_us * n_groups + last, rounds[0][1].path_us)
    return found


def _groups(work: Sequence[Work], masks: Masks) -> _Groups:
    distinct, where = np.unique(masks, return_inverse=True)
    footprint = np.zeros(len(distinct))
    for index, each in enumerate(work):
        inside = (distinct >> np.uint64(index)) & np.uint64(1)
        footprint = np.maximum(footprint, each.footprint_nbytes * inside)
    found = _Groups(
        sums(distinct, [each.path_us for each in work]),
        sums(distinct, [each.busy_us for each in work]),
        sums(distinct, [each.spill_us for each in work]),
        footprint,
        sums(distinct, [each.n_kernels for each in work]),
    )
    return _Groups(*(column[where] for column in found))
