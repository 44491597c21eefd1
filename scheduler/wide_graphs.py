"""Graphs too wide for one block: compares their blocks with stages that cross the cuts.

The exact search keeps to the cuts. A beam search over the lattice of down-sets does not: from the empty state on, it
keeps the few most promising states of each size, and extends each by a few stages of ready operators, preferring those
at the start of the longest paths. It proves nothing: its schedule is measured before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from iosched.models.graph import ComputationGraph
from iosched.scheduler.baselines import greedy_stages
from iosched.scheduler.blocks import BlockOperators
from iosched.scheduler.cost import CostModel, CostQuestion, OperatorBounds, Remeasurable
from iosched.scheduler.lattice import Relation, bits, in_order, relation
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

Groups = tuple[tuple[str, ...], ...]

_BEAMS = 3  # each uses the latencies that were measured for earlier beams


@dataclass(frozen=True)
class Improved:
    """Renumbered blocks, and how many latencies were requested, once and a second time."""

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
    hand_over: Callable[[Sequence[CostQuestion]], None],
    doubted: Remeasurable | None = None,
) -> Improved:
    """Replaces neighbouring blocks that were cut out of a wider one by one block of stages that cross the cuts, if
    faster.

    The greedy schedule of all their operators, or one of three beam searches, may be faster: the fastest by measurement
    is taken. Each of their stages is measured at most once, and schedules that bounds rule out are not measured. With
    `doubted`, the stages of a winner are measured a second time, and it has to win again. `hand_over` receives the
    questions about a schedule before they are asked (`Prefetchable`).
    """
    found: list[Block] = []
    measured = remeasured = 0
    for cut, run in groupby(range(len(parts)), key=lambda index: not parts[index].narrow):
        indices = list(run)
        kept = [blocks[index] for index in indices]
        total = Schedule(tuple(kept)).predicted_us
        if cut and len(indices) > 1 and total is not None:
            names = in_order(graph, (name for index in indices for name in parts[index].operators))
            trial = _ScheduleComparison(cost, total, is_over, hand_over, doubted)
            trial.learn(stage for block in kept for stage in block.stages)
            stages = _best_across(graph, names, pruning, trial)
            measured, remeasured = measured + trial.n_measured, remeasured + trial.n_remeasured
            if stages is not None:
                kept = [Block(0, stages, optimal=False)]
        found.extend(kept)
    return Improved(tuple(replace(block, index=index) for index, block in enumerate(found)), measured, remeasured)


def _best_across(
    graph: ComputationGraph, names: Sequence[str], pruning: Pruning, trial: _ScheduleComparison
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
class _ScheduleComparison:
    """Compares schedules with the best one so far, of `limit_us`, and measures each only while it may still be faster.

    `known_us` are latencies of concurrent stages by their groups; `settled` ones were measured a second time, on
    `doubted`.
    """

    cost: CostModel
    limit_us: float
    is_over: Callable[[], bool]
    hand_over: Callable[[Sequence[CostQuestion]], None]
    doubted: Remeasurable | None = None
    n_measured: int = 0
    n_remeasured: int = 0
    known_us: dict[Groups, float] = field(default_factory=dict)
    settled: set[Groups] = field(default_factory=set)

    def learn(self, stages: Iterable[Stage]) -> None:
        for stage in stages:
            if stage.strategy is Strategy.CONCURRENT and stage.predicted_us is not None:
                self.known_us[stage.groups] = stage.predicted_us

    def estimate(self) -> Callable[[Stage], float]:
        """Estimates a stage: its known latency, else its bound, scaled by known latencies over their bounds."""
        bounds = sum(self._bound_us(Stage(Strategy.CONCURRENT, groups)) for groups in self.known_us)
        scale = sum(self.known_us.values()) / bounds if bounds > 0 else 1.0
        known: dict[Groups, float] = dict(self.known_us)

        def estimate_us(stage: Stage) -> float:
            if stage.groups not in known:
                known[stage.groups] = self._bound_us(stage) * scale
            return known[stage.groups]

        return estimate_us

    def beaten_by(self, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        unknown = [CostQuestion(stage) for stage in stages if stage.groups not in self.known_us]
        total = self._total_us(stages, self._measured_us, unknown)
        if total < self.limit_us and self.doubted is not None:
            again = [CostQuestion(stage, "again") for stage in stages if stage.groups not in self.settled]
            total = self._total_us(stages, self._measured_again_us, again)
        if not total < self.limit_us:
            return None
        self.limit_us = total
        return tuple(replace(stage, predicted_us=self.known_us[stage.groups]) for stage in stages)

    def _total_us(
        self, stages: Sequence[Stage], latency_us: Callable[[Stage], float], questions: Sequence[CostQuestion]
    ) -> float:
        """The total latency; infinite once it cannot be below the limit, or after the deadline.

        `questions` are those that `latency_us` asks.
        """
        bounds = [self.known_us.get(stage.groups, self._bound_us(stage)) for stage in stages]
        if sum(bounds) < self.limit_us:
            self.hand_over(questions)
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


MAX_OPERATORS = 400
"""The most operators of a beam search: the time grows with their square."""

_KEPT = 6  # states of each size
_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # groups of the stages that are tried, in addition to all ready ones

Estimate = Callable[[Stage], float]


@dataclass(frozen=True)
class _Partial:
    """Stages that lead to a state, newest first, as a linked list; `alone_us` is the latency of their operators in
    sequence.
    """

    total_us: float
    alone_us: float
    stage: Stage | None = None
    before: _Partial | None = None

    def stages(self) -> tuple[Stage, ...]:
        found: list[Stage] = []
        partial: _Partial | None = self
        while partial is not None and partial.stage is not None:
            found.append(partial.stage)
            partial = partial.before
        return tuple(reversed(found))


def beam(
    graph: ComputationGraph, names: Sequence[str], pruning: Pruning, estimate_us: Estimate
) -> tuple[Stage, ...] | None:
    """Stages of all operators `names` of low latency by `estimate_us`; None if there are too many operators.

    Deterministic. O(operators^2) stages are estimated at most, with small factors.
    """
    if len(names) > MAX_OPERATORS:
        return None
    subgraph = _Subgraph(graph, tuple(names), pruning, estimate_us)
    levels: list[dict[int, _Partial]] = [{} for _ in range(len(names) + 1)]
    levels[0][0] = _Partial(0.0, 0.0)
    for level in levels[:-1]:
        # States of one size have different operators; subtracting half of their latency alone makes them comparable.
        ranked = sorted(level.items(), key=lambda entry: (entry[1].total_us - entry[1].alone_us / 2, entry[0]))
        for state, partial in ranked[:_KEPT]:
            for mask, stage in subgraph.next_stages(state).items():
                alone_us = partial.alone_us + sum(subgraph.alone_us[index] for index in bits(mask))
                found = _Partial(partial.total_us + estimate_us(stage), alone_us, stage, partial)
                known = levels[(state | mask).bit_count()].get(state | mask)
                if known is None or found.total_us < known.total_us:
                    levels[(state | mask).bit_count()][state | mask] = found
        level.clear()
    return next(iter(levels[-1].values())).stages()


@dataclass(frozen=True)
class _Subgraph:
    graph: ComputationGraph
    names: tuple[str, ...]
    pruning: Pruning
    estimate_us: Estimate

    @cached_property
    def order(self) -> Relation:
        return relation(self.graph, self.names)

    @cached_property
    def alone_us(self) -> tuple[float, ...]:
        return tuple(self.estimate_us(Stage(Strategy.CONCURRENT, ((name,),))) for name in self.names)

    @cached_property
    def remaining_us(self) -> tuple[float, ...]:
        found = [0.0] * len(self.names)
        for index in reversed(range(len(self.names))):
            found[index] = self.alone_us[index] + max(
                (found[other] for other in bits(self.order.successors[index])), default=0.0
            )
        return tuple(found)

    def next_stages(self, state: int) -> dict[int, Stage]:
        """Stages to try after this state, by mask: ready operators, each with successors that need only it."""
        waiting = self.order.full & ~state
        ready = [index for index in bits(waiting) if not self.order.predecessors[index] & ~state]
        ready.sort(key=lambda index: (-self.remaining_us[index], index))
        widths = sorted({min(width, len(ready), self.pruning.s or len(ready)) for width in _WIDTHS} | {len(ready)})
        found: dict[int, Stage] = {}
        for length in {1, min(2, self.pruning.r or 2), self.pruning.r or 3}:
            chains = [self._chain(index, state, length) for index in ready]
            for width in widths:
                mask = sum(1 << index for chain in chains[:width] for index in chain)
                groups = sorted(chains[:width])
                names = tuple(tuple(self.names[index] for index in chain) for chain in groups)
                found.setdefault(mask, Stage(Strategy.CONCURRENT, names))
        return found

    def _chain(self, index: int, state: int, length: int) -> list[int]:
        """A group: the operator and successors that need only these. Two such groups share no operator and no edge."""
        predecessors, successors = self.order.predecessors, self.order.successors
        chain, inside = [index], 1 << index
        while len(chain) < length:
            done = state | inside
            after = [other for other in bits(successors[chain[-1]]) if not predecessors[other] & ~done]
            if not after:
                break
            chain.append(max(after, key=lambda other: (self.remaining_us[other], -other)))
            inside |= 1 << chain[-1]
        return chain
