"""Predicts stage latencies on more cores than attached: the model of `cores_simulated.py`. Measures nothing.

The latency of an operator on k cores follows from its measured latencies on one and on two, and from the division of
its nodes over k cores (blocks of channels and small operators are not cut):

    t(k) = t(1) * part(k) * gain + wait * log2(k)

part(k) is the largest share of one core. `wait` is the time of two cores beyond t(1) * part(2); it grows with the depth
of a tree of hand-offs. `gain` is the time that two cores save beyond it, because their caches are larger. A stage takes
as long as its busiest core. Groups that share cores run one after another. Concurrent groups slow each other down only
through memory: a stage takes at least the bytes of its operators divided by a given bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from iosched.profiler.devices.cpu.divisions import GroupTime, Lanes, likely_divisions
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.calls import NodeCall, stage_calls
from iosched.runtime.cpu.kernel_graph import KernelGraph, node_work_us
from iosched.runtime.cpu.placement import place_tensors
from iosched.scheduler.schedule import Division, Schedule, Stage


@dataclass(frozen=True)
class Unit:
    """One measured operator: microseconds on one core and on two, and the bytes that it accesses."""

    one_us: float
    two_us: float
    nbytes: int


def largest_parts(backend: CpuBackend, cores: int) -> dict[str, tuple[float, ...]]:
    """For each unit, the largest share of one core on 1, 2, ... `cores`, by the rules of the lowering."""
    kernels, placement = backend.kernels, place_tensors(backend.kernels)
    found = {}
    for unit, nodes in backend.coarse.nodes.items():
        work = [node_work_us(kernels, node) for node in nodes]
        parts = []
        for count in range(1, cores + 1):
            own = [tuple(range(count))]
            shares = [_largest(kernels, stage_calls(kernels, placement, [[node]], own, 0), count) for node in nodes]
            parts.append(sum(map(prod, zip(work, shares, strict=True))) / sum(work) if nodes else 0.0)
        found[unit] = tuple(parts)
    return found


def _largest(kernels: KernelGraph, calls: Sequence[NodeCall], cores: int) -> float:
    busy = [0.0] * cores
    for call in calls:
        busy[call.lane] += _part(kernels, call)
    return min(max(busy), 1.0)


def _part(kernels: KernelGraph, call: NodeCall) -> float:
    """A call's share of the work of its node: that of weights, results or operands, whichever is the least."""
    if call.share is None:
        return 1.0
    views = [(view.nbytes, kernels.tensors[name].nbytes) for name, view in (*call.reads, *call.writes)]
    weights = [(array.nbytes, kernels.weights[name].nbytes) for name, array in call.share.weights.items()]
    return min((own / whole for own, whole in (*views, *weights) if whole), default=1.0)


def unit_nbytes(backend: CpuBackend, unit: str) -> int:
    """Bytes that the nodes of a unit read and write, weights included."""
    kernels, total = backend.kernels, 0
    for node in backend.coarse.nodes[unit]:
        touched = (*kernels.reads[node], *(name for name in kernels.nodes[node].output if name))
        total += sum(kernels.tensors[name].nbytes for name in touched)
        total += sum(kernels.weights[name].nbytes for name in kernels.constants[node])
    return total


def latencies_us(unit: Unit, parts: Sequence[float]) -> tuple[float, ...]:
    """Latencies of a unit on 1, 2, ... cores by the model above."""
    if len(parts) < 2:
        return (unit.one_us,)
    shared_us = unit.one_us * parts[1]
    wait_us = max(unit.two_us - shared_us, 0.0) if parts[-1] < 1 else 0.0
    gain = min(unit.two_us / shared_us, 1.0) if shared_us > 0 and parts[1] < 1 else 1.0
    later = (unit.one_us * part * gain + wait_us * math.log2(cores) for cores, part in enumerate(parts[1:], start=2))
    return (unit.one_us, *later)


@dataclass(eq=False)
class SimulatedCost:
    """The search's cost model of a machine of `lanes` cores, see `scheduler/cost.py`.

    Attributes:
        lanes: how many cores it has.
        us: for each unit its latencies on 1, 2, ... cores.
        nbytes: for each unit the bytes that it accesses.
        key: a string that is the same for equal units.
        guessed: the division of a stage by the lowering's guess.
        chooses: whether likely divisions are tried, as `optimize` does, or only the guess.
        bytes_per_us: no stage takes less than its bytes over this; infinite for unlimited bandwidth.
        tried: number of requested stages, counting each division.
    """

    lanes: int
    us: Mapping[str, Sequence[float]]
    nbytes: Mapping[str, int]
    key: Callable[[str], str]
    guessed: Callable[[Stage], Lanes]
    chooses: bool = True
    bytes_per_us: float = math.inf
    tried: int = 0
    _known: dict[tuple[tuple[str, ...], ...], tuple[float, Lanes]] = field(default_factory=dict)

    def stage_latency_us(self, stage: Stage) -> float:
        """By the guessed division, or by the best of the likely ones."""
        return self._best(stage)[0]

    def divided(self, stage: Stage) -> Stage:
        """The stage with the division behind its latency."""
        return Stage(stage.strategy, stage.groups, stage.predicted_us, None, Division(self.lanes, self._best(stage)[1]))

    def schedule_us(self, schedule: Schedule) -> float:
        """The stages of a schedule one after another."""
        return sum(map(self.stage_latency_us, schedule.stages))

    def lower_bound_us(self, stage: Stage) -> float:
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """The latency on the best number of cores."""
        return min(self.us[name])

    def operator_work_us(self, name: str) -> float:
        """The minimum sum over all cores."""
        return min(us * cores for cores, us in enumerate(self.us[name], start=1))

    def operator_key(self, name: str) -> str:
        return self.key(name)

    def _best(self, stage: Stage) -> tuple[float, Lanes]:
        if stage.groups not in self._known:
            own = self.guessed(stage)
            others = self._likely(stage, own) if self.chooses and self.lanes > 1 else ()
            tried = [own, *(division.groups for division, _ in others)]
            self.tried += len(tried)
            self._known[stage.groups] = min((self._makespan_us(stage, groups), groups) for groups in tried)
        return self._known[stage.groups]

    def _likely(self, stage: Stage, own: Lanes) -> Sequence[tuple[Division, float]]:
        """Divisions as in `optimize`, from latencies of units on one core and on all."""
        times = [
            sum((GroupTime.between(self.us[n][0], self.us[n][-1], self.lanes) for n in group), GroupTime())
            for group in stage.groups
        ]
        return likely_divisions(times, self.lanes, own)

    def _makespan_us(self, stage: Stage, groups: Lanes) -> float:
        busy = [0.0] * self.lanes
        for names, own in zip(stage.groups, groups, strict=True):
            for lane in own:
                busy[lane] += sum(self.us[name][len(own) - 1] for name in names)
        return max(max(busy), sum(self.nbytes[name] for name in stage.operators) / self.bytes_per_us)
