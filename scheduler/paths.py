"""Shortest paths over the lattice of states, for weights that change between passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iosched.scheduler.lattice import Latencies, Lattice, popcount


def distances(lattice: Lattice, weights_us: Latencies) -> Latencies:
    """Least total latency of each state from the empty one; `weights_us` has one weight for each stage.

    The thesis's equation cost[S] = min over endings S' of cost[S - S'] + latency[S'], level by level. O(T) vectorised.
    """
    reached = np.full(len(lattice.states), np.inf)
    reached[0] = 0.0
    latency = weights_us[lattice.endings]
    for first, last in zip(lattice.levels[1:-1], lattice.levels[2:], strict=True):
        if first == last:
            continue
        begin, end = lattice.offsets[first], lattice.offsets[last]
        candidates = reached[lattice.sources[begin:end]] + latency[begin:end]
        reached[first:last] = np.minimum.reduceat(candidates, lattice.offsets[first:last] - begin)
    return reached


def bound_us(lattice: Lattice, weights_us: Latencies) -> float:
    """Latency of the block's best schedule under these weights; infinite if there is none."""
    return float(distances(lattice, weights_us)[-1])


def some_shortest_path(lattice: Lattice, weights_us: Latencies, reached: Latencies) -> list[int]:
    """Stages of one shortest path, from `distances`; ties favour the largest last stage."""
    path, state = [], len(lattice.states) - 1
    while state:
        begin, end = int(lattice.offsets[state]), int(lattice.offsets[state + 1])
        totals = reached[lattice.sources[begin:end]] + weights_us[lattice.endings[begin:end]]
        edge = begin + int(np.argmin(totals))
        path.append(int(lattice.endings[edge]))
        state = int(lattice.sources[edge])
    return path[::-1]


def through_us(lattice: Lattice, weights_us: Latencies) -> Latencies:
    """For each stage the latency of the best schedule with it; infinite if there is none. O(T) vectorised."""
    targets = np.repeat(np.arange(len(lattice.states)), np.diff(lattice.offsets))
    latency = weights_us[lattice.endings]
    reached, left = distances(lattice, weights_us), _distances_to_end(lattice, latency, targets)
    least = np.full(len(lattice.stages), np.inf)
    np.minimum.at(least, lattice.endings, reached[lattice.sources] + latency + left[targets])
    return least


def within(lattice: Lattice, weights_us: Latencies, reached: Latencies, limit_us: float) -> Lattice:
    """The lattice without transitions on no schedule of at most `limit_us`; stages keep their numbers.

    Lower bounds only rise and the best known schedule only improves, so dropped transitions stay out.
    """
    targets = np.repeat(np.arange(len(lattice.states)), np.diff(lattice.offsets))
    latency = weights_us[lattice.endings]
    left = _distances_to_end(lattice, latency, targets)
    through = reached[lattice.sources] + latency + left[targets]
    # A little room, since sums in another order differ in the last bits.
    edges = np.flatnonzero(through <= limit_us * (1 + 1e-9))
    states = np.unique(np.append(targets[edges], 0))
    levels = np.searchsorted(popcount(lattice.states[states]), np.arange(len(lattice.levels))).astype(np.int64)
    new_targets = np.searchsorted(states, targets[edges])
    offsets = np.searchsorted(new_targets, np.arange(len(states) + 1)).astype(np.int64)
    sources: NDArray[np.int32] = np.searchsorted(states, lattice.sources[edges]).astype(np.int32)
    return replace(
        lattice,
        states=lattice.states[states],
        levels=levels,
        offsets=offsets,
        sources=sources,
        endings=lattice.endings[edges],
    )


def _distances_to_end(lattice: Lattice, latency: Latencies, targets: NDArray[np.int64]) -> Latencies:
    """Least total latency from each state to the whole block; transitions are taken by source, level by level."""
    by_source = np.argsort(lattice.sources, kind="stable")
    sources = lattice.sources[by_source]
    left = np.full(len(lattice.states), np.inf)
    left[-1] = 0.0
    for first, last in zip(lattice.levels[-3::-1], lattice.levels[-2::-1], strict=False):
        begin, end = np.searchsorted(sources, (first, last))
        edges = by_source[begin:end]
        np.minimum.at(left, sources[begin:end], left[targets[edges]] + latency[edges])
    return left


def shortest_path(lattice: Lattice, weights_us: Latencies) -> list[int]:
    """Positions in `lattice.stages` of the best schedule's stages, first stage first.

    Ties are broken by the number of stages, then by the masks of the stages, last stage first: the lower wins.
    """
    reached = distances(lattice, weights_us)
    tight = _tight_transitions(lattice, weights_us, reached)
    length = {0: 0}
    chosen: dict[int, int] = {}
    for state in sorted(tight):
        best = min(tight[state], key=lambda edge: (length[int(lattice.sources[edge])], int(lattice.endings[edge])))
        chosen[state] = best
        length[state] = length[int(lattice.sources[best])] + 1
    path, state = [], len(lattice.states) - 1
    while state:
        path.append(int(lattice.endings[chosen[state]]))
        state = int(lattice.sources[chosen[state]])
    return path[::-1]


def _tight_transitions(lattice: Lattice, weights_us: Latencies, reached: Latencies) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    pending = [len(lattice.states) - 1]
    while pending:
        state = pending.pop()
        if state == 0 or state in found:
            continue
        begin, end = int(lattice.offsets[state]), int(lattice.offsets[state + 1])
        totals = reached[lattice.sources[begin:end]] + weights_us[lattice.endings[begin:end]]
        found[state] = [begin + int(offset) for offset in np.flatnonzero(totals == reached[state])]
        pending.extend(int(lattice.sources[edge]) for edge in found[state])
    return found
