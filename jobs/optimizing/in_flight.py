"""Finds how many runs of a model a GPU should execute at the same time for the most images a second.

Each has a captured graph, streams and buffers of its own. The schedule found and one operator after another, which
leaves more of the GPU to other runs, are tried with each number of runs: by measurement or, on a simulated GPU, by the
analytic model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from iosched.jobs.decision import decide
from iosched.jobs.observer import Observer
from iosched.jobs.optimizing.throughput import CALLERS
from iosched.jobs.optimizing.verdict import Verdict, kernel_count
from iosched.jobs.schedules import priced
from iosched.jobs.time_budget import TimeBudget
from iosched.models.model import Model
from iosched.profiler.devices.profiled_device import AttachedModel, OpenModel, RunsInFlight
from iosched.profiler.measuring.interleaved_models import Budget, closing_all, measure_rates
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.runtime.executor import Candidate
from iosched.runtime.faults import Faults
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import Alternative
from iosched.scheduler.document_format import Shipped
from iosched.scheduler.search import SearchResult
from iosched.scheduler.teams import Teams

COUNTS = (1, 2, 4, 8, 16)

_LEAST_GAIN = 0.05
"""More runs at the same time, which each take longer and need memory, must save this share."""

_TRIED = Budget(rounds=2, max_seconds=20.0, least_rounds=1)
_COMPARED = Budget(rounds=15, max_seconds=60.0, least_rounds=LEAST_SAMPLES)
_PLAIN = ("sequential", 1)
_FEWER = "No more than {most} requests at a time were tried: the GPU has no memory for more."
_NEVER_RUN = "The requests were never run at a time: the analytic model of the GPU computes their throughput."


def fewest_near_best(rates_us: Mapping[tuple[str, int], float]) -> tuple[str, int]:
    """The way with the fewest runs at the same time that is within `_LEAST_GAIN` of the fastest; the first of equals.

    Args:
        rates_us: microseconds between the ends of runs by schedule and number of runs.
    """
    limit_us = min(rates_us.values()) / (1 - _LEAST_GAIN)
    near = (each for each in rates_us if rates_us[each] <= limit_us)
    # Sums of the same latencies in another order differ in the last bits.
    return min(near, key=lambda each: (each[1], float(f"{rates_us[each]:.9g}")))


def predicted_in_flight(model: Model, opened: OpenModel, found: SearchResult, single: Verdict) -> Verdict:
    """`single`, the verdict on one run at a time, for the most images a second; latencies are between ends of runs."""
    in_flight_us = opened.details.in_flight_us
    assert in_flight_us is not None
    schedules = {"sequential": sequential(opened.graph), "iosched": found.schedule}
    rates_us = {(name, count): in_flight_us(each, count) for name, each in schedules.items() for count in COUNTS}
    chosen, count = fewest_near_best(rates_us)
    plain_us, chosen_us = rates_us[_PLAIN], rates_us[chosen, count]
    is_plain = (chosen, count) == _PLAIN
    ours_us = min(rates_us["iosched", each] for each in COUNTS) if is_plain else chosen_us
    in_file = {name: opened.units.expanded(priced(opened, each)) for name, each in schedules.items()}
    reason = f"nothing gains {_LEAST_GAIN:.0%} over one operator after another, one request at a time"
    if not is_plain:
        reason = f"{_words(chosen, count)} is {plain_us / chosen_us:.2f}x as fast as one operator after another"
    return replace(
        single,
        shipped="sequential" if is_plain else "iosched",
        reason=f"by the analytic model, {reason}",
        schedule=in_file[chosen],
        alternatives=() if chosen == "sequential" else (Alternative("sequential", in_file["sequential"], plain_us),),
        latencies={name: Measurement(us, us, us, ()) for name, us in (("sequential", plain_us), ("iosched", ours_us))},
        running=replace(single.running, n_kernels=sum(map(kernel_count, in_file[chosen].stages))),
        proven=None,
        intervals=None,
        teams=_teams(model, count),
    ).noting((*_callers(count), *([] if count == 1 else [_NEVER_RUN])))


def measured_in_flight(
    model: Model, here: AttachedModel, found: SearchResult, observer: Observer, time_budget: TimeBudget, faults: Faults
) -> Verdict:
    """The verdict by throughput: the fastest way ships if it is faster than single runs of one operator after another.

    Raises:
        DeviceError: the GPU has too little memory for a run.
        ExecutionError: one operator after another fails.
    """
    assert isinstance(here, RunsInFlight)
    inputs = random_inputs(model.graph.inputs)
    ways = {**here.one_after_another(), **here.ways(found.schedule)}

    def measured(opened: Mapping[str, Candidate], usual: Budget, share: float, what: str) -> Mapping[str, Measurement]:
        def progress(done: int, total: int) -> None:
            time_budget.ask()
            observer.progress(done, total, what)

        budget = replace(usual, max_seconds=min(usual.max_seconds, share * time_budget.remaining_s()))
        return measure_rates(opened, budget, progress, rest=lambda: None)

    rates_us: dict[tuple[str, int], float] = {}
    for number, (name, way) in enumerate(ways.items()):
        with faults.contained(name):
            opened = {str(count): each for count, each in here.in_flight(way, COUNTS, inputs).items()}
            with closing_all(opened):
                rates = measured(opened, _TRIED, 0.5 / (len(ways) - number), "trying requests at a time")
            rates_us |= {(name, int(count)): each.median_us for count, each in rates.items()}
    rates_us.pop(_PLAIN, None)
    chosen, count = fewest_near_best(rates_us)
    opened = {}
    with closing_all(opened):
        opened["sequential"] = here.ready(ways["sequential"], inputs)
        ((count, opened["iosched"]),) = here.in_flight(ways[chosen], [count], inputs).items()
        compared = measured(opened, _COMPARED, 1.0, f"comparing with {here.measuring.wording.baseline}")
    decided = decide(compared, "sequential", ["iosched"])
    shipped: Shipped = "iosched" if decided.chosen == "iosched" else "sequential"
    way, count = (ways[chosen], count) if shipped == "iosched" else (ways["sequential"], 1)
    plain, running = here.units.expanded(ways["sequential"].schedule), here.running(way, {})
    most = max(each for _, each in rates_us)
    fewer = () if most == COUNTS[-1] else (_FEWER.format(most=most),)
    return Verdict(
        shipped=shipped,
        reason=decided.reason({"iosched": _words(chosen, count), "sequential": here.measuring.wording.baseline}),
        schedule=here.units.expanded(way.schedule),
        alternatives=(Alternative("sequential", plain, compared["sequential"].median_us),) if count > 1 else (),
        latencies=compared,
        kernels_before=here.running(None, {}).n_kernels,
        running=replace(running, notes=(*_callers(count), *fewer, *faults.notes, *running.notes)),
        ratio=decided.ratio(),
        teams=_teams(model, count),
    )


def _words(name: str, count: int) -> str:
    words = "one operator after another" if name == "sequential" else "the schedule found"
    return words if count == 1 else f"{words} for {count} requests at a time"


def _callers(count: int) -> tuple[str, ...]:
    return () if count == 1 else (CALLERS.format(requests=count),)


def _teams(model: Model, count: int) -> Teams | None:
    return None if count == 1 else Teams(count, 1, model.batch_size)
