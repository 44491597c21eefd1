"""A schedule of operators in terms of units, which it may take apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from iosched.scheduler.schedule import Division, Schedule, Stage

if TYPE_CHECKING:
    from iosched.scheduler.unit_graph import UnitGraph


def unit_stages(units: UnitGraph, schedule: Schedule) -> list[Stage]:
    """The schedule in terms of units, without latencies, empty stages left out; see `numbered_unit_stages`."""
    return [stage for _, stage in numbered_unit_stages(units, schedule)]


def numbered_unit_stages(units: UnitGraph, schedule: Schedule) -> list[tuple[int, Stage]]:
    """The schedule in terms of units, without latencies, each stage with its number in the schedule.

    Empty stages are left out.

    A unit runs in the last stage that one of its operators is in, or later if what it reads comes later: schedules
    made on another device may take operators apart that this one cannot. A stage keeps its division where its groups
    of units are its groups of operators.
    """
    unit_of = units.unit_of
    position: dict[str, int] = {}
    label: dict[str, tuple[int, int]] = {}
    stages = tuple(schedule.stages)
    for number, stage in enumerate(stages):
        for place, group in enumerate(stage.groups):
            for name in group:
                position[unit_of[name]] = number
                label[unit_of[name]] = (number, place)
    for operator in units.graph.operators:
        before = [position[name] for name in units.graph.predecessors[operator.name]]
        position[operator.name] = max([position[operator.name], *before])
    return _group_units(units, position, label, stages)


def _group_units(
    units: UnitGraph,
    position: Mapping[str, int],
    label: Mapping[str, tuple[int, int]],
    stages: Sequence[Stage],
) -> list[tuple[int, Stage]]:
    """The stages by number, with groups of units: units of one original group, and units that depend on each other."""
    group_of: dict[str, list[str]] = {}
    first_of: dict[tuple[int, int], str] = {}
    for operator in units.graph.operators:
        name = operator.name
        group_of[name] = [name]
        same = [p for p in units.graph.predecessors[name] if position[p] == position[name]]
        if label[name][0] == position[name]:
            same.append(first_of.setdefault(label[name], name))
        for other in same:
            if group_of[other] is not group_of[name]:
                group_of[other].extend(group_of[name])
                for member in group_of[name]:
                    group_of[member] = group_of[other]
    groups_of: list[list[tuple[str, ...]]] = [[] for _ in stages]
    order = {operator.name: index for index, operator in enumerate(units.graph.operators)}
    for name in order:
        group = group_of[name]
        if min(group, key=order.__getitem__) == name:
            groups_of[position[name]].append(tuple(sorted(group, key=order.__getitem__)))
    found = []
    for number, (stage, groups) in enumerate(zip(stages, groups_of, strict=True)):
        places = [{label[name] for name in group} for group in groups]
        found.append((number, Stage(stage.strategy, tuple(groups), division=_division(stage, number, places))))
    return [(number, stage) for number, stage in found if stage.groups]


def _division(stage: Stage, number: int, places: Sequence[set[tuple[int, int]]]) -> Division | None:
    """The division of a stage in the order of its groups of units, whose units come from these groups of operators."""
    wanted = {(number, place) for place in range(len(stage.groups))}
    if stage.division is None or any(len(own) != 1 for own in places) or set().union(*places) != wanted:
        return None
    return replace(stage.division, groups=tuple(stage.division.groups[place] for ((_, place),) in places))
