"""The exact search for the best schedule of each block (thesis, chapter 3; Ding et al., MLSys 2021, algorithm 1).

The best schedule is a shortest path over the lattice of states, weighted by stage latencies, which are expensive to
measure. The search is therefore lazy (Dellin & Srinivasa, "A Unifying Formalism for Shortest Path Problems with
Expensive Edge Evaluations", ICAPS 2016, LazySP): every stage starts with a lower bound, and the stages on the shortest
path are measured until it is all measured. It is then a shortest path under the true latencies, since no path costs
less than its bounds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.block_searches import (
    NO_OBSERVER,
    BlockSearch,
    Deadline,
    Guide,
    SearchedBlocks,
    SearchObserver,
    explore,
)
from iosched.scheduler.blocks import MAX_STATES, BlockOperators, partition
from iosched.scheduler.cost import (
    CostModel,
    OperatorKeys,
    Prefetchable,
    Remeasurable,
    Suggesting,
    divided,
    prefetcher_of,
)
from iosched.scheduler.effort import Effort
from iosched.scheduler.equivalence import block_key, stage_classes
from iosched.scheduler.exploration import Exploration
from iosched.scheduler.latencies import KnownLatencies, stages_within
from iosched.scheduler.lattice import Lattice
from iosched.scheduler.proof import scope
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Schedule, Scope, Stage, Strategy, sum_us
from iosched.scheduler.strategies import SEARCHES, SearchStrategy, masks_of, pruning_of
from iosched.scheduler.wide_graphs import across_cuts


@dataclass(frozen=True)
class SearchResult:
    """A schedule and the size of its search.

    Attributes:
        schedule: the best one; its stages carry `predicted_us` (None if a deadline came before any latency).
        states, transitions, stages: of all blocks, empty states excluded.
        measured: requested latencies; equal blocks (`OperatorKeys`) share them.
        lower_bound_us: lower bound of all schedules in `scope` under this cost; 0 if nothing is known.
        remeasured: second measurements (`Remeasurable`), not counted in `measured`.
        scope: of the bound and the proof.
        predicted_least_us: the bound by optimistic predictions, which affects neither `lower_bound_us` nor `gap` nor
            `proven`; None without predictions.
    """

    schedule: Schedule
    states: int
    transitions: int
    stages: int
    measured: int
    lower_bound_us: float
    remeasured: int = 0
    scope: Scope = "blocks"
    predicted_least_us: float | None = None

    @property
    def predicted_gap(self) -> float | None:
        """The share of the latency that a better schedule may save by predictions; None without predictions."""
        predicted, least = self.schedule.predicted_us, self.predicted_least_us
        return None if not predicted or least is None else max(1 - least / predicted, 0.0)

    def unbounded(self, schedule: Schedule) -> SearchResult:
        """The same with another schedule, without bounds and predictions."""
        return replace(self, schedule=schedule, lower_bound_us=0.0, predicted_least_us=None)

    @property
    def proven(self) -> Scope | None:
        """The scope in which the schedule is proven optimal under this cost and pruning; None if it is not."""
        return self.scope if all(block.optimal for block in self.schedule.blocks) else None

    @property
    def gap(self) -> float:
        """The largest share of the predicted latency that a better schedule in `scope` could save; 0 if proven."""
        if self.proven is not None:
            return 0.0  # sums in another order differ in the last bits
        predicted = self.schedule.predicted_us
        if predicted is None:
            return 1.0
        return max(1 - self.lower_bound_us / predicted, 0.0) if predicted > 0 else 0.0


def search(
    graph: ComputationGraph,
    cost: CostModel,
    *,
    strategy: SearchStrategy = "both",
    pruning: Pruning = DEFAULT_PRUNING,
    observer: SearchObserver | None = None,
    deadline: Deadline | None = None,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    max_states: int = MAX_STATES,
    ahead: Prefetchable | None = None,
    first: Iterable[Stage] = (),
) -> SearchResult:
    """Finds the schedule of least total latency, block by block; `SearchResult.proven` is the scope of the proof.

    Among equally fast schedules, it returns one with the fewest stages, then the one whose later stages hold the lower
    operators. Complexity: a pass over the T <= C(n/d + 2, 2)^d transitions of a block of n operators and width d (MLSys
    2021, theorem 1) for each round of measurements; memory O(T).

    Args:
        cost: the device; every stage is requested once. See `OperatorBounds` for cheap bounds and `OperatorKeys` for
            equal stages.
        strategy: see `strategies.SEARCHES`; "dos" ignores `pruning` and has separate limits.
        deadline: checked before each measurement; once true, the search returns the best known schedule, never worse
            than the sequential one under the known latencies. With a deadline the blocks alternate, one round each.
        ahead: receives rounds of questions before they are asked one by one (`Prefetchable`); by default the cost
            model, if it is `Prefetchable`. All blocks are then searched at once, with the same result.
        first: stages of a good schedule, as those of a cost model that is `Suggesting`.

    Raises:
        ValueError: the strategy is unknown, or the cost model returns NaN or a negative latency.
        ExecutionError: the device can run no schedule at all.
        And what `ahead` raises.
    """
    if strategy not in SEARCHES:
        raise ValueError(f"unknown strategy {strategy!r}")
    parts = partition(graph, max_states)
    limits = pruning_of(strategy, pruning)
    settings = _Settings(graph, cost, SEARCHES[strategy], limits, effort.remeasure_rounds > 0)
    guide = Guide(observer or NO_OBSERVER, deadline, len(parts), prefetcher_of(cost, ahead))
    searches = _block_searches(settings, effort, parts, first)
    explored = sorted(explore(guide, searches), key=lambda each: each.blocks[0].index)
    found = _result(settings, guide, parts, explored)
    return replace(found, schedule=divided(found.schedule, cost))


@dataclass(frozen=True)
class _Settings:
    graph: ComputationGraph
    cost: CostModel
    strategies: tuple[Strategy, ...]
    pruning: Pruning
    remeasures: bool


def _block_searches(
    settings: _Settings, effort: Effort, parts: Sequence[BlockOperators], first: Iterable[Stage]
) -> list[BlockSearch]:
    suggested = [*first, *(settings.cost.suggested_stages() if isinstance(settings.cost, Suggesting) else ())]
    lattice_of: dict[Hashable, Lattice] = {}
    found: dict[Hashable, BlockSearch] = {}
    for index, part in enumerate(parts):
        labels = _labels(settings.cost, part)
        masks = masks_of(settings.graph, part.operators, settings.strategies)
        key = index if labels is None else (block_key(settings.graph, part.operators, labels), *masks.values())
        if key in found:
            found[key].parts[index] = part
            continue
        order = lattices.relation(settings.graph, part.operators)
        only = stages_within(order, masks)
        if (order, only) not in lattice_of:  # cells repeat: blocks of one shape share their lattice
            lattice_of[order, only] = lattices.build(order, settings.pruning, only)
        lattice = lattice_of[order, only]
        classes = None if labels is None else stage_classes(settings.graph, part.operators, lattice, labels)
        latencies = KnownLatencies.start(settings.cost, part.operators, lattice, masks, classes)
        positions = tuple(latencies.positions(stage.operators for stage in suggested))
        found[key] = BlockSearch({index: part}, Exploration(lattice, latencies, effort, positions))
    return list(found.values())


def _labels(cost: CostModel, part: BlockOperators) -> dict[str, str] | None:
    return {name: cost.operator_key(name) for name in part.operators} if isinstance(cost, OperatorKeys) else None


def _result(
    settings: _Settings, guide: Guide, parts: Sequence[BlockOperators], found: Sequence[SearchedBlocks]
) -> SearchResult:
    blocks = tuple(sorted((block for one in found for block in one.blocks), key=lambda block: block.index))
    names = [part.operators for part in parts]
    lattices_of = [(len(one.blocks), one.exploration.lattice) for one in found]
    kept = SearchResult(
        Schedule(blocks),
        states=sum(n * (len(lattice.states) - 1) for n, lattice in lattices_of),
        transitions=sum(n * len(lattice.sources) for n, lattice in lattices_of),
        stages=sum(n * len(lattice.stages) for n, lattice in lattices_of),
        measured=sum(one.exploration.latencies.n_measured for one in found),
        lower_bound_us=sum(len(one.blocks) * one.best.lower_bound_us for one in found),
        remeasured=sum(one.exploration.latencies.n_remeasured for one in found),
        scope=scope(settings.graph, names, settings.cost, settings.strategies, settings.pruning),
        predicted_least_us=sum_us(one.best.predicted_least_us for one in found for _ in one.blocks),
    )
    if kept.proven == "whole" or Strategy.CONCURRENT not in settings.strategies or settings.pruning.s == 1:
        return kept
    return _with_stages_across_cuts(settings, guide, parts, kept)


def _with_stages_across_cuts(
    settings: _Settings, guide: Guide, parts: Sequence[BlockOperators], kept: SearchResult
) -> SearchResult:
    doubted = settings.cost if settings.remeasures and isinstance(settings.cost, Remeasurable) else None
    blocks = kept.schedule.blocks
    found = across_cuts(
        settings.graph, settings.cost, parts, blocks, settings.pruning, guide.is_over, guide.hand_over, doubted
    )
    asked = replace(kept, measured=kept.measured + found.measured, remeasured=kept.remeasured + found.remeasured)
    if len(found.blocks) == len(blocks):
        return asked
    # Bounds of the blocks do not apply to a schedule whose stages cross them.
    return replace(asked.unbounded(Schedule(found.blocks)), scope="blocks")
