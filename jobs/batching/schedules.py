"""Schedules of several models in one graph, on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from iosched.jobs.schedules import Deadline, never, schedule_by
from iosched.models.composition.members import Member, owners
from iosched.models.model import Model
from iosched.profiler.devices.device import OpenModel
from iosched.profiler.devices.ways import Way
from iosched.scheduler.components import Find
from iosched.scheduler.regions import packed_regions, search_regions, search_turns
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult, search

_LEAST_LIKELY = 1.5
"""How many times as long as the best one a schedule may be expected to take, and still be run."""


def unit_owners(opened: OpenModel, model: Model, members: Sequence[Member]) -> Mapping[str, int]:
    """For each of the device's units the members that it works for: bit i stands for `members[i]`."""
    found: dict[str, int] = {}
    for name, bits in owners(model, members).items():
        unit = opened.units.unit_of[name]
        found[unit] = found.get(unit, 0) | bits
    return found


def serial_schedule(
    opened: OpenModel, model: Model, members: Sequence[Member], deadline: Deadline = never
) -> SearchResult:
    """One model after another, each by the best schedule of its own; what they share comes first.

    Args:
        opened: the model, open on the device.
        model: a composed or batched model.
        members: the models in it.
        deadline: once true, the searches end with what they know; see `search`.
    """
    find = _find(opened, deadline)
    return search_turns(opened.graph, opened.cost, unit_owners(opened, model, members), find, is_over=deadline)


def packed_schedule(
    opened: OpenModel, model: Model, members: Sequence[Member], deadline: Deadline = never
) -> SearchResult:
    """All models side by side, each one operator after another, wherever they share nothing; see `serial_schedule`."""
    common = _common(opened, model, members)
    return packed_regions(opened.graph, opened.cost, common, _find(opened, deadline))


def mixed_schedules(
    opened: OpenModel, model: Model, members: Sequence[Member], deadline: Deadline = never, packs: bool = False
) -> tuple[SearchResult, ...]:
    """Schedules that differ, the one first that is expected to be the fastest; see `serial_schedule`.

    One is of the graph as any other, which can run operators of several models beside those of one. In another whole
    parts of models run beside each other between what they share, however many operators and models there are, where
    that is faster by the latencies of stages; and in a third wherever that is possible. Stages alone are faster than in
    a whole, the more so the shorter they are: the fastest can only be told by whole runs. Where models share nothing
    the third is `packed_schedule`, and left out unless `packs`.
    """
    find, common = _find(opened, deadline), _common(opened, model, members)
    found = [
        search_regions(opened.graph, opened.cost, common, find, is_over=deadline),
        schedule_by(opened, "both", deadline=deadline),
    ]
    if common or packs:
        found.append(packed_regions(opened.graph, opened.cost, common, find))
    found.sort(key=lambda result: predicted_us(result.schedule))
    likely_us = _LEAST_LIKELY * predicted_us(found[0].schedule)
    differing: dict[str, SearchResult] = {}
    for each in (found[0], *(each for each in found[1:] if predicted_us(each.schedule) <= likely_us)):
        differing.setdefault(Way(each.schedule).text, each)
    return tuple(differing.values())


def predicted_us(schedule: Schedule) -> float:
    """The sum of the stages' latencies; infinite where one is not known."""
    predicted = schedule.predicted_us
    return float("inf") if predicted is None else predicted


def alone_us(opened: OpenModel, model: Model, members: Sequence[Member], serial: Schedule) -> list[float | None]:
    """What each model takes of a schedule of one after another: its own stages, and those that it shares.

    None where the latency of a stage is not known.
    """
    owned = unit_owners(opened, model, members)
    found: list[float | None] = []
    for bit in range(len(members)):
        own = [stage.predicted_us for stage in serial.stages if owned[stage.operators[0]] >> bit & 1]
        found.append(None if None in own else sum(each or 0.0 for each in own))
    return found


def _find(opened: OpenModel, deadline: Deadline) -> Find:
    return partial(search, deadline=deadline, effort=opened.effort)


def _common(opened: OpenModel, model: Model, members: Sequence[Member]) -> set[str]:
    """The units that several members have together."""
    return {unit for unit, bits in unit_owners(opened, model, members).items() if bits & (bits - 1)}
