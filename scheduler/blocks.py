"""Partitions a computation graph into blocks that are scheduled independently (thesis, section 3.2).

A block ends with a cut vertex: an operator that all later operators depend on, while no other result crosses the cut.
Neighbouring blocks of one operator are joined into chains. A block with too many states is cut at the narrowest
down-sets, where the fewest results cross, as between the cells of NASNet. If that isolates one of several long towers,
all towers are cut at the same depths instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from iosched.models.graph import ComputationGraph
from iosched.scheduler.baselines import ready_sets
from iosched.scheduler.lattice import count_fitting

MAX_STATES = 8_000
_WIDE_STATES = 1_000
_CHAIN = 32  # operators in a chain block: searching longer chains at once gains nothing
_GATHERS = frozenset({"Add", "Concat", "Identity", "Sum"})  # types that only gather results of a block
_NARROW = 2  # results that cross the cut between two cells; wider cuts take concurrency away
_SHALLOWER = 0.75  # of the depth of all blocks: then towers are cut across


@dataclass(frozen=True)
class BlockOperators:
    """The operators of one block, in topological order.

    `narrow` is False if the block was cut out of a wider one, so that operators that could run concurrently are in
    different blocks. Whether a narrow cut loses nothing is proven separately (`scheduler/proof.py`).
    """

    operators: tuple[str, ...]
    narrow: bool = True


def partition(graph: ComputationGraph, max_states: int = MAX_STATES) -> tuple[BlockOperators, ...]:
    """Every operator in exactly one block; the first k blocks form a down-set for every k.

    A block has at most `max_states` states (a single operator has two) and 63 operators. Time O(operators + edges) on
    chains, at most O(operators * max_states). Raises a ValueError if `max_states` is less than 2.
    """
    if max_states < 2:
        raise ValueError(f"max_states must be at least 2, not {max_states}")
    order = _narrower_order(graph)
    cuts = _Cuts.of(order)
    parts: list[BlockOperators] = []
    gathers = [graph.by_name[name].type in _GATHERS for name in order.names]
    for first, last in _join_chains(cuts.segments(), gathers):
        parts.extend(_shallower(order, cuts, first, last, max_states))
    rank = {operator.name: index for index, operator in enumerate(graph.operators)}
    return tuple(BlockOperators(tuple(sorted(part.operators, key=rank.__getitem__)), part.narrow) for part in parts)


@dataclass(frozen=True)
class _Order:
    names: tuple[str, ...]
    predecessors: tuple[tuple[int, ...], ...]
    starts: tuple[bool, ...]  # whether it reads only graph inputs

    @classmethod
    def of(cls, graph: ComputationGraph, names: Sequence[str]) -> _Order:
        rank = {name: position for position, name in enumerate(names)}
        before = tuple(tuple(rank[other] for other in graph.predecessors[name]) for name in names)
        starts = tuple(
            bool(graph.by_name[name].inputs) and not found for name, found in zip(names, before, strict=True)
        )
        return cls(tuple(names), before, starts)

    @cached_property
    def position(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def part(self, positions: Sequence[int]) -> _Order:
        """Some of the operators in another topological order; results of other operators count as graph inputs."""
        rank = {position: index for index, position in enumerate(positions)}
        before = tuple(
            tuple(rank[other] for other in self.predecessors[position] if other in rank) for position in positions
        )
        starts = tuple(
            not found and (self.starts[position] or bool(self.predecessors[position]))
            for position, found in zip(positions, before, strict=True)
        )
        return _Order(tuple(self.names[position] for position in positions), before, starts)


@dataclass(frozen=True)
class _Cuts:
    """Facts about the cut after each position of an order.

    `width` and `edges` count results and edges that cross it, `vertex` whether the operator is a cut vertex, `dead_end`
    whether nothing reads it. `last_start` is the position of the last operator that reads only graph inputs.
    """

    width: tuple[int, ...]
    edges: tuple[int, ...]
    vertex: tuple[bool, ...]
    dead_end: tuple[bool, ...]
    last_start: int

    @classmethod
    def of(cls, order: _Order) -> _Cuts:
        n = len(order.names)
        last_read = [-1] * n
        width, edges = [0] * (n + 1), [0] * (n + 1)
        for position, before in enumerate(order.predecessors):
            for other in before:
                last_read[other] = position
                edges[other] += 1
                edges[position] -= 1
        for position, end in enumerate(last_read):
            if end >= 0:
                width[position] += 1
                width[end] -= 1
        last_start = max((position for position, starts in enumerate(order.starts) if starts), default=-1)
        for position in range(1, n):
            width[position] += width[position - 1]
            edges[position] += edges[position - 1]
        # The graph's inputs count as one result that crosses cuts before the last operator that reads only inputs.
        for position in range(last_start):
            width[position] += 1
        vertex = (width[position] == 1 and last_read[position] > position for position in range(n))
        return cls(tuple(width[:n]), tuple(edges[:n]), tuple(vertex), tuple(end < 0 for end in last_read), last_start)

    def is_narrow(self, first: int, end: int) -> bool:
        """Whether a block that starts at `first` may end before `end` with little loss.

        An operator without readers could run concurrently with all later ones, and one that reads no operator with all
        earlier ones.
        """
        overlaps = any(self.dead_end[first:end]) or end <= self.last_start
        return self.width[end - 1] <= _NARROW and not overlaps

    def segments(self) -> Iterator[tuple[int, int]]:
        """Half-open ranges of positions, each ended by a cut vertex or the last operator.

        A branch that ends in an output can overlap with later operators, so its block gets twice its length.
        """
        first = least_end = 0
        for position, is_vertex in enumerate(self.vertex):
            if self.dead_end[position]:
                least_end = max(least_end, 2 * position - first + 1)
            if (is_vertex and position >= least_end) or position + 1 == len(self.vertex):
                yield first, position + 1
                first = position + 1


def _join_chains(segments: Iterator[tuple[int, int]], gathers: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Joins neighbouring segments of one operator, so that a stem or a classifier is one block.

    An operator that only gathers results of the block before it belongs to that block.
    """
    start, end, chain = 0, 0, True
    for first, last in segments:
        single = last - first == 1
        joins = end - start < _CHAIN if chain else gathers[first]
        if single and joins:
            end = last
            continue
        if start < end:
            yield start, end
        start, end, chain = first, last, single
    if start < end:
        yield start, end


def _shallower(order: _Order, cuts: _Cuts, first: int, last: int, max_states: int) -> list[BlockOperators]:
    """The blocks of a segment: in the given order, or level by level if that makes the sum of their depths far lower.

    Blocks run one after another, so towers that follow each other in the order would not run concurrently.
    """
    parts = list(_split(order, cuts, first, last, max_states))
    if len(parts) == 1:
        return parts
    levels = ready_sets(range(first, last), order.predecessors.__getitem__)
    by_level = [position for level in levels for position in level]
    side = order.part(by_level)
    found = list(_split(side, _Cuts.of(side), 0, last - first, max_states))
    depth, side_depth = (sum(_depth(order, part) for part in some) for some in (parts, found))
    if side_depth >= _SHALLOWER * depth:
        return parts
    return [replace(part, narrow=False) for part in found]  # the end of a branch could overlap with later levels


def _depth(order: _Order, part: BlockOperators) -> int:
    positions = sorted(order.position[name] for name in part.operators)
    return len(ready_sets(positions, order.predecessors.__getitem__))


def _split(order: _Order, cuts: _Cuts, first: int, last: int, max_states: int) -> Iterator[BlockOperators]:
    whole = True
    while first < last:
        reach = _reach(order, first, last, max_states)
        end = last if reach == last else _narrowest(order, cuts, first, reach, last)
        narrow = end == last or cuts.is_narrow(first, end) or _is_waist(order, end - 1, first, last)
        if not narrow:
            # The result is not provable anyway, so a large block is not searched for long.
            end = _narrowest(order, cuts, first, _reach(order, first, last, min(max_states, _WIDE_STATES)), last)
        yield BlockOperators(order.names[first:end], whole and narrow)
        first, whole = end, narrow


def _reach(order: _Order, first: int, last: int, max_states: int) -> int:
    """The furthest end of a block that starts at `first` and stays under the bound; at least one operator."""
    masks = (
        sum(1 << (other - first) for other in order.predecessors[position] if other >= first)
        for position in range(first, last)
    )
    return first + count_fitting(masks, max_states)


def _narrowest(order: _Order, cuts: _Cuts, first: int, reach: int, last: int) -> int:

    def key(end: int) -> tuple[int, int, int]:
        width = 1 if _is_waist(order, end - 1, first, last) else cuts.width[end - 1]
        return width, cuts.edges[end - 1], -end

    return min(range(first + (reach - first + 1) // 2, reach + 1), key=key)


def _is_waist(order: _Order, position: int, first: int, last: int) -> bool:
    """Whether all of the segment before `position` leads to it and all after it depends on it.

    Such an operator runs alone, so a cut after it costs no concurrency.
    """
    ancestors = {position}
    for other in range(position, first - 1, -1):
        if other not in ancestors:
            return False
        ancestors.update(before for before in order.predecessors[other] if before >= first)
    descendants = {position}
    for other in range(position + 1, last):
        if not descendants.intersection(order.predecessors[other]):
            return False
        descendants.add(other)
    return True


def _narrower_order(graph: ComputationGraph) -> _Order:
    """The given order, or depth first from the outputs if that keeps fewer results waiting."""
    given = _Order.of(graph, [operator.name for operator in graph.operators])
    deep = _Order.of(graph, _depth_first(graph))
    return deep if sum(_Cuts.of(deep).width) < sum(_Cuts.of(given).width) else given


def _depth_first(graph: ComputationGraph) -> list[str]:
    """Topological order that computes an operator's inputs one after another, each as late as possible."""
    done: dict[str, None] = {}
    for operator in graph.operators:
        if graph.successors[operator.name]:
            continue
        pending = [operator.name]
        while pending:
            missing = [name for name in graph.predecessors[pending[-1]] if name not in done]
            if missing:
                pending.append(missing[0])
            else:
                done.setdefault(pending.pop())
    return list(done)
