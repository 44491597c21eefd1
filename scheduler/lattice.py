"""States, endings and transitions of a block, as bit masks (thesis, section 3.3).

Operator `i` of a block, in topological order, is bit `i`. A state is a down-set. A transition (S, S') removes the
ending S' from the state S, so that S - S' is a state again: transitions are the pairs of nested down-sets. With n
operators and width d there are at most C(n/d + 2, 2)^d of them (Ding et al., "IOS: Inter-Operator Scheduler for CNN
Acceleration", MLSys 2021, theorem 1).

Group sizes are checked on the whole ending, since adding an operator may join two groups. Masks are uint64, so a block
has at most 63 operators; `blocks.partition` ensures this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from iosched.models.graph import ComputationGraph
from iosched.scheduler.pruning import NO_PRUNING, Pruning

Masks = NDArray[np.uint64]
Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]
Latencies = NDArray[np.float64]

MAX_OPERATORS = 63
_CHUNK = 1 << 22  # pairs of states compared at once: 32 MiB
_BITS_OF_BYTE = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


@dataclass(frozen=True)
class Relation:
    """The edges inside a block; `predecessors[i]` is the mask of the operators whose outputs operator `i` reads."""

    predecessors: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.predecessors)

    @property
    def full(self) -> int:
        """The state with every operator."""
        return (1 << len(self)) - 1

    @cached_property
    def successors(self) -> tuple[int, ...]:
        """For every operator, the mask of its readers."""
        found = [0] * len(self)
        for index, before in enumerate(self.predecessors):
            for other in bits(before):
                found[other] |= 1 << index
        return tuple(found)

    @cached_property
    def neighbours(self) -> tuple[int, ...]:
        """For every operator, the mask of its predecessors and successors."""
        return tuple(before | after for before, after in zip(self.predecessors, self.successors, strict=True))

    def groups(self, mask: int) -> tuple[int, ...]:
        """Weakly connected components of the operators in `mask`, in the order of their first operators."""
        neighbours, found = self.neighbours, []
        while mask:
            group = frontier = mask & -mask
            while frontier:
                reached = 0
                for index in bits(frontier):
                    reached |= neighbours[index]
                frontier = reached & mask & ~group
                group |= frontier
            found.append(group)
            mask &= ~group
        return tuple(found)


def bits(mask: int) -> Iterator[int]:
    """Positions of the set bits, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def relation(graph: ComputationGraph, names: Sequence[str]) -> Relation:
    """The edges of `graph` between the operators `names`, given in topological order."""
    index = {name: position for position, name in enumerate(names)}
    return Relation(
        tuple(sum(1 << index[before] for before in graph.predecessors[name] if before in index) for name in names)
    )


def in_order(graph: ComputationGraph, names: Iterable[str]) -> tuple[str, ...]:
    """The operators `names` in topological order; O(operators of the graph)."""
    wanted = frozenset(names)
    return tuple(operator.name for operator in graph.operators if operator.name in wanted)


def count_fitting(predecessors: Iterable[int], max_states: int) -> int:
    """Number of operators, from the first on, that fit into a block of at most `max_states` states; at least one.

    `predecessors` are masks in topological order. Stops counting at the limit: O(operators * max_states).
    """
    states, count = np.zeros(1, dtype=np.uint64), 0
    for before in islice(predecessors, MAX_OPERATORS):
        grown = _with_operator(states, count, before)
        if len(grown) > max_states and count:
            break
        states = grown
        count += 1
    return count


def _with_operator(states: Masks, index: int, before: int) -> Masks:
    """The states after adding an operator, which needs its predecessors `before`."""
    needed = np.uint64(before)
    ready = states[(states & needed) == needed]
    return np.concatenate([states, ready | np.uint64(1 << index)])


def popcount(masks: Masks) -> Indices:
    """Number of set bits of each mask."""
    as_bytes = np.ascontiguousarray(masks).view(np.uint8).reshape(-1, 8)
    counts: Indices = _BITS_OF_BYTE[as_bytes].sum(axis=1, dtype=np.int64)
    return counts


def down_sets(order: Relation) -> Masks:
    """All states of a block, the empty one first, by number of operators and then by mask.

    In topological order, the newest operator can be added to exactly the states with its predecessors. Time O(n *
    states).
    """
    states = np.zeros(1, dtype=np.uint64)
    for index, before in enumerate(order.predecessors):
        states = _with_operator(states, index, before)
    return states[np.lexsort((states, popcount(states)))]


def components(masks: Masks, order: Relation, *, largest: int | None = None) -> Iterator[tuple[Indices, Masks]]:
    """The groups of each mask, in rounds: the k-th round yields every mask's k-th group.

    Yields (indices into `masks`, group masks). With `largest`, a mask drops out at its first group of more operators.
    """
    tables = _neighbour_tables(order)
    alive: Indices = np.arange(len(masks), dtype=np.int64)
    rest = masks.copy()
    while len(alive):
        lowest = rest & (~rest + np.uint64(1))
        group = _flood(lowest, rest, tables, MAX_OPERATORS if largest is None else largest)
        if largest is not None:
            fits = popcount(group) <= largest
            alive, rest, group = alive[fits], rest[fits], group[fits]
        yield alive, group
        rest = rest & ~group
        more = rest != 0
        alive, rest = alive[more], rest[more]


def _neighbour_tables(order: Relation) -> list[Masks]:
    """For each byte of a mask, the union of the neighbours of its operators, for all 256 values of the byte."""
    neighbours = [*order.neighbours, *[0] * (-len(order) % 8)]
    tables = []
    for start in range(0, len(neighbours), 8):
        table = np.zeros(256, dtype=np.uint64)
        for bit in range(8):
            table[1 << bit : 2 << bit] = table[: 1 << bit] | np.uint64(neighbours[start + bit])
        tables.append(table)
    return tables


def _flood(seeds: Masks, inside: Masks, tables: list[Masks], steps: int) -> Masks:
    """The groups of `seeds`, or a part of more than `steps` operators of larger ones."""
    group = seeds
    active: Indices = np.arange(len(seeds), dtype=np.int64)
    for _ in range(steps):
        if not len(active):
            break
        current = group[active]
        reached = current.copy()
        for table, byte in zip(tables, current.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8).T, strict=False):
            reached |= table[byte]
        reached &= inside[active]
        group[active] = reached
        active = active[reached != current]
    return group


def legal(masks: Masks, order: Relation, pruning: Pruning) -> Flags:
    """Which endings satisfy `pruning`, decided on their complete groups."""
    if pruning == NO_PRUNING:
        return np.ones(len(masks), dtype=np.bool_)
    grouped = np.zeros(len(masks), dtype=np.uint64)
    n_groups = np.zeros(len(masks), dtype=np.int64)
    for where, group in components(masks, order, largest=pruning.r):
        grouped[where] |= group
        n_groups[where] += 1
    kept: Flags = grouped == masks
    return kept if pruning.s is None else kept & (n_groups <= pruning.s)


@dataclass(frozen=True, eq=False)
class Lattice:
    """The states of a block and the transitions between them.

    Attributes:
        states: (S,) down-sets by number of operators, then by mask; the first is empty, the last is the block.
        levels: (L + 1,) `states[levels[k]:levels[k + 1]]` have k operators.
        offsets: (S + 1,) the transitions of state b are `offsets[b]:offsets[b + 1]`; none for the empty state.
        sources: (T,) index of the state S - S' that a transition leads back to.
        endings: (T,) index into `stages` of the ending S'.
        stages: (M,) distinct endings, ascending.
    """

    order: Relation
    states: Masks
    levels: Indices
    offsets: Indices
    sources: NDArray[np.int32]
    endings: NDArray[np.int32]
    stages: Masks

    @cached_property
    def groups(self) -> tuple[tuple[Indices, Masks], ...]:
        """The k-th element has the k-th group of each stage that has one: positions in `stages`, and masks."""
        return tuple(components(self.stages, self.order))


def build(
    order: Relation, pruning: Pruning, only: Sequence[int] | None = None, *, single_source: bool = False
) -> Lattice:
    """The lattice of a block.

    Args:
        only: if given, stages are single operators and subsets of these masks.
        single_source: omits stages with a group of several sources, as in the thesis's table 3.1.

    Complexity: O(S^2 / 2) word operations to find the T <= C(n/d + 2, 2)^d transitions (MLSys 2021, theorem 1), and
    O(T log T) to number the distinct stages. Memory: about 50 bytes a transition before pruning.

    Raises:
        ValueError: the block has more than 63 operators.
    """
    if len(order) > MAX_OPERATORS:
        raise ValueError(f"a block has at most {MAX_OPERATORS} operators, not {len(order)}")
    states = down_sets(order)
    levels = np.searchsorted(popcount(states), np.arange(len(order) + 2)).astype(np.int64)
    sources, targets, masks = _nested(states, levels, _largest_stage(pruning))
    stages, endings = np.unique(masks, return_inverse=True)
    kept = legal(stages, order, pruning)
    if only is not None:
        kept &= _within(stages, only)
    if single_source:
        kept &= _have_single_sources(stages, order)
    chosen = kept[endings]
    renumber = np.cumsum(kept) - 1
    offsets = np.searchsorted(targets[chosen], np.arange(len(states) + 1)).astype(np.int64)
    renumbered: NDArray[np.int32] = renumber[endings[chosen]].astype(np.int32)
    return Lattice(order, states, levels, offsets, sources[chosen], renumbered, stages[kept])


def _largest_stage(pruning: Pruning) -> int:
    return MAX_OPERATORS if pruning.r is None or pruning.s is None else min(pruning.r * pruning.s, MAX_OPERATORS)


def _within(stages: Masks, only: Sequence[int]) -> Flags:
    found: Flags = popcount(stages) == 1
    for mask in only:
        found |= (stages & ~np.uint64(mask)) == 0
    return found


def _have_single_sources(stages: Masks, order: Relation) -> Flags:
    sources = np.zeros(len(stages), dtype=np.uint64)
    for index, before in enumerate(order.predecessors):
        bit = np.uint64(1 << index)
        sources[(stages & bit != 0) & (stages & np.uint64(before) == 0)] |= bit
    found = np.ones(len(stages), dtype=np.bool_)
    for where, group in components(stages, order):
        found[where] &= popcount(sources[where] & group) == 1
    return found


def _nested(states: Masks, levels: Indices, window: int) -> tuple[NDArray[np.int32], NDArray[np.int32], Masks]:
    """All pairs of nested states that differ by at most `window` operators: (smaller, larger, difference)."""
    sources, targets, masks = [], [], []
    for size in range(1, len(levels) - 1):
        first, last = int(levels[max(0, size - window)]), int(levels[size])
        smaller = states[first:last]
        step = max(1, _CHUNK // len(smaller))
        for start in range(int(levels[size]), int(levels[size + 1]), step):
            larger = states[start : min(start + step, int(levels[size + 1]))]
            row, column = np.nonzero((smaller[None, :] & ~larger[:, None]) == 0)
            targets.append((row + start).astype(np.int32))
            sources.append((column + first).astype(np.int32))
            masks.append(larger[row] ^ smaller[column])
    if not masks:
        nothing = np.zeros(0, dtype=np.int32)
        return nothing, nothing, np.zeros(0, dtype=np.uint64)
    return np.concatenate(sources), np.concatenate(targets), np.concatenate(masks)
