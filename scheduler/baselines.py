"""Schedules that need no search, as baselines for searched ones (thesis, section 5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from iosched.models.graph import ComputationGraph
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

T = TypeVar("T", int, str)


def sequential(graph: ComputationGraph) -> Schedule:
    """One operator a stage, in topological order."""
    stages = tuple(Stage(Strategy.CONCURRENT, ((operator.name,),)) for operator in graph.operators)
    return Schedule((Block(0, stages),) if stages else ())


def together(graph: ComputationGraph) -> Schedule:
    """All operators in one stage, whose groups are the connected components of the graph."""
    names = [operator.name for operator in graph.operators]
    group_of = {name: [name] for name in names}
    for name in names:
        for other in graph.predecessors[name]:
            if group_of[other] is not group_of[name]:
                joined = group_of[other]
                joined.extend(group_of[name])
                group_of.update(dict.fromkeys(group_of[name], joined))
    rank = {name: number for number, name in enumerate(names)}
    groups = {min(map(rank.__getitem__, group)): group for group in group_of.values()}
    stage = Stage(Strategy.CONCURRENT, tuple(tuple(sorted(groups[at], key=rank.__getitem__)) for at in sorted(groups)))
    return Schedule((Block(0, (stage,)),) if names else ())


def one_session(graph: ComputationGraph) -> Schedule:
    """All operators in one session of the library, which runs them one after another."""
    stages = [replace(stage, strategy=Strategy.SESSION) for stage in together(graph).stages]
    return Schedule((Block(0, tuple(stages)),) if stages else ())


def greedy(graph: ComputationGraph) -> Schedule:
    """Each stage runs all ready operators."""
    stages = greedy_stages(graph, [operator.name for operator in graph.operators])
    return Schedule((Block(0, stages),) if stages else ())


def greedy_stages(graph: ComputationGraph, names: Sequence[str]) -> tuple[Stage, ...]:
    """The greedy schedule of some operators, given in topological order; inputs from other operators count as ready."""
    # No two operators of a set depend on each other, so each is a separate group.
    return tuple(
        Stage(Strategy.CONCURRENT, tuple((name,) for name in ready))
        for ready in ready_sets(names, graph.predecessors.__getitem__)
    )


def ready_sets(operators: Iterable[T], predecessors: Callable[[T], Iterable[T]]) -> list[list[T]]:
    """The initially ready operators, those ready after them, and so on; O(operators + edges).

    Operators are given in topological order; predecessors outside them are ignored.
    """
    depth: dict[T, int] = {}
    found: list[list[T]] = []
    for operator in operators:
        depth[operator] = 1 + max((depth[other] for other in predecessors(operator) if other in depth), default=-1)
        if depth[operator] == len(found):
            found.append([])
        found[depth[operator]].append(operator)
    return found
