"""The exact size of a block's search before it is made: the columns of the thesis's table 3.1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from iosched.models.graph import ComputationGraph
from iosched.scheduler import lattice as lattices
from iosched.scheduler.equivalence import BlockKey, block_key, stage_classes
from iosched.scheduler.lattice import Lattice, Relation, bits
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.signature import default_label


@dataclass(frozen=True)
class Counts:
    """The size of the search of one block with strategy `concurrent`.

    Attributes:
        width: the most operators of which no two are connected by a path.
        upper_bound: C(n/d + 2, 2)^d, an upper bound of the transitions (MLSys 2021, theorem 1).
        pruned_growth: (n/d + 1)^d (r + 1)^s, the growth of the transitions under pruning (thesis, section 3.4), without
            a constant and so no bound. None unless r and s are limited.
        states: down-sets without the empty one.
        transitions: pairs of a state and one of its endings.
        signatures: stages of different cost, each measured once.
    """

    operators: int
    width: int
    upper_bound: float
    pruned_growth: float | None
    states: int
    transitions: int
    schedules: int
    stages: int
    signatures: int


def count_blocks(
    graph: ComputationGraph, blocks: Sequence[Sequence[str]], pruning: Pruning, *, single_source: bool = False
) -> Iterator[Counts]:
    """The counts of each block; blocks that are equal except for names are counted once."""
    label = default_label(graph)
    known: dict[BlockKey, Counts] = {}
    for operators in blocks:
        key = block_key(graph, operators, {name: label(graph.by_name[name]) for name in operators})
        if key not in known:
            known[key] = count(graph, operators, pruning, single_source=single_source)
        yield known[key]


def count(
    graph: ComputationGraph, operators: Sequence[str], pruning: Pruning, *, single_source: bool = False
) -> Counts:
    """Exact counts of states, transitions, schedules and stages of the block of these operators.

    With `single_source`, only the endings that the thesis's code enumerated count: each group has one operator that
    reads none of the others. Without pruning, this gives table 3.1 as printed; it misses legal endings. Complexity:
    that of `lattice.build`, and one signature for each distinct stage.
    """
    order = lattices.relation(graph, operators)
    lattice = lattices.build(order, pruning, single_source=single_source)
    d = width(order)
    return Counts(
        operators=len(operators),
        width=d,
        upper_bound=upper_bound(len(order), d),
        pruned_growth=pruned_growth(len(order), d, pruning),
        states=len(lattice.states) - 1,
        transitions=len(lattice.sources),
        schedules=count_schedules(lattice),
        stages=len(lattice.stages),
        signatures=count_signatures(graph, operators, lattice),
    )


def upper_bound(n: int, d: int) -> float:
    """C(n/d + 2, 2)^d for n operators of width d; n/d need not be whole."""
    return ((n / d + 2) * (n / d + 1) / 2) ** d


def pruned_growth(n: int, d: int, pruning: Pruning) -> float | None:
    """(n/d + 1)^d (r + 1)^s for n operators of width d; None without r or s, infinite beyond floats."""
    if pruning.r is None or pruning.s is None:
        return None
    try:
        return (n / d + 1) ** d * float(pruning.r + 1) ** pruning.s
    except OverflowError:
        return math.inf


def width(order: Relation) -> int:
    """The largest antichain: n minus a maximum matching of comparable pairs (Dilworth's theorem)."""
    ancestors: list[int] = []
    for before in order.predecessors:
        ancestors.append(before)
        for other in bits(before):
            ancestors[-1] |= ancestors[other]
    matched: dict[int, int] = {}
    return len(order) - sum(_augment(index, ancestors, matched) for index in range(len(order)))


def _augment(start: int, ancestors: Sequence[int], matched: dict[int, int]) -> bool:
    """Finds an augmenting path for `start`, breadth first, and flips it."""
    came_from: dict[int, int] = {}
    pending = [start]
    for index in pending:
        for other in bits(ancestors[index]):
            if other in came_from:
                continue
            came_from[other] = index
            if other in matched:
                pending.append(matched[other])
                continue
            _flip(other, start, came_from, matched)
            return True
    return False


def _flip(end: int, start: int, came_from: dict[int, int], matched: dict[int, int]) -> None:
    partner_of = {index: other for other, index in matched.items()}
    while True:
        index = came_from[end]
        matched[end] = index
        if index == start:
            return
        end = partner_of[index]


def count_schedules(lattice: Lattice) -> int:
    """Number of paths from the empty state to the block, one for each schedule; exact."""
    ways = np.zeros(len(lattice.states), dtype=object)
    ways[0] = 1
    for first, last in pairwise(lattice.levels[1:].tolist()):
        begin, end = lattice.offsets[first], lattice.offsets[last]
        ways[first:last] = np.add.reduceat(ways[lattice.sources[begin:end]], lattice.offsets[first:last] - begin)
    return int(ways[-1])


def count_signatures(graph: ComputationGraph, operators: Sequence[str], lattice: Lattice) -> int:
    """Number of different signatures of the block's stages."""
    plain = default_label(graph)
    labels = {name: plain(graph.by_name[name]) for name in operators}
    return int(stage_classes(graph, operators, lattice, labels).max(initial=-1)) + 1
