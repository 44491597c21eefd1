"""The operators of a schedule one after another, with as many latencies as the schedule file has of them alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy


def one_by_one(document: ScheduleDocument) -> Schedule:
    """The operators of `document.schedule`, one a stage, each in the block that it has there; O(operators).

    They stand in the order of the sequential schedule in the file, or else of the model's structure, or else of the
    schedule itself. A latency is that of a stage with this operator alone in any schedule of the file.
    """
    place = {name: number for number, name in enumerate(_order(document))}
    alone_us = {stage.operators[0]: stage.latency_us for stage in _stages(document) if len(stage.operators) == 1}
    return Schedule(tuple(_in_order(block, place, alone_us) for block in document.schedule.blocks))


def _in_order(block: Block, place: Mapping[str, int], alone_us: Mapping[str, float | None]) -> Block:
    names = sorted((name for stage in block.stages for name in stage.operators), key=lambda name: place[name])
    stages = (Stage(Strategy.CONCURRENT, ((name,),), alone_us.get(name)) for name in names)
    return replace(block, stages=tuple(stages), optimal=False)


def _order(document: ScheduleDocument) -> dict[str, None]:
    """The names of all operators; those of the schedule that others do not have come last."""
    given = next((each.schedule for each in document.alternatives if each.name == "sequential"), None)
    first: list[str] = []
    if given is not None:
        first = [name for stage in given.stages for name in stage.operators]
    elif document.structure is not None:
        first = [operator.name for operator in document.structure.operators]
    return dict.fromkeys([*first, *(name for stage in document.schedule.stages for name in stage.operators)])


def _stages(document: ScheduleDocument) -> Iterator[Stage]:
    """All stages of the file whose latencies are known; those of the schedule itself last, since they count most."""
    schedules = [*(each.schedule for each in document.alternatives), document.schedule]
    return (stage for schedule in schedules for stage in schedule.stages if stage.latency_us is not None)
