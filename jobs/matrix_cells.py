"""Tasks of the job `matrix`: search a schedule for a target, and compute the latencies of all schedules on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from iosched.jobs.open_model import check_schedulable
from iosched.jobs.pool.task import Context, Kind
from iosched.jobs.schedules import schedule_by
from iosched.models.errors import UsageError
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import OpenModel
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.baselines import sequential
from iosched.scheduler.cost import CostQuestion, Remeasurable, announce
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Scope, Stage, Strategy
from iosched.scheduler.strategies import STAGE_RULES, SearchStrategy

_ROUNDING = 1e-9


class Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a search on a device."""

    device: str
    opening: OpenSettings
    strategy: SearchStrategy
    pruning: Pruning


class Searched(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of the model, and the scope in which it is proven optimal."""

    schedule: Schedule
    proven: Scope | None


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Schedules to compute latencies of; the one with index `own` was found for this device."""

    device: str
    opening: OpenSettings
    schedules: tuple[Schedule, ...]
    own: int


@dataclass(frozen=True)
class MatrixIntervals:
    """The uncertainty of a computed latency, in microseconds, and of its ratio to the target's own schedule."""

    latency_us: Interval
    slowdown: Interval


class Priced(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Latencies of schedules on a device, in microseconds.

    Attributes:
        name: the product name of the device.
        cost: "analytic" or "measured".
        shares: the measured fraction of each latency, from an attached GPU of this type on another machine.
        intervals: the uncertainty of each latency; ratios are to the fastest schedule.
        speedups: the speedup of each schedule over the sequential one.
    """

    name: str
    cost: str
    latency_us: tuple[float, ...]
    sequential_us: float
    shares: tuple[float | None, ...]
    intervals: tuple[MatrixIntervals | None, ...]
    speedups: tuple[Interval | None, ...]
    notes: tuple[str, ...]


def fastest(row: Sequence[float], own: int) -> int:
    """Returns the index of the fastest schedule on target `own`; `own` wins ties within rounding."""
    best = min(range(len(row)), key=row.__getitem__)
    return best if row[best] < row[own] * (1 - _ROUNDING) else own


def _search(work: Search, here: Context) -> Searched:
    opened = _opened(work.device, work.opening, here)
    prefetcher = None if opened.attached is None else here.prefetcher(work.opening, opened.attached)
    interrupt = here.interrupt
    deadline = (lambda: interrupt.came) if interrupt.can_come else None
    how = (work.strategy, work.pruning)
    found = schedule_by(opened, *how, observer=here.observer, deadline=deadline, prefetcher=prefetcher)
    _check_stopped(here)
    return Searched(opened.units.expanded(found.schedule), found.proven)


def _price(work: Price, here: Context) -> Priced:
    opened = _opened(work.device, work.opening, here)
    baseline = sequential(here.model.graph)
    schedules = [_checked(schedule, here.model.graph.by_name) for schedule in work.schedules]
    latencies_us = []
    for schedule in (*schedules, baseline):
        _check_stopped(here)
        latencies_us.append(schedule_latency_us(opened, schedule))
    *found_us, sequential_us = latencies_us
    info = opened.device.info
    of_measuring = () if opened.attached is None else opened.attached.running(None, {}).notes
    intervals, speedups = _uncertainty(opened, schedules, baseline, schedules[fastest(found_us, work.own)])
    return Priced(
        info.name,
        info.cost_kind,
        tuple(found_us),
        sequential_us,
        tuple(measured_share(opened, schedule) for schedule in schedules),
        intervals,
        speedups,
        (*opened.details.imported.notes, *of_measuring),
    )


def _uncertainty(
    opened: OpenModel, schedules: Sequence[Schedule], baseline: Schedule, own: Schedule
) -> tuple[tuple[MatrixIntervals | None, ...], tuple[Interval | None, ...]]:
    known = opened.details.uncertainty
    if known is None:
        return (None,) * len(schedules), (None,) * len(schedules)
    stages = [stages_as_run(opened, schedule) for schedule in schedules]
    of_own, of_baseline = stages_as_run(opened, own), stages_as_run(opened, baseline)
    return (
        tuple(MatrixIntervals(known.latency_us(each), known.ratio(each, of_own)) for each in stages),
        tuple(known.ratio(of_baseline, each) for each in stages),
    )


def _opened(device: str, opening: OpenSettings, here: Context) -> OpenModel:
    opened = here.opened(device, opening)
    check_schedulable(opened)
    return opened


def _checked(schedule: Schedule, operators: Mapping[str, object]) -> Schedule:
    names = [name for stage in schedule.stages for name in stage.operators]
    if sorted(names) != sorted(operators):
        raise UsageError("a received schedule does not have exactly the operators of the model")
    return schedule


def _check_stopped(here: Context) -> None:
    if here.interrupt.came:
        raise KeyboardInterrupt


SEARCH = Kind("search", Search, Searched, _search)
PRICE = Kind("price", Price, Priced, _price)


def schedule_latency_us(opened: OpenModel, schedule: Schedule) -> float:
    """Latency in microseconds of a schedule of operators or units; measures stages whose latencies are not known."""
    stages = tuple(opened.units.stages(schedule))
    announce(opened.cost, [CostQuestion(stage, "again") for stage in stages])
    return sum(stage_latency_us(opened, stage) for stage in stages)


def stage_latency_us(opened: OpenModel, stage: Stage) -> float:
    """Latency in microseconds of a stage of units; if it cannot be merged on this device, of its groups side by side.

    A measured stage counts with its second measurement (`Remeasurable`). The first one is too low on average for the
    stages that a search chose by it, and would favour the schedule found with these latencies.
    """
    if opened.attached is not None:
        return measured_stage_us(opened.attached.cost, stage)
    return opened.cost.stage_latency_us(_runnable(opened, stage))


def stages_as_run(opened: OpenModel, schedule: Schedule) -> tuple[Stage, ...]:
    """The stages that a simulated device would run; their latencies sum to `schedule_latency_us`."""
    return tuple(_runnable(opened, stage) for stage in opened.units.stages(schedule))


def _runnable(opened: OpenModel, stage: Stage) -> Stage:
    refusal = STAGE_RULES[stage.strategy].refusal(opened.graph, stage.operators)
    return stage if refusal is None else _side_by_side(stage)


def measured_share(opened: OpenModel, schedule: Schedule) -> float | None:
    """The part of `schedule_latency_us` that was measured elsewhere; None if nothing was, see `ImportedProfile`."""
    return opened.details.imported.share(stages_as_run(opened, schedule), opened.cost.stage_latency_us)


def measured_stage_us(cost: Remeasurable, stage: Stage) -> float:
    """The second measurement of a stage in microseconds; if it cannot be merged here, of its groups side by side."""
    latency_us = cost.remeasure(stage)
    return cost.remeasure(_side_by_side(stage)) if math.isinf(latency_us) else latency_us


def _side_by_side(stage: Stage) -> Stage:
    return replace(stage, strategy=Strategy.CONCURRENT)
