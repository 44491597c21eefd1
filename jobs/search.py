"""The schedule that the settings of a job ask for: searched, given, or a baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from iosched.jobs.progress import Observer, SearchProgress
from iosched.jobs.settings import OptimizeSettings
from iosched.profiler.devices.device import OpenModel
from iosched.profiler.devices.known import KnownStages
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.search import SearchResult, search
from iosched.scheduler.strategies import BASELINES, is_searched


def asked_for(
    opened: OpenModel, settings: OptimizeSettings, observer: Observer, deadline: Callable[[], bool] | None
) -> SearchResult:
    """The schedule that the settings ask for, in the device's units."""
    if (given := settings.schedule_from) is not None:
        return taken(opened.units.scheduled(given.schedule), _latency_without_measuring(opened))
    if not is_searched(settings.strategy):
        return unsearched(BASELINES[settings.strategy](opened.graph))
    return search(
        opened.graph,
        opened.cost,
        strategy=settings.strategy,
        pruning=settings.pruning,
        observer=SearchProgress(observer),
        deadline=deadline,
        effort=opened.effort.exhausted() if settings.exhaustive else opened.effort,
    )


def taken(schedule: Schedule, latency_us: Callable[[Stage], float | None]) -> SearchResult:
    """A schedule that was given: nothing is searched or proven, and its stages take what `latency_us` says here."""
    blocks = tuple(
        Block(
            block.index,
            tuple(replace(stage, predicted_us=latency_us(stage), measured_us=None) for stage in block.stages),
            optimal=False,
        )
        for block in schedule.blocks
    )
    return unsearched(Schedule(blocks))


def unsearched(schedule: Schedule) -> SearchResult:
    """A schedule that needed no search."""
    n_stages = len(tuple(schedule.stages))
    return SearchResult(schedule, states=0, transitions=0, stages=n_stages, measured=0, lower_bound_us=0.0)


def _latency_without_measuring(opened: OpenModel) -> Callable[[Stage], float | None]:
    return opened.cost.stage_latency_us if opened.here is None else KnownStages(opened.here.cost).latency_us
