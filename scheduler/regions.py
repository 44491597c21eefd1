"""Schedules of graphs in which several models are one in some operators, and apart between them.

The operators that models have together and those that each has alone take turns: first whatever needs no common
operator, then common operators that need nothing else, and so on. Between two such regions nothing runs across; inside
a region of operators that each model has alone, the models do not hang together, and run beside each other in the best
way (`scheduler/components.py`).
"""

from __future__ import annotations

from collections.abc import Container

from iosched.models.graph import ComputationGraph
from iosched.scheduler.components import Find, Part, one_after_another, part_of, search_components
from iosched.scheduler.cost import CostModel
from iosched.scheduler.search import Deadline, SearchResult


def regions(graph: ComputationGraph, common: Container[str]) -> tuple[Part, ...]:
    """All operators in regions of common ones and of others, by turns; no region reads from a later one.

    Each operator is in the earliest region that it can be in. Complexity: O(operators + edges).
    """
    place: dict[str, int] = {}
    found: dict[int, list[str]] = {}
    for operator in graph.operators:
        parity = int(operator.name in common)
        earliest = max((place[name] for name in graph.predecessors[operator.name]), default=0)
        place[operator.name] = earliest + (earliest % 2 != parity)
        found.setdefault(place[operator.name], []).append(operator.name)
    return tuple(tuple(found[index]) for index in sorted(found))


def search_regions(
    graph: ComputationGraph,
    cost: CostModel,
    common: Container[str],
    find: Find,
    *,
    is_over: Deadline = lambda: False,
) -> SearchResult:
    """The best schedule of each region, one after another.

    Args:
        graph: what to schedule.
        cost: the device.
        common: the operators that several models have together.
        find: searches a schedule of a graph that hangs together.
        is_over: once true, nothing more is asked of the device.
    """
    parts = [part_of(graph, region) for region in regions(graph, common)]
    return one_after_another([search_components(part, cost, find, is_over=is_over) for part in parts])
