"""Schedules of a model that is open on a device: found by a search, given by the user, or of a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from iosched.jobs.observer import Observer, SearchProgress
from iosched.jobs.settings import OptimizeSettings
from iosched.models.graph import ComputationGraph
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.devices.profiled_device import AttachedModel, OpenModel
from iosched.scheduler.baselines import sequential
from iosched.scheduler.components import components, search_components
from iosched.scheduler.cost import CostModel, CostQuestion, Prefetchable, announce
from iosched.scheduler.effort import Effort
from iosched.scheduler.list_scheduling import LaneTimes, in_lanes, lane_times
from iosched.scheduler.pruning import DEFAULT_PRUNING, NO_PRUNING, Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.search import SearchResult, search
from iosched.scheduler.strategies import BASELINES, LANES, SEARCHES, StrategyName, is_linked, is_searched, pruning_of

Deadline = Callable[[], bool]

CLEARLY_LESS = 0.99
"""Maximum latency relative to the schedule found; the analytic model cannot resolve smaller differences."""


def schedule_by(
    opened: OpenModel,
    strategy: StrategyName,
    pruning: Pruning = Pruning(),  # noqa: B008 - frozen
    *,
    exhaustive: bool = False,
    observer: Observer | None = None,
    deadline: Deadline | None = None,
    prefetcher: Prefetchable | None = None,
    first: Iterable[Stage] = (),
) -> SearchResult:
    """The schedule of a baseline, or the best that a search with this strategy finds, in the device's units.

    See `found_by`.
    """
    effort = opened.effort.exhausted() if exhaustive else opened.effort
    return found_by(
        *(opened.graph, opened.cost, effort, strategy, pruning),
        observer=observer,
        deadline=deadline,
        prefetcher=prefetcher,
        first=first,
    )


def found_by(
    graph: ComputationGraph,
    cost: CostModel,
    effort: Effort,
    strategy: StrategyName,
    pruning: Pruning,
    *,
    observer: Observer | None = None,
    deadline: Deadline | None = None,
    prefetcher: Prefetchable | None = None,
    first: Iterable[Stage] = (),
) -> SearchResult:
    """The schedule of a baseline, or the best that a search with this strategy finds under some costs.

    Unconnected parts of a model are searched separately, and run side by side if that is faster and the strategy allows
    it.

    Args:
        prefetcher: answers questions of the search before it asks them, see `search`.
        first: stages of a good schedule, which a search measures first.
    """
    if strategy == LANES:
        return unsearched(_listed(graph, cost, deadline or never))
    if not is_searched(strategy):
        return unsearched(BASELINES[strategy](graph))
    find = partial(
        search,
        strategy=strategy,
        pruning=pruning,
        observer=None if observer is None else SearchProgress(observer, shows_best=len(components(graph)) < 2),
        deadline=deadline,
        effort=effort,
        ahead=prefetcher,
        first=tuple(first),
    )
    concurrent = Strategy.CONCURRENT in SEARCHES[strategy] and pruning_of(strategy, pruning).s != 1
    return search_components(graph, cost, find, concurrent=concurrent, is_over=deadline or never)


def _listed(graph: ComputationGraph, cost: CostModel, is_over: Deadline) -> Schedule:
    """By list scheduling; one operator after another if the deadline comes before all latencies are known."""
    times = lane_times(cost)
    for operator in graph.operators:
        if is_over():
            return sequential(graph)
        times.alone_us(operator.name)
        times.on_lane_us(operator.name)
    return in_lanes(graph, times)


def schedule_asked_for(
    opened: OpenModel,
    settings: OptimizeSettings,
    observer: Observer,
    deadline: Callable[[], Deadline | None],
    prefetcher: Prefetchable | None = None,
    first: Iterable[Stage] = (),
) -> SearchResult:
    """The given schedule, or the one that the settings ask for, in the device's units.

    Args:
        deadline: returns a function that says when the search has to end; called only if something is searched, since
            it may have to run the model.
        prefetcher: answers questions of the search before it asks them.
        first: stages of a good schedule, which a search measures first.
    """
    if (given := settings.schedule_from) is not None:
        return _as_it_was_given(opened, given.schedule)
    end = deadline()
    return schedule_by(
        opened,
        settings.strategy,
        settings.pruning,
        exhaustive=settings.exhaustive,
        observer=observer,
        deadline=end,
        prefetcher=prefetcher,
        first=first,
    )


def known_in_lanes(attached: AttachedModel) -> Schedule | None:
    """The schedule of list scheduling; None if a latency that it needs is unknown, or if it would use no lanes."""
    cost = attached.cost
    if cost.lanes < 2:
        return None
    names = [operator.name for operator in attached.graph.operators]
    alone_us = {name: known_us(cost, Stage(Strategy.CONCURRENT, ((name,),))) for name in names}
    on_lane_us = {name: cost.known_work_us(name) for name in names}
    known = {name: us for name, us in alone_us.items() if us is not None}
    works = {name: us for name, us in on_lane_us.items() if us is not None}
    if not len(known) == len(works) == len(names):
        return None
    found = in_lanes(attached.graph, LaneTimes(cost.lanes, works.__getitem__, known.__getitem__))
    return found if any(map(is_linked, found.stages)) else None


def or_in_lanes(opened: OpenModel, settings: OptimizeSettings, found: SearchResult) -> SearchResult:
    """The schedule found, or that of list scheduling if its computed latency is clearly lower.

    Not if the settings ask for a proof, or for stages of one kind or size, which lanes are not.
    """
    asks_for_stages = settings.strategy != "both" or settings.pruning not in (DEFAULT_PRUNING, NO_PRUNING)
    if asks_for_stages or settings.gap_percent == 0:
        return found
    listed = in_lanes(opened.graph, lane_times(opened.cost))
    before_us, now_us = found.schedule.predicted_us, listed.predicted_us
    if before_us is None or now_us is None or now_us > before_us * CLEARLY_LESS:
        return found
    return replace(found, schedule=listed, predicted_least_us=None)  # the bound still holds for stages


def never() -> bool:
    """A deadline that never comes."""
    return False


def unsearched(schedule: Schedule) -> SearchResult:
    """The result of a search for a schedule that needed none."""
    n_stages = len(tuple(schedule.stages))
    return SearchResult(schedule, states=0, transitions=0, stages=n_stages, measured=0, lower_bound_us=0.0)


def priced(opened: OpenModel, schedule: Schedule) -> Schedule:
    """`schedule`, in the device's units, with stage latencies; measures unknown ones."""
    announce(opened.cost, [CostQuestion(stage) for stage in schedule.stages])
    blocks = (
        replace(
            block,
            stages=tuple(replace(stage, predicted_us=opened.cost.stage_latency_us(stage)) for stage in block.stages),
        )
        for block in schedule.blocks
    )
    return Schedule(tuple(blocks))


def _as_it_was_given(opened: OpenModel, schedule: Schedule) -> SearchResult:
    """The given schedule with the latencies known on this device."""
    attached = opened.attached
    latency_us = opened.cost.stage_latency_us if attached is None else partial(known_us, attached.cost)

    def with_latency(stage: Stage) -> Stage:
        return replace(stage, predicted_us=latency_us(stage), measured_us=None)

    blocks = (
        replace(block, stages=tuple(map(with_latency, block.stages)), optimal=False)
        for block in opened.units.scheduled(schedule).blocks
    )
    return unsearched(Schedule(tuple(blocks)))
