"""The exact search for the best schedule of each block (thesis, chapter 3; Ding et al., MLSys 2021, algorithm 1).

The best schedule is a shortest path over the lattice of states, where the weight of a transition is the latency of a
stage. Latencies are expensive to know, so the search is lazy (Dellin & Srinivasa, "A Unifying Formalism for Shortest
Path Problems with Expensive Edge Evaluations", ICAPS 2016, LazySP): every stage starts with a lower bound, the
stages on the shortest path are measured, and so on until the shortest path is all measured. It is then a shortest path
under the true latencies too, since no other path can cost less than its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Literal, Protocol

from iosched.models.errors import ExecutionError
from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler import merge
from iosched.scheduler.blocks import MAX_STATES, Part, partition
from iosched.scheduler.cost import CostModel
from iosched.scheduler.latencies import KnownLatencies
from iosched.scheduler.lattice import NO_PRUNING, Lattice, Pruning, Relation
from iosched.scheduler.paths import bound_us, distances, shortest_path, some_shortest_path, within
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

__all__ = ["NO_PRUNING", "Pruning", "SearchObserver", "SearchResult", "SearchStrategy", "search"]

SearchStrategy = Literal["concurrent", "merge", "both"]
Deadline = Callable[[], bool]

_ROUNDS_BETWEEN_TRIMS = 32


class SearchObserver(Protocol):
    """Told how the search goes; every method returns at once."""

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
        measured: stages whose latency was asked of the cost model.
        lower_bound_us: no schedule of these blocks takes less under this cost; equal to the schedule's
            predicted latency where every block is optimal.
    """

    schedule: Schedule
    states: int
    transitions: int
    stages: int
    measured: int
    lower_bound_us: float


def search(
    graph: ComputationGraph,
    cost: CostModel,
    *,
    strategy: SearchStrategy = "both",
    pruning: Pruning = Pruning(),  # noqa: B008 - frozen
    observer: SearchObserver | None = None,
    deadline: Deadline | None = None,
    exhaustive: bool = False,
    bound_slack: float = 1.0,
    tolerance: float = 0.0,
    max_states: int = MAX_STATES,
) -> SearchResult:
    """Finds the schedule of least total latency, block by block.

    Args:
        graph: what to schedule.
        cost: the device; every stage is asked for once. See `OperatorBounds` for cheap bounds.
        strategy: "concurrent" (IOS-Parallel), "merge" (IOS-Merge: merged stages or single operators) or "both".
        pruning: at most r operators in a group and s groups in a stage.
        observer: told about progress.
        deadline: asked before each measurement; once true, the search ends with the best schedule known so far,
            never worse than the sequential one under the latencies known, and `optimal` is False where unproven.
        exhaustive: measures every stage instead of searching lazily.
        bound_slack: factor on all lower bounds; below 1 it keeps noisy measurements from hiding the optimum.
        tolerance: a block is done when its schedule is within this part of its lower bound: measured latencies
            are not known better than that. `lower_bound_us` tells the gap that is left.
        max_states: the bound that `blocks.partition` keeps.

    Equal costs give equal schedules: among the shortest paths, one with the fewest stages, then the one whose later
    stages hold the lower operators.

    Complexity: O(T) for each pass over the T <= C(n/d + 2, 2)^d transitions of a block of n operators and width d
    (MLSys 2021, theorem 1), and a pass for each round of measurements; memory O(T).

    Raises:
        ValueError: the strategy is unknown, `bound_slack` is not positive, or the cost model answers with NaN or a
            negative latency.
        ExecutionError: the device can run no schedule at all.
    """
    if strategy not in ("concurrent", "merge", "both"):
        raise ValueError(f"unknown strategy {strategy!r}")
    if not bound_slack > 0:
        raise ValueError(f"bound_slack must be positive, not {bound_slack}")
    parts = partition(graph, max_states)
    settings = _Settings(graph, cost, strategy, pruning, exhaustive, bound_slack, tolerance)
    guide = _Guide(observer or _Silence(), deadline or (lambda: False), len(parts))
    cache: dict[Relation, Lattice] = {}
    found = [_search_block(settings, guide, index, part, cache) for index, part in enumerate(parts)]
    return SearchResult(
        Schedule(tuple(block.block for block in found)),
        states=sum(block.states for block in found),
        transitions=sum(block.transitions for block in found),
        stages=sum(block.stages for block in found),
        measured=sum(block.measured for block in found),
        lower_bound_us=sum(block.lower_bound_us for block in found),
    )


@dataclass(frozen=True)
class _Settings:
    graph: ComputationGraph
    cost: CostModel
    strategy: SearchStrategy
    pruning: Pruning
    exhaustive: bool
    bound_slack: float
    tolerance: float


@dataclass(frozen=True)
class _Guide:
    observer: SearchObserver
    deadline: Deadline
    n_blocks: int


@dataclass(frozen=True)
class _Found:
    block: Block
    states: int
    transitions: int
    stages: int
    measured: int
    lower_bound_us: float


class _Silence:
    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        pass

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        pass

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        pass


def _search_block(settings: _Settings, guide: _Guide, index: int, part: Part, cache: dict[Relation, Lattice]) -> _Found:
    order = lattices.relation(settings.graph, part.operators)
    classes = _merge_masks(settings, part)
    lattice = _lattice(settings, order, classes, cache)
    latencies = KnownLatencies.start(
        settings.cost, part.operators, lattice, classes, settings.strategy, settings.bound_slack
    )
    guide.observer.block_started(index, guide.n_blocks, len(lattice.stages))
    proven = _measure(settings, guide, index, lattice, latencies)
    block, bound = _conclude(part, index, lattice, latencies, proven)
    guide.observer.block_finished(index, guide.n_blocks, block)
    sizes = len(lattice.states) - 1, len(lattice.sources), len(lattice.stages)
    return _Found(block, *sizes, latencies.n_measured, bound)


def _merge_masks(settings: _Settings, part: Part) -> tuple[int, ...]:
    if settings.strategy == "concurrent":
        return ()
    bit = {name: 1 << position for position, name in enumerate(part.operators)}
    return tuple(sum(bit[name] for name in names) for names in merge.merge_classes(settings.graph, part.operators))


def _lattice(settings: _Settings, order: Relation, classes: tuple[int, ...], cache: dict[Relation, Lattice]) -> Lattice:
    if settings.strategy == "merge":
        return lattices.build(order, settings.pruning, only=classes)
    # Cells repeat: blocks of one shape share their lattice.
    if order not in cache:
        cache[order] = lattices.build(order, settings.pruning)
    return cache[order]


def _measure(settings: _Settings, guide: _Guide, index: int, lattice: Lattice, latencies: KnownLatencies) -> bool:
    """Measures until the shortest path is known, or the deadline; returns whether it is proven."""
    for wanted in _wanted(settings, lattice, latencies):
        for remaining, stage in zip(range(len(wanted) - 1, -1, -1), wanted, strict=True):
            if guide.deadline():
                return False
            latencies.measure(stage)
            guide.observer.stage_measured(index, latencies.n_measured, remaining)
    return True


def _wanted(settings: _Settings, lattice: Lattice, latencies: KnownLatencies) -> Iterator[list[int]]:
    """What to measure next, round by round, as positions in `lattice.stages`.

    Operators alone come first: they make the sequential schedule, which a deadline falls back to.
    """
    yield latencies.missing(latencies.single_operators())
    if settings.exhaustive or not latencies.informative:
        yield latencies.missing(list(range(len(lattice.stages))))
        return
    yield from _along_shortest_paths(lattice, latencies, settings.tolerance)


def _along_shortest_paths(lattice: Lattice, latencies: KnownLatencies, tolerance: float) -> Iterator[list[int]]:
    """LazySP: ends when no schedule can be better, beyond `tolerance`, than the best one that is all measured."""
    for rounds in count():
        bounds, known = latencies.bounds_us(), latencies.known_us()
        reached, best = distances(lattice, bounds), bound_us(lattice, known)
        if reached[-1] >= best * (1 - tolerance):
            return
        missing = latencies.missing(some_shortest_path(lattice, bounds, reached))
        if not missing:
            return
        yield latencies.groups_first(missing)
        if rounds % _ROUNDS_BETWEEN_TRIMS == 0:
            lattice = within(lattice, bounds, reached, best)


def _conclude(part: Part, index: int, lattice: Lattice, latencies: KnownLatencies, proven: bool) -> tuple[Block, float]:
    weights = latencies.known_us()
    total = bound_us(lattice, weights)
    lower = total if proven else bound_us(lattice, latencies.bounds_us())
    if math.isfinite(total):
        path = shortest_path(lattice, weights)
        stages = tuple(latencies.stage(position) for position in path)
        return Block(index, stages, part.optimal and (proven or lower >= total)), lower
    if proven:
        raise ExecutionError(f"the device cannot run block {index}, {part.operators[0]!r} to {part.operators[-1]!r}")
    alone = tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in part.operators)
    known = tuple(replace(stage, predicted_us=latencies.operator_us(position)) for position, stage in enumerate(alone))
    return Block(index, known, optimal=False), lower
