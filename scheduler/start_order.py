"""The order in which operators of a stage start, if its groups may read each other's results."""

from __future__ import annotations

from iosched.models.errors import InvalidScheduleError
from iosched.models.graph import ComputationGraph
from iosched.scheduler.schedule import Stage


def start_order(graph: ComputationGraph, stage: Stage) -> tuple[str, ...]:
    """An order in which the operators of a stage may start: after those that they read, and each group in its order.

    Operators that they read outside the stage are done. Complexity: O((operators + edges) * groups).

    Raises:
        InvalidScheduleError: groups wait for each other.
    """
    missing, found = set(stage.operators), list[str]()
    groups = [list(reversed(group)) for group in stage.groups]
    while missing:
        before = len(found)
        for group in groups:
            while group and missing.isdisjoint(graph.predecessors[group[-1]]):
                missing.discard(group[-1])
                found.append(group.pop())
        if len(found) == before:
            name = next(group[-1] for group in groups if group)
            raise InvalidScheduleError(f"the schedule runs operator {name!r} before an operator whose output it reads")
    return tuple(found)
