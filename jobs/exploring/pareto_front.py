"""Domination, ranks and crowding of variants with several objectives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """The values by which variants compare: losses, all to be minimised, and the total violation of constraints."""

    losses: tuple[float, ...]
    violation: float = 0.0


def dominates(a: Point, b: Point) -> bool:
    """Whether `a` dominates `b`.

    If either violates constraints, the one that violates them less dominates; else one that is nowhere worse and
    somewhere better (Deb et al., A fast and elitist multiobjective genetic algorithm: NSGA-II, 2002, section VI).
    """
    if a.violation > 0 or b.violation > 0:
        return a.violation < b.violation
    return a.losses != b.losses and all(x <= y for x, y in zip(a.losses, b.losses, strict=True))


def ranks(points: Sequence[Point]) -> list[int]:
    """The rank of each point: 0 for nondominated ones.

    Complexity: O(points^2 * objectives).
    """
    found = [0] * len(points)
    # In this order no point is dominated by a later one, and a rank is the length of the longest chain of dominations.
    order = sorted(range(len(points)), key=lambda place: (points[place].violation, points[place].losses))
    for count, place in enumerate(order):
        better = (other for other in order[:count] if dominates(points[other], points[place]))
        found[place] = max((found[other] + 1 for other in better), default=0)
    return found


def crowding(points: Sequence[Point]) -> list[float]:
    """The crowding distance of each point of a front; infinite at the ends.

    Each objective counts as a part of its range (NSGA-II, section III-B).
    """
    found = [0.0] * len(points)
    for losses in zip(*(point.losses for point in points), strict=True):
        order = sorted(range(len(points)), key=losses.__getitem__)
        first, last = order[0], order[-1]
        span = losses[last] - losses[first]
        found[first] = found[last] = math.inf
        if not (span and math.isfinite(span)):
            continue
        for before, place, after in zip(order, order[1:], order[2:], strict=False):
            found[place] += (losses[after] - losses[before]) / span
    return found


def best_first(points: Sequence[Point]) -> list[int]:
    """Indices of points by rank, then by decreasing crowding distance."""
    rank, distance = ranks(points), dict[int, float]()
    for each in set(rank):
        places = [place for place, found in enumerate(rank) if found == each]
        distance.update(zip(places, crowding([points[place] for place in places]), strict=True))
    return sorted(range(len(points)), key=lambda place: (rank[place], -distance[place], place))
