"""A beam search over the lattice of down-sets of operators that are too many to be searched as one block.

Where the exact search has to cut the graph, its stages keep to the cuts. The beam does not: from the empty state on, it
keeps the few most promising states of each size, and goes on from each of them with a few stages of operators that are
ready. It prefers operators at which the longest paths to the end begin. Nothing is proven: the schedule that the beam
finds is measured before it is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from iosched.models.graph import ComputationGraph
from iosched.scheduler.lattice import Relation, bits, relation
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy

MAX_OPERATORS = 400
"""The most operators that are searched: the time grows with their square."""

_KEPT = 6  # states of each size
_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # groups of the stages that are tried, beside all that is ready

Estimate = Callable[[Stage], float]


@dataclass(frozen=True)
class _Partial:
    """Stages that lead to a state, the newest first, as a linked list.

    Attributes:
        total_us: estimated latency of the stages.
        alone_us: estimated latency of their operators one after another.
        stage: the newest stage; None for the empty state.
        before: the stages before it.
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
    """Stages of all operators `names` that take little by `estimate_us`; None where there are too many operators.

    The same estimates give the same stages. O(operators^2) stages are estimated at most, with small factors.
    """
    if len(names) > MAX_OPERATORS:
        return None
    subgraph = _Subgraph(graph, tuple(names), pruning, estimate_us)
    levels: list[dict[int, _Partial]] = [{} for _ in range(len(names) + 1)]
    levels[0][0] = _Partial(0.0, 0.0)
    for level in levels[:-1]:
        # States of one size hold different operators: half of what these take alone is taken off to compare them.
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
        """The edges between the operators, which may be more than a lattice takes."""
        return relation(self.graph, self.names)

    @cached_property
    def alone_us(self) -> tuple[float, ...]:
        """Estimated latency of each operator in a stage of its own."""
        return tuple(self.estimate_us(Stage(Strategy.CONCURRENT, ((name,),))) for name in self.names)

    @cached_property
    def ahead_us(self) -> tuple[float, ...]:
        """Estimated latency of the longest path from each operator to the end, itself included."""
        found = [0.0] * len(self.names)
        for index in reversed(range(len(self.names))):
            found[index] = self.alone_us[index] + max(
                (found[other] for other in bits(self.order.successors[index])), default=0.0
            )
        return tuple(found)

    def next_stages(self, state: int) -> dict[int, Stage]:
        """Stages to try after this state, by their masks: ready operators, each with others that wait for it alone."""
        waiting = self.order.full & ~state
        ready = [index for index in bits(waiting) if not self.order.predecessors[index] & ~state]
        ready.sort(key=lambda index: (-self.ahead_us[index], index))
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
        """A group: the operator, and others one after another that wait for these alone.

        Two such groups of one state have no operator and no edge in common.
        """
        predecessors, successors = self.order.predecessors, self.order.successors
        chain, inside = [index], 1 << index
        while len(chain) < length:
            done = state | inside
            after = [other for other in bits(successors[chain[-1]]) if not predecessors[other] & ~done]
            if not after:
                break
            chain.append(max(after, key=lambda other: (self.ahead_us[other], -other)))
            inside |= 1 << chain[-1]
        return chain
