"""Latencies of a schedule's stages from the profile database or by computation.

Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from iosched.jobs.open_model import of_a_team, opened
from iosched.models.model import Model
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.devices.profiled_device import OpenModel
from iosched.profiler.devices.resolve import recorded, runner_design, runner_name
from iosched.profiler.measuring.statistics import Measurement
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.unit_graph import UnitGraph

_COMPUTED = "the latencies of this schedule are predicted: nothing was measured on this device"
_OTHER_MACHINE = "the schedule was made on another machine, whose measurements are not in this profile database"
_OTHER_UNITS = "this machine joins other operators into units than the schedule"


@dataclass(frozen=True)
class KnownStage:
    """Known facts about a stage.

    Attributes:
        measured: its latest thorough measurement; None if it was never measured.
        idle: the share of the lanes' time in which they wait, see `OpenModel.idle_share`; None if unknown.
    """

    measured: Measurement | None = None
    idle: float | None = None


@dataclass(frozen=True)
class KnownStages:
    """Known facts about the stages of a schedule.

    Attributes:
        stages: one for each stage, in order; empty if unknown.
        single_us: latencies of single units, with their operators.
        why: why nothing was measured; None if something may have been.
    """

    stages: tuple[KnownStage, ...] = ()
    single_us: tuple[tuple[tuple[str, ...], float], ...] = ()
    why: str | None = None


def known_stages(model: Model, document: ScheduleDocument, profile_db: Path | None = None) -> KnownStages:
    """Looks up every stage of a schedule of `model`, and every operator alone; measures nothing and writes nothing.

    With teams, all latencies are of one of them. For a simulated GPU, latencies of single operators are computed.
    Complexity: one look-up per stage and one per operator.
    """
    if document.cost == "measured" and not _is_of_this_machine(document):
        return KnownStages(why=_OTHER_MACHINE)
    device, settings = recorded(document)
    with opened(device, model, settings, profile_db, writes=False) as whole:
        open_model, _ = of_a_team(whole, document)
        if _separates_units(open_model.units, document.schedule):
            return KnownStages(why=_OTHER_UNITS)
        return _looked_up(open_model, tuple(open_model.units.scheduled(document.schedule).stages))


def _is_of_this_machine(document: ScheduleDocument) -> bool:
    if runner_name("auto", document) != document.device_name:
        return False
    design = runner_design("auto", document)
    return all(document.device.get(key, value) == value for key, value in design.items())


def _separates_units(units: UnitGraph, schedule: Schedule) -> bool:
    groups = (group for stage in schedule.stages for group in stage.groups)
    found = [unit for group in groups for unit in {units.unit_of[name] for name in group}]
    return len(found) > len(set(found))


def _looked_up(open_model: OpenModel, stages: Sequence[Stage]) -> KnownStages:
    idle = [open_model.details.idle_share(stage) for stage in stages]
    if open_model.attached is None:
        singles = tuple(_singles(open_model, open_model.cost.stage_latency_us))
        return KnownStages(tuple(KnownStage(None, each) for each in idle), singles, _COMPUTED)
    cost = open_model.attached.cost
    found = tuple(KnownStage(cost.known(stage), each) for stage, each in zip(stages, idle, strict=True))
    return KnownStages(found, tuple(_singles(open_model, partial(known_us, cost))))


def _singles(
    open_model: OpenModel, latency_us: Callable[[Stage], float | None]
) -> Iterator[tuple[tuple[str, ...], float]]:
    for stage in sequential(open_model.graph).stages:
        (unit,) = stage.operators
        found = latency_us(stage)
        if found is not None:
            yield open_model.units.members[unit], found


def in_a_row(known: KnownStages, order: Schedule) -> Schedule:
    """`order`, with one operator per stage, with latencies of single operators; the operators of a unit share a stage.

    Known latencies in `order` are kept.
    """
    blocks = (replace(block, stages=tuple(_joined(known, block))) for block in order.blocks)
    return Schedule(tuple(blocks))


def _joined(known: KnownStages, block: Block) -> Iterator[Stage]:
    """The stages of a block of single operators; the operators of a unit move to its first one."""
    there = {name for stage in block.stages for name in stage.operators}
    units = {members[0]: (members, latency_us) for members, latency_us in known.single_us if there.issuperset(members)}
    joined = {name for members, _ in units.values() for name in members}
    for stage in block.stages:
        (name,) = stage.operators
        if name in units:
            members, latency_us = units[name]
            own_us = stage.predicted_us if len(members) == 1 else None
            yield replace(stage, groups=(members,), predicted_us=latency_us if own_us is None else own_us)
        elif name not in joined:
            yield stage
