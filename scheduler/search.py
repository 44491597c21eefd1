"""The exact search for the best schedule of each block (thesis, chapter 3; Ding et al., MLSys 2021, algorithm 1).

The best schedule is a shortest path over the lattice of states, where the weight of a transition is the latency of a
stage. Latencies are expensive to know, so the search is lazy (Dellin & Srinivasa, "A Unifying Formalism for Shortest
Path Problems with Expensive Edge Evaluations", ICAPS 2016, LazySP): every stage starts with a lower bound, the
stages on the shortest path are measured, and so on until the shortest path is all measured. It is then a shortest path
under the true latencies too, since no other path can cost less than its bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from iosched.models.errors import ExecutionError
from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.blocks import MAX_STATES, BlockOperators, partition
from iosched.scheduler.classes import block_key, stage_classes
from iosched.scheduler.cost import CostModel, OperatorKeys, Remeasurable
from iosched.scheduler.divided import divided
from iosched.scheduler.effort import Effort
from iosched.scheduler.exploration import BestKnown, Exploration, Round
from iosched.scheduler.latencies import KnownLatencies, stages_within
from iosched.scheduler.lattice import Lattice
from iosched.scheduler.proof import Scope, scope
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Block, Schedule, Strategy
from iosched.scheduler.strategies import SEARCHES, masks_of
from iosched.scheduler.strategy_names import SearchStrategy, pruning_of
from iosched.scheduler.wide import across_cuts

Deadline = Callable[[], bool]


class SearchObserver(Protocol):
    """Somebody who wants to know how the search goes, and is called meanwhile; every method returns at once."""

    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        """Block `index` of `n_blocks` is next; `n_stages` distinct stages are its candidates."""
        ...

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        """`n_measured` stages of the block are known; `n_expected` more is a guess from the current shortest path."""
        ...

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        """The best schedule of block `index` is known."""
        ...


@dataclass(frozen=True)
class SearchResult:
    """A schedule and what it took to find it.

    Attributes:
        schedule: the best one; its stages carry `predicted_us` (None where a deadline came before any latency).
        states: states of all blocks, without the empty ones.
        transitions: (state, ending) pairs of all blocks.
        stages: distinct stages of all blocks.
        measured: latencies that were asked of the cost model; blocks that are alike (`OperatorKeys`) share them.
        lower_bound_us: no schedule of what `scope` says takes less under this cost; equal to the schedule's predicted
            latency where that is proven, and 0 where nothing is known.
        remeasured: stages that were measured once more (`Remeasurable`), beside `measured`.
        scope: what the bound and the proof are about: the whole graph, or each block as it was cut.
        others: schedules that latencies of stages, each alone, make out to be somewhat slower, and that whole runs may
            show to be faster.
    """

    schedule: Schedule
    states: int
    transitions: int
    stages: int
    measured: int
    lower_bound_us: float
    remeasured: int = 0
    scope: Scope = "blocks"
    others: tuple[Schedule, ...] = ()

    @property
    def proven(self) -> Scope | None:
        """What this is proven to be the best schedule of, under this cost and pruning; None where it is not."""
        return self.scope if all(block.optimal for block in self.schedule.blocks) else None

    @property
    def gap(self) -> float:
        """Part of the predicted latency that a better schedule within `scope` could save at most; 0 where proven."""
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
) -> SearchResult:
    """Finds the schedule of least total latency, block by block; `SearchResult.proven` says of what it is the best.

    Args:
        graph: what to schedule.
        cost: the device; every stage is asked for once. See `OperatorBounds` for cheap bounds and `OperatorKeys` for
            not asking twice for what is alike.
        strategy: "concurrent" (IOS-Parallel), "merge" (IOS-Merge: merged stages or single operators), "both" or "dos",
            which is "both" under limits of its own instead of `pruning`; see `strategies.SEARCHES`.
        pruning: at most r operators in a group and s groups in a stage.
        observer: is called as the search goes on.
        deadline: asked before each measurement; once true, the search ends with the best schedule known so far,
            never worse than the sequential one under the latencies known; `proven` says whether it is the best.
            With a deadline the blocks take turns, one round of measurements each, so that none is left out.
        effort: how hard to search. Where that is not enough for a proof, `SearchResult.gap` says how much is open.
        max_states: the bound that `blocks.partition` keeps.

    Equal costs give equal schedules: among the shortest paths, one with the fewest stages, then the one whose later
    stages hold the lower operators.

    Complexity: O(T) for each pass over the T <= C(n/d + 2, 2)^d transitions of a block of n operators and width d
    (MLSys 2021, theorem 1), and a pass for each round of measurements; memory O(T).

    Raises:
        ValueError: the strategy is unknown, or the cost model answers with NaN or a negative latency.
        ExecutionError: the device can run no schedule at all.
    """
    if strategy not in SEARCHES:
        raise ValueError(f"unknown strategy {strategy!r}")
    parts = partition(graph, max_states)
    limits = pruning_of(strategy, pruning)
    settings = _Settings(graph, cost, SEARCHES[strategy], limits, effort.remeasure_rounds > 0)
    guide = _Guide(observer or _Silence(), deadline, len(parts))
    searches = _block_searches(settings, effort, parts)
    found = _result(settings, guide, parts, list(_explore(guide, searches)))
    return replace(found, schedule=divided(found.schedule, cost))


@dataclass(frozen=True)
class _Settings:
    graph: ComputationGraph
    cost: CostModel
    strategies: tuple[Strategy, ...]
    pruning: Pruning
    remeasures: bool


@dataclass(frozen=True)
class _Guide:
    observer: SearchObserver
    deadline: Deadline | None
    n_blocks: int

    def is_over(self) -> bool:
        return self.deadline is not None and self.deadline()


@dataclass(frozen=True)
class _Found:
    """What a `_BlockSearch` came to: the best schedule of its first block, and of each block that is equal to that."""

    exploration: Exploration
    best: BestKnown
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class _BlockSearch:
    """The search of one block, and of all that are equal to it but for names; those of the first one stand for all."""

    parts: dict[int, BlockOperators]  # by index
    exploration: Exploration

    @property
    def index(self) -> int:
        return min(self.parts)

    def best_known(self) -> BestKnown:
        found = self.exploration.best_known()
        if found is None:
            names = self.parts[self.index].operators
            raise ExecutionError(f"the device cannot run block {self.index}, {names[0]!r} to {names[-1]!r}")
        return found

    def blocks(self, found: BestKnown) -> Iterator[Block]:
        for index, part in self.parts.items():
            name_of = dict(zip(self.parts[self.index].operators, part.operators, strict=True))
            yield Block(index, tuple(stage.renamed(name_of) for stage in found.stages), found.optimal)


def _block_searches(settings: _Settings, effort: Effort, parts: Sequence[BlockOperators]) -> list[_BlockSearch]:
    lattice_of: dict[Hashable, Lattice] = {}
    found: dict[Hashable, _BlockSearch] = {}
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
        found[key] = _BlockSearch({index: part}, Exploration(lattice, latencies, effort))
    return list(found.values())


def _labels(cost: CostModel, part: BlockOperators) -> dict[str, str] | None:
    return {name: cost.operator_key(name) for name in part.operators} if isinstance(cost, OperatorKeys) else None


def _explore(guide: _Guide, searches: Sequence[_BlockSearch]) -> Iterator[_Found]:
    """Searches all blocks: one after another, or a round of each in turn where a deadline may leave some unfinished."""
    pending = deque(searches)
    while pending and not guide.is_over():
        found = pending.popleft()
        if not found.exploration.started:
            for index in found.parts:
                guide.observer.block_started(index, guide.n_blocks, len(found.exploration.lattice.stages))
        wanted = found.exploration.next_round(guide.is_over)
        if wanted is None:
            yield _finish(guide, found)
            continue
        _run(guide, found, wanted)
        if guide.deadline is None and not wanted.later:
            pending.appendleft(found)
        else:
            pending.append(found)
    for found in pending:
        yield _finish(guide, found)


def _finish(guide: _Guide, found: _BlockSearch) -> _Found:
    best = found.best_known()
    blocks = tuple(found.blocks(best))
    for block in blocks:
        guide.observer.block_finished(block.index, guide.n_blocks, block)
    return _Found(found.exploration, best, blocks)


def _result(
    settings: _Settings, guide: _Guide, parts: Sequence[BlockOperators], found: Sequence[_Found]
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
    )
    if kept.proven == "whole" or Strategy.CONCURRENT not in settings.strategies or settings.pruning.s == 1:
        return kept
    return _with_stages_across_cuts(settings, guide, parts, kept)


def _with_stages_across_cuts(
    settings: _Settings, guide: _Guide, parts: Sequence[BlockOperators], kept: SearchResult
) -> SearchResult:
    doubted = settings.cost if settings.remeasures and isinstance(settings.cost, Remeasurable) else None
    blocks = kept.schedule.blocks
    found = across_cuts(settings.graph, settings.cost, parts, blocks, settings.pruning, guide.is_over, doubted)
    asked = replace(kept, measured=kept.measured + found.measured, remeasured=kept.remeasured + found.remeasured)
    if len(found.blocks) == len(blocks):
        return asked
    # What the blocks could have been says nothing of a schedule that leaves them.
    return replace(asked, schedule=Schedule(found.blocks), lower_bound_us=0.0, scope="blocks")


class _Silence:
    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        pass

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        pass

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        pass


def _run(guide: _Guide, found: _BlockSearch, wanted: Round) -> None:
    """Measures the stages of one round, as far as the deadline allows."""
    exploration = found.exploration
    for done, position in enumerate(wanted.positions, 1):
        if guide.is_over():
            return
        if exploration.measure(position, wanted):
            left = len(wanted.positions) - done
            guide.observer.stage_measured(found.index, exploration.latencies.n_measured, left)
