"""How fit individuals are for a roulette wheel, which takes numbers that are not negative."""

from __future__ import annotations

from collections.abc import Sequence

from iosched.jobs.exploring.front import Point, ranks


def fitness(points: Sequence[Point | None], *, is_maximised: bool) -> list[float]:
    """The fitness of each individual; 0 for one without a result.

    One objective that is maximised, never negative and without violated constraints is the fitness itself, as published
    for EA-NAS. All else says no more than which is better: fitness is then 1 for those in the last front, 2 for those
    in the one before, and so on.

    Args:
        is_maximised: whether there is one objective, which is maximised.
    """
    known = [point for point in points if point is not None]
    if is_maximised and all(point.losses[0] <= 0 >= point.violation for point in known):
        return [0.0 if point is None else -point.losses[0] for point in points]
    rank = iter(ranks(known))
    fronts = max(ranks(known), default=0) + 1
    return [0.0 if point is None else float(fronts - next(rank)) for point in points]
