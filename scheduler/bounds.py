"""The least that concurrent stages can take, from what their operators take alone; vectorised over stages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from iosched.scheduler.lattice import Indices, Latencies, Masks

Rounds = Sequence[tuple[Indices, Masks]]

_ROWS = 1 << 15  # stages whose splits over two lanes are tried at once
_TRIED = 8  # largest groups of a stage that are split over two lanes in every way


def concurrent_bounds(
    masks: Masks, rounds: Rounds, alone_us: Sequence[float], work_us: Sequence[float], lanes: int
) -> Latencies:
    """Bounds of stages under the promises of `cost.OperatorBounds`, in microseconds, (M,).

    Args:
        masks: (M,) the operators of each stage.
        rounds: their groups, as `lattice.components` gives them.
        alone_us: latency of each operator with all lanes to itself.
        work_us: what each operator takes on one lane.
        lanes: how many groups run side by side.

    Complexity: O(M * (operators + groups * lanes)), with two lanes O(M * 2^7) more.
    """
    groups = np.zeros((len(masks), max(len(rounds), 1)))
    n_groups = np.zeros(len(masks), dtype=np.int64)
    slowest = np.zeros(len(masks))
    for number, (where, group) in enumerate(rounds):
        groups[where, number] = sums(group, work_us)
        n_groups[where] += 1
        slowest[where] = np.maximum(slowest[where], sums(group, alone_us))
    spread = n_groups >= lanes
    found: Latencies = np.maximum(slowest, groups.sum(axis=1) / lanes)
    found[spread] = np.maximum(found[spread], makespans(groups[spread], lanes))
    return found


def makespans(groups_us: Latencies, lanes: int) -> Latencies:
    """No placement of whole groups on lanes ends sooner; (M, k) -> (M,). Exact for two lanes and up to eight groups."""
    groups = -np.sort(-groups_us, axis=1)
    width = groups.shape[1]
    found: Latencies = np.maximum(groups[:, 0], groups.sum(axis=1) / lanes)
    # Of the `lanes * j + 1` longest groups, some lane has j + 1: they take at least as long as the shortest of these.
    for several in range(1, (width - 1) // lanes + 1):
        last = lanes * several
        found = np.maximum(found, groups[:, last - several : last + 1].sum(axis=1))
    if lanes == 2 and width > 3:
        for start in range(0, len(groups), _ROWS):
            rows = slice(start, start + _ROWS)
            found[rows] = np.maximum(found[rows], _best_halves(groups[rows, :_TRIED]))
    return found


def _best_halves(groups: Latencies) -> Latencies:
    """Least time of the busier of two lanes, over all ways to split the groups. O(2^(k - 1)) for each row."""
    total = groups.sum(axis=1)
    one_lane = groups[:, :1]  # the first group's lane, for every choice of who joins it
    for column in range(1, groups.shape[1]):
        one_lane = np.concatenate([one_lane, one_lane + groups[:, column : column + 1]], axis=1)
    best: Latencies = np.maximum(one_lane, total[:, None] - one_lane).min(axis=1)
    return best


def sums(masks: Masks, values: Sequence[float]) -> Latencies:
    """Sum of `values` over the operators of each mask."""
    total = np.zeros(len(masks))
    for index, value in enumerate(values):
        total += value * ((masks >> np.uint64(index)) & np.uint64(1))
    return total
