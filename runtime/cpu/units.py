"""A schedule in terms of the units that this CPU schedules: operators that onnxruntime's fusions keep apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosched.runtime.cpu.ownership import CoarseGraph
from iosched.scheduler.schedule import Schedule, Strategy


def unit_stages(coarse: CoarseGraph, schedule: Schedule) -> list[tuple[Strategy, list[list[str]]]]:
    """The schedule in terms of units: each stage's strategy and groups of units, empty stages left out.

    A unit runs in the last stage that one of its operators is in, or later if what it reads comes later: schedules
    made on another device may take operators apart that this one cannot.
    """
    unit_of = {**{unit: unit for unit in coarse.members}, **coarse.unit_of()}
    position: dict[str, int] = {}
    label: dict[str, tuple[int, int]] = {}
    strategies = []
    for number, stage in enumerate(schedule.stages):
        strategies.append(stage.strategy)
        for place, group in enumerate(stage.groups):
            for name in group:
                position[unit_of[name]] = number
                label[unit_of[name]] = (number, place)
    for operator in coarse.graph.operators:
        before = [position[name] for name in coarse.graph.predecessors[operator.name]]
        position[operator.name] = max([position[operator.name], *before])
    return _group_units(coarse, position, label, strategies)


def _group_units(
    coarse: CoarseGraph,
    position: Mapping[str, int],
    label: Mapping[str, tuple[int, int]],
    strategies: Sequence[Strategy],
) -> list[tuple[Strategy, list[list[str]]]]:
    """Groups of each stage: units of one original group, and units that depend on each other."""
    group_of: dict[str, list[str]] = {}
    first_of: dict[tuple[int, int], str] = {}
    for operator in coarse.graph.operators:
        name = operator.name
        group_of[name] = [name]
        same = [p for p in coarse.graph.predecessors[name] if position[p] == position[name]]
        if label[name][0] == position[name]:
            same.append(first_of.setdefault(label[name], name))
        for other in same:
            if group_of[other] is not group_of[name]:
                group_of[other].extend(group_of[name])
                for member in group_of[name]:
                    group_of[member] = group_of[other]
    stages: list[tuple[Strategy, list[list[str]]]] = [(strategy, []) for strategy in strategies]
    order = {operator.name: index for index, operator in enumerate(coarse.graph.operators)}
    for name in order:
        group = group_of[name]
        if min(group, key=order.__getitem__) == name:
            stages[position[name]][1].append(sorted(group, key=order.__getitem__))
    return [(strategy, groups) for strategy, groups in stages if groups]
