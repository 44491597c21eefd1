"""Explains an operator's placement: the best schedules of its block with the operator in another stage.

Every schedule runs an operator in exactly one stage, so the stages that contain it are a cut through the lattice of
states. The best schedule with the operator in one of some stages is a shortest path over the lattice without the other
stages that contain it; latencies are requested lazily, as in `search`. A whole session or stage of lanes is compared
with the best stages of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.blocks import MAX_STATES, partition
from iosched.scheduler.cost import CostModel
from iosched.scheduler.latencies import KnownLatencies, stages_within
from iosched.scheduler.lattice import Flags, Latencies, Lattice, count_fitting, in_order, popcount
from iosched.scheduler.paths import bound_us, distances, shortest_path, some_shortest_path
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy, sum_us
from iosched.scheduler.strategies import SEARCHES, STAGE_RULES, SearchStrategy, masks_of

KnownLatency = Callable[[Stage], float | None]


def operator_placement(
    graph: ComputationGraph,
    schedule: Schedule,
    operator: str,
    cost: CostModel,
    known_us: KnownLatency,
    *,
    strategy: SearchStrategy = "both",
    pruning: Pruning = DEFAULT_PRUNING,
    bound_slack: float = 1.0,
    max_states: int = MAX_STATES,
) -> StagePlacement:
    """Compares the stage of `operator` in `schedule` with every other stage of its block that could contain it.

    Complexity: for each placement that of a lazy search, O(T) a round over the T transitions of the block.

    Args:
        cost: bounds of stages; with `OperatorBounds`, 0 for operators of unknown latency.
        known_us: latency of a stage; None if unknown and not to be measured, infinite if the stage cannot run.
        bound_slack: factor on lower bounds, as in `search`.
        max_states: a block of more states is searched only around the operator's own stage.

    Raises:
        UsageError: the schedule does not contain the operator.
    """
    block, number = _find(schedule, operator)
    now = block.stages[number]
    rule = STAGE_RULES[now.strategy]
    crosses_blocks = rule.is_in_order or rule.is_linked
    window = (number, number) if crosses_blocks else _window(graph, block, number, operator, max_states)
    first, last = window or (number, number)
    stages = block.stages[first : last + 1]
    present_us = sum_us([_present_us(known_us, stage) for stage in stages])  # requests all, even if some are unknown
    weigh = partial(_Weighed.of, graph, cost, known_us, SEARCHES[strategy], pruning, bound_slack)
    found: tuple[OtherPlacement, ...] = ()
    if crosses_blocks:
        found = (_by_stages(weigh, _blocks_of(graph, now, max_states)),)
    elif window is not None:
        weighed = weigh(in_order(graph, (name for stage in stages for name in stage.operators)))
        masks = [weighed.mask(stage.operators) for stage in stages]
        found = tuple(_other_placements(weighed, operator, masks, number - first, first))
    return StagePlacement(
        operator=operator,
        block=block.index,
        stage=number,
        group=next(index for index, group in enumerate(now.groups) if operator in group),
        first_stage=first,
        stages=stages,
        present_us=present_us,
        others=found,
        is_weighed=window is not None,
    )


def present_placement(schedule: Schedule, operator: str, known_us: KnownLatency) -> StagePlacement:
    """The present stage of `operator`, without a search for others.

    Raises:
        UsageError: the schedule does not contain the operator.
    """
    block, number = _find(schedule, operator)
    stage = block.stages[number]
    group = next(index for index, names in enumerate(stage.groups) if operator in names)
    return StagePlacement(operator, block.index, number, group, number, (stage,), _present_us(known_us, stage), ())


def _find(schedule: Schedule, operator: str) -> tuple[Block, int]:
    for block in schedule.blocks:
        for number, stage in enumerate(block.stages):
            if operator in stage.operators:
                return block, number
    raise UsageError(f"the schedule has no operator {operator!r}")


def _present_us(known_us: KnownLatency, stage: Stage) -> float | None:
    known = known_us(replace(stage, predicted_us=None, measured_us=None))
    return stage.predicted_us if known is None else known


def _window(
    graph: ComputationGraph, block: Block, number: int, operator: str, max_states: int
) -> tuple[int, int] | None:
    """First and last of the stages that are searched together; None if the operator's own stage has too many states.

    They form the block of a search if the schedule keeps to it, else the stages around `number` that together fit
    `max_states`.
    """
    part = next(set(part.operators) for part in partition(graph, max_states) if operator in part.operators)
    inside = [index for index, stage in enumerate(block.stages) if not part.isdisjoint(stage.operators)]
    first, last = inside[0], inside[-1]
    kept = {name for stage in block.stages[first : last + 1] for name in stage.operators} <= part
    if kept and _fits(graph, block.stages[first : last + 1], max_states):
        return first, last
    first = last = number
    if not _fits(graph, block.stages[first : last + 1], max_states):
        return None
    grown = True
    while grown:
        grown = False
        for begin, end in ((first - 1, last), (first, last + 1)):
            if begin >= 0 and end < len(block.stages) and _fits(graph, block.stages[begin : end + 1], max_states):
                first, last, grown = begin, end, True
    return first, last


def _fits(graph: ComputationGraph, stages: Sequence[Stage], max_states: int) -> bool:
    names = in_order(graph, (name for stage in stages for name in stage.operators))
    return count_fitting(lattices.relation(graph, names).predecessors, max_states) == len(names)


def _blocks_of(graph: ComputationGraph, session: Stage, max_states: int) -> Sequence[tuple[str, ...]]:
    inside = frozenset(session.operators)
    parts = (tuple(name for name in part.operators if name in inside) for part in partition(graph, max_states))
    return [part for part in parts if part]


def _by_stages(weigh: Callable[[tuple[str, ...]], _Weighed], blocks: Sequence[tuple[str, ...]]) -> OtherPlacement:
    found = []
    for names in blocks:
        weighed = weigh(names)
        any_stage = np.ones(len(weighed.lattice.stages), dtype=np.bool_)
        found.append(weighed.best(weighed.mask(names[:1]), any_stage, "by_stages", None))
    at_most_us = sum(each.at_most_us for each in found)
    return OtherPlacement(
        kind="by_stages",
        stage=None,
        possible=all(each.possible for each in found),
        at_least_us=sum(each.at_least_us for each in found),
        at_most_us=at_most_us,
        stages=tuple(stage for each in found for stage in each.stages) if math.isfinite(at_most_us) else (),
    )


def _other_placements(
    weighed: _Weighed, operator: str, masks: Sequence[int], number: int, first: int
) -> Iterator[OtherPlacement]:
    bit, stages = weighed.mask([operator]), weighed.lattice.stages
    now = np.uint64(masks[number])
    if masks[number] != bit:
        yield weighed.best(bit, stages == np.uint64(bit), "alone", None)
    if popcount(np.array([now], dtype=np.uint64))[0] > 2:
        fewer = ((stages & ~now) == 0) & (stages != now) & (stages != np.uint64(bit))
        yield weighed.best(bit, fewer, "fewer", None)
    for other, mask in enumerate(masks):
        if other != number:
            yield weighed.best(bit, (stages & np.uint64(mask)) != 0, "with_stage", first + other)


@dataclass(frozen=True, eq=False)
class _Weighed:
    """The candidate stages and their known latencies. Latencies not requested yet are NaN; `closed` stages are done."""

    latencies: KnownLatencies
    known_us: KnownLatency
    bound_slack: float
    closed: Flags

    @classmethod
    def of(
        cls,
        graph: ComputationGraph,
        cost: CostModel,
        known_us: KnownLatency,
        strategies: Sequence[Strategy],
        pruning: Pruning,
        bound_slack: float,
        names: tuple[str, ...],
    ) -> _Weighed:
        order = lattices.relation(graph, names)
        masks = masks_of(graph, names, strategies)
        lattice = lattices.build(order, pruning, stages_within(order, masks))
        latencies = KnownLatencies.start(cost, names, lattice, masks)
        latencies.fill_bounds(lambda: False)
        return cls(latencies, known_us, bound_slack, np.zeros(len(lattice.stages), dtype=np.bool_))

    @property
    def lattice(self) -> Lattice:
        return self.latencies.lattice

    def mask(self, names: Sequence[str]) -> int:
        return sum(1 << self.latencies.names.index(name) for name in names)

    def best(self, operator: int, allowed: Flags, kind: PlacementKind, stage: int | None) -> OtherPlacement:
        holds = (self.lattice.stages & np.uint64(operator)) != 0
        barred = holds & ~allowed
        if not (holds & allowed).any():
            return OtherPlacement(kind, stage, False, math.inf, math.inf, ())
        self._learn_along_shortest_paths(barred, math.nan)
        self._learn_along_shortest_paths(barred, math.inf)
        at_least = bound_us(self.lattice, self._weights(barred, math.nan))
        weights = self._weights(barred, math.inf)
        at_most = bound_us(self.lattice, weights)
        path = shortest_path(self.lattice, weights) if math.isfinite(at_most) else []
        stages = tuple(self.latencies.stage(position) for position in path)
        return OtherPlacement(kind, stage, True, min(at_least, at_most), at_most, stages)

    def _learn_along_shortest_paths(self, barred: Flags, unknown_us: float) -> None:
        """Requests latencies until the shortest path holds only closed stages.

        Stages that stay unknown count by their bounds (a bound on all schedules), or as `unknown_us` if that is
        infinite (the best schedule of known latencies).
        """
        while True:
            known = np.where(self.closed, self._weights(barred, unknown_us), self._weights(barred, math.nan))
            reached = distances(self.lattice, known)
            if not math.isfinite(reached[-1]):
                return
            path = some_shortest_path(self.lattice, known, reached)
            positions = [position for position in path if not self.closed[position]]
            if not positions:
                return
            for position in positions:
                self._learn(position)

    def _weights(self, barred: Flags, unknown_us: float) -> Latencies:
        """For each stage the latency of its best known strategy; unknown ones count as `unknown_us`, or as their bound
        if NaN.
        """
        latencies = []
        for strategy, value in self.latencies.value.items():
            bound = self.latencies.bound[strategy] * self.bound_slack
            instead = bound if math.isnan(unknown_us) else np.full(len(value), unknown_us)
            latencies.append(np.where(np.isnan(value), instead, value))
        least: Latencies = np.minimum.reduce([np.where(barred, np.inf, each) for each in latencies])
        return least

    def _learn(self, position: int) -> None:
        for strategy, value in self.latencies.value.items():
            if np.isnan(value[position]):
                known = self.known_us(self.latencies.stage_by(position, strategy))
                value[position] = np.nan if known is None else known
        self.closed[position] = True


PlacementKind = Literal["alone", "fewer", "with_stage", "by_stages"]
Verdict = Literal["too_wide", "only_place", "unknown", "best", "as_good", "worse", "within_tolerance", "undecided"]
"""Comparison of the present placement with all others; see `StagePlacement.verdict`."""


@dataclass(frozen=True)
class OtherPlacement:
    """Another stage for an operator, and the best known schedule that uses it.

    Attributes:
        kind: which operators share the stage: none ("alone"), some of the present stage ("fewer"), operators of another
            stage ("with_stage"); for an operator in a session: any stages in place of the session ("by_stages").
        stage: for "with_stage", the number of that stage in its block.
        possible: whether the pruning allows such a stage.
        at_least_us: lower bound of all schedules with this placement.
        at_most_us: latency of `stages`; infinite if too many latencies are unknown.
    """

    kind: PlacementKind
    stage: int | None
    possible: bool
    at_least_us: float
    at_most_us: float
    stages: tuple[Stage, ...]

    @property
    def is_exact(self) -> bool:
        """Whether `stages` is proven to be the best schedule with this placement."""
        return self.at_least_us >= self.at_most_us * (1 - 1e-9)


@dataclass(frozen=True)
class StagePlacement:
    """The stage of an operator in a schedule, and the alternatives to it.

    Stages `first_stage` to `last_stage` of the operator's block are compared: the whole block, unless it spans several
    blocks of `blocks.partition` or has too many states; for a session, that session. Numbers of stages are those in the
    block. `present_us` is None if unknown, and `is_weighed` False if the operator's own stage has too many states.
    """

    operator: str
    block: int
    stage: int
    group: int
    first_stage: int
    stages: tuple[Stage, ...]
    present_us: float | None
    others: tuple[OtherPlacement, ...]
    is_weighed: bool = True

    @property
    def last_stage(self) -> int:
        """Number of the last compared stage."""
        return self.first_stage + len(self.stages) - 1

    @property
    def present(self) -> Stage:
        """The operator's stage."""
        return self.stages[self.stage - self.first_stage]

    @property
    def possible(self) -> tuple[OtherPlacement, ...]:
        """The other placements that the pruning allows."""
        return tuple(other for other in self.others if other.possible)

    @property
    def best_other(self) -> OtherPlacement | None:
        """The other placement of the lowest bound; None if there is none."""
        return min(self.possible, key=lambda other: other.at_least_us, default=None)

    def verdict(self, tolerance: float) -> Verdict:
        """Compares the present placement with the best other one; differences below `tolerance` of a latency are
        ignored.

        "too_wide" if nothing was compared, "only_place" without alternative, "unknown" without a present latency,
        "best" if the alternative is slower, "as_good" if it is slower by no more than the tolerance. If the alternative
        may be faster: "worse" if it is, "within_tolerance" if the gain is too small, "undecided" if too little is
        known.
        """
        if not self.is_weighed:
            return "too_wide"
        best_other, now = self.best_other, self.present_us
        if best_other is None or now is None:
            return "only_place" if best_other is None else "unknown"
        if best_other.at_least_us >= now:
            return "best" if best_other.at_least_us > now * (1 + max(tolerance, 1e-9)) else "as_good"
        if best_other.at_most_us >= now:
            return "undecided"
        return "worse" if best_other.at_most_us < now * (1 - tolerance) else "within_tolerance"
