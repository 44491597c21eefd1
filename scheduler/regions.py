"""Schedules of graphs in which several models are one in some operators, and apart between them.

The operators that models have together and those that each has alone take turns: first whatever needs no common
operator, then common operators that need nothing else, and so on. Between two such regions nothing runs across; inside
a region of operators that each model has alone, the models do not hang together, and run beside each other in the best
way (`scheduler/components.py`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from heapq import heappop, heappush

from iosched.models.graph import ComputationGraph
from iosched.scheduler.block_searches import Deadline
from iosched.scheduler.components import (
    Find,
    Part,
    components,
    one_after_another,
    part_of,
    search_components,
    side_by_side,
)
from iosched.scheduler.cost import CostModel
from iosched.scheduler.schedule import Block, Schedule
from iosched.scheduler.search import SearchResult


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


def turns(graph: ComputationGraph, owners: Mapping[str, int]) -> tuple[Part, ...]:
    """All operators in parts of equal owners, as few as a simple rule finds; no part reads from a later one.

    A part goes on while there is an operator of its owners that reads from no later part. Then those come that have
    most owners, and of these the first in the graph: what models share, then one model after another.

    Args:
        graph: whose operators are put in order.
        owners: for each operator the models that it works for, a bit for each.

    Complexity: O(operators log operators + edges).
    """
    position = {operator.name: index for index, operator in enumerate(graph.operators)}
    waiting = {name: len(before) for name, before in graph.predecessors.items()}
    ready: dict[int, list[tuple[int, str]]] = {}
    for operator in graph.operators:
        if not waiting[operator.name]:
            heappush(ready.setdefault(owners[operator.name], []), (position[operator.name], operator.name))
    found: list[Part] = []
    while ready:
        own = min(ready, key=lambda owner: (-owner.bit_count(), ready[owner][0]))
        part: list[str] = []
        while ready[own]:
            name = heappop(ready[own])[1]
            part.append(name)
            for reader in graph.successors[name]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heappush(ready.setdefault(owners[reader], []), (position[reader], reader))
        del ready[own]
        found.append(tuple(part))
    return tuple(found)


def search_turns(
    graph: ComputationGraph,
    cost: CostModel,
    owners: Mapping[str, int],
    find: Find,
    *,
    is_over: Deadline = lambda: False,
) -> SearchResult:
    """The best schedule of each of `turns`, one after another: models in turn, each by a schedule of its own."""
    parts = [part_of(graph, part) for part in turns(graph, owners)]
    return one_after_another([search_components(part, cost, find, is_over=is_over) for part in parts])


def packed_regions(graph: ComputationGraph, cost: CostModel, common: Container[str], find: Find) -> SearchResult:
    """Regions one after another, in each of which everything that does not hang together runs side by side."""
    return one_after_another([_packed(graph, region, cost, find) for region in regions(graph, common)])


def _packed(graph: ComputationGraph, region: Part, cost: CostModel, find: Find) -> SearchResult:
    part = part_of(graph, region)
    apart = components(part)
    if len(apart) < 2:
        return find(part, cost)
    schedule = Schedule((Block(0, (side_by_side(cost, apart),)),))
    return SearchResult(schedule, states=0, transitions=0, stages=1, measured=1, lower_bound_us=0.0)


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
