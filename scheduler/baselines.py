"""Schedules that need no search: what the searched ones are compared with (thesis, section 5.1)."""

from __future__ import annotations

from iosched.models.graph import ComputationGraph
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def sequential(graph: ComputationGraph) -> Schedule:
    """One operator a stage, in topological order."""
    stages = tuple(Stage(Strategy.CONCURRENT, ((operator.name,),)) for operator in graph.operators)
    return Schedule((Block(0, stages),) if stages else ())


def greedy(graph: ComputationGraph) -> Schedule:
    """All operators that are ready form the next stage, again and again."""
    depth: dict[str, int] = {}
    for operator in graph.operators:
        depth[operator.name] = 1 + max((depth[name] for name in graph.predecessors[operator.name]), default=-1)
    levels: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, level in depth.items():
        levels[level].append(name)
    # No two operators of a level depend on each other, so each is a group of its own.
    stages = tuple(Stage(Strategy.CONCURRENT, tuple((name,) for name in names)) for names in levels)
    return Schedule((Block(0, stages),) if stages else ())
