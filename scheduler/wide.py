"""Graphs too wide for one block: what is cut into several is compared with greedy stages that cross the cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from iosched.models.graph import ComputationGraph
from iosched.scheduler.blocks import Part
from iosched.scheduler.cost import CostModel, OperatorBounds, Remeasurable
from iosched.scheduler.schedule import Block, Stage, Strategy


@dataclass(frozen=True)
class Improved:
    """Blocks, renumbered, and how many latencies were asked for, and asked for once more."""

    blocks: tuple[Block, ...]
    measured: int
    remeasured: int

    @property
    def total_us(self) -> float:
        """Latency of the blocks together; infinite where one is not known."""
        return sum(math.inf if total is None else total for total in map(_total_us, ([block] for block in self.blocks)))


def no_worse_than_greedy(
    graph: ComputationGraph,
    cost: CostModel,
    parts: Sequence[Part],
    blocks: Sequence[Block],
    is_over: Callable[[], bool],
    doubted: Remeasurable | None = None,
) -> Improved:
    """Replaces neighbouring blocks that were cut out of a wider one by one block of greedy stages where that is faster.

    Their best schedules keep the cuts, and may lose to stages that run everything ready. At most one measurement for
    each greedy stage, and none for those that bounds rule out. With `doubted`, greedy stages that win are measured
    once more, and have to win again.
    """
    found: list[Block] = []
    measured = remeasured = 0
    for cut, run in groupby(range(len(parts)), key=lambda index: not parts[index].optimal):
        indices = list(run)
        kept = [blocks[index] for index in indices]
        total = _total_us(kept)
        if cut and len(indices) > 1 and total is not None:
            names = [name for index in indices for name in parts[index].operators]
            trial = _Trial(cost, total, is_over)
            stages = trial.measured(list(_greedy_stages(graph, names)))
            measured += trial.n_measured
            if stages is not None and doubted is not None:
                stages = trial.measured_again(doubted, stages)
                remeasured += trial.n_remeasured
            if stages is not None:
                kept = [Block(0, stages, optimal=False)]
        found.extend(kept)
    return Improved(tuple(replace(block, index=index) for index, block in enumerate(found)), measured, remeasured)


def _total_us(blocks: Sequence[Block]) -> float | None:
    known = [stage.predicted_us for block in blocks for stage in block.stages]
    return None if None in known else sum(latency for latency in known if latency is not None)


def _greedy_stages(graph: ComputationGraph, names: Sequence[str]) -> Iterator[Stage]:
    """All operators that are ready, again and again; `names` stand in topological order."""
    depth: dict[str, int] = {}
    levels: list[list[str]] = []
    for name in names:
        depth[name] = 1 + max((depth[other] for other in graph.predecessors[name] if other in depth), default=-1)
        if depth[name] == len(levels):
            levels.append([])
        levels[depth[name]].append(name)
    for level in levels:
        yield Stage(Strategy.CONCURRENT, tuple((name,) for name in level))


@dataclass
class _Trial:
    """Measures stages as long as they may take less than `limit_us` together."""

    cost: CostModel
    limit_us: float
    is_over: Callable[[], bool]
    n_measured: int = 0
    n_remeasured: int = 0

    def measured(self, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        """The stages with their latencies; None where they do not beat the limit or the deadline came."""
        bounds = [self._bound_us(stage) for stage in stages]
        known: list[Stage] = []
        for number, stage in enumerate(stages):
            if sum(bounds) >= self.limit_us or self.is_over():
                return None
            bounds[number] = self.cost.stage_latency_us(stage)
            self.n_measured += 1
            known.append(replace(stage, predicted_us=bounds[number]))
        return tuple(known) if sum(bounds) < self.limit_us else None

    def measured_again(self, cost: Remeasurable, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        """The stages with their new latencies; None where they do not beat the limit or the deadline came."""
        known: list[Stage] = []
        for stage in stages:
            if self.is_over():
                return None
            known.append(replace(stage, predicted_us=cost.remeasure(replace(stage, predicted_us=None))))
            self.n_remeasured += 1
        return tuple(known) if sum(stage.predicted_us or 0.0 for stage in known) < self.limit_us else None

    def _bound_us(self, stage: Stage) -> float:
        if not isinstance(self.cost, OperatorBounds):
            return self.cost.lower_bound_us(stage)
        return sum(self.cost.operator_work_us(name) for name in stage.operators) / self.cost.lanes
