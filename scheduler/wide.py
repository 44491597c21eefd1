"""Graphs too wide for one block: what is cut into several is compared with stages that cross the cuts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from iosched.models.graph import ComputationGraph
from iosched.scheduler.baselines import greedy_stages
from iosched.scheduler.beam import beam
from iosched.scheduler.blocks import BlockOperators
from iosched.scheduler.cost import CostModel, OperatorBounds, Remeasurable
from iosched.scheduler.lattice import in_order
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

Groups = tuple[tuple[str, ...], ...]

_BEAMS = 3  # each knows what was measured of the one before


@dataclass(frozen=True)
class Improved:
    """Blocks, renumbered, and how many latencies were asked for, and asked for once more."""

    blocks: tuple[Block, ...]
    measured: int
    remeasured: int


def across_cuts(
    graph: ComputationGraph,
    cost: CostModel,
    parts: Sequence[BlockOperators],
    blocks: Sequence[Block],
    pruning: Pruning,
    is_over: Callable[[], bool],
    doubted: Remeasurable | None = None,
) -> Improved:
    """Replaces neighbouring blocks that were cut out of a wider one by one block of stages that cross the cuts.

    Their best schedules keep the cuts, and may lose to stages that run everything ready, or to what a beam over all of
    their operators finds: whatever is measured to be the fastest stays. At most one measurement for each stage of the
    greedy schedule and of three beams, and none for those that bounds rule out. With `doubted`, stages that win are
    measured once more, and have to win again.
    """
    found: list[Block] = []
    measured = remeasured = 0
    for cut, run in groupby(range(len(parts)), key=lambda index: not parts[index].narrow):
        indices = list(run)
        kept = [blocks[index] for index in indices]
        total = Schedule(tuple(kept)).predicted_us
        if cut and len(indices) > 1 and total is not None:
            names = in_order(graph, (name for index in indices for name in parts[index].operators))
            trial = _Trial(cost, total, is_over, doubted)
            trial.learn(stage for block in kept for stage in block.stages)
            stages = _best_across(graph, names, pruning, trial)
            measured, remeasured = measured + trial.n_measured, remeasured + trial.n_remeasured
            if stages is not None:
                kept = [Block(0, stages, optimal=False)]
        found.extend(kept)
    return Improved(tuple(replace(block, index=index) for index, block in enumerate(found)), measured, remeasured)


def _best_across(
    graph: ComputationGraph, names: Sequence[str], pruning: Pruning, trial: _Trial
) -> tuple[Stage, ...] | None:
    best = trial.beaten_by(greedy_stages(graph, names))
    for _ in range(_BEAMS):
        if trial.is_over():
            break
        stages = beam(graph, names, pruning, trial.estimate())
        if stages is None:
            break
        n_measured = trial.n_measured
        best = trial.beaten_by(stages) or best
        if trial.n_measured == n_measured:
            break
    return best


@dataclass
class _Trial:
    """Measures schedules as long as they may take less than `limit_us`: what the best one so far takes."""

    cost: CostModel
    limit_us: float
    is_over: Callable[[], bool]
    doubted: Remeasurable | None = None
    n_measured: int = 0
    n_remeasured: int = 0
    known_us: dict[Groups, float] = field(default_factory=dict)
    settled: set[Groups] = field(default_factory=set)

    def learn(self, stages: Iterable[Stage]) -> None:
        """Takes latencies that are known already."""
        for stage in stages:
            if stage.strategy is Strategy.CONCURRENT and stage.predicted_us is not None:
                self.known_us[stage.groups] = stage.predicted_us

    def estimate(self) -> Callable[[Stage], float]:
        """What stages take: their latencies where known, else their bounds, as far exceeded as those of known ones."""
        bounds = sum(self._bound_us(Stage(Strategy.CONCURRENT, groups)) for groups in self.known_us)
        scale = sum(self.known_us.values()) / bounds if bounds > 0 else 1.0
        known: dict[Groups, float] = dict(self.known_us)

        def estimate_us(stage: Stage) -> float:
            if stage.groups not in known:
                known[stage.groups] = self._bound_us(stage) * scale
            return known[stage.groups]

        return estimate_us

    def beaten_by(self, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        """The stages with their latencies, which are the limit from now on; None where they do not beat it."""
        total = self._total_us(stages, self._measured_us)
        if total < self.limit_us and self.doubted is not None:
            total = self._total_us(stages, self._measured_again_us)
        if not total < self.limit_us:
            return None
        self.limit_us = total
        return tuple(replace(stage, predicted_us=self.known_us[stage.groups]) for stage in stages)

    def _total_us(self, stages: Sequence[Stage], latency_us: Callable[[Stage], float]) -> float:
        """Infinite as soon as it is clear that they take longer, or the deadline came."""
        bounds = [self.known_us.get(stage.groups, self._bound_us(stage)) for stage in stages]
        for number, stage in enumerate(stages):
            if sum(bounds) >= self.limit_us or self.is_over():
                return math.inf
            bounds[number] = latency_us(stage)
        return sum(bounds)

    def _measured_us(self, stage: Stage) -> float:
        if stage.groups not in self.known_us:
            self.known_us[stage.groups] = self.cost.stage_latency_us(stage)
            self.n_measured += 1
        return self.known_us[stage.groups]

    def _measured_again_us(self, stage: Stage) -> float:
        if self.doubted is not None and stage.groups not in self.settled:
            self.known_us[stage.groups] = self.doubted.remeasure(stage)
            self.settled.add(stage.groups)
            self.n_remeasured += 1
        return self.known_us[stage.groups]

    @cached_property
    def _operators(self) -> OperatorBounds | None:
        return self.cost if isinstance(self.cost, OperatorBounds) else None

    def _bound_us(self, stage: Stage) -> float:
        known = self._operators
        if known is None:
            return self.cost.lower_bound_us(stage)
        work = sum(known.operator_work_us(name) for name in stage.operators) / known.lanes
        return max(work, *(sum(map(known.operator_latency_us, group)) for group in stage.groups))
