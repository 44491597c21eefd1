"""Finds the number of concurrent runs of a model with the highest throughput on a GPU.

Each run has a separate captured graph, streams and buffers. The schedule found and one operator after another, which
leaves more of the GPU to other runs, are tried with each number of runs: by measurement or, on a simulated GPU, by the
analytic model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from iosched.jobs.decision import decide
from iosched.jobs.observer import Observer
from iosched.jobs.optimizing.throughput import CALLERS
from iosched.jobs.optimizing.verdict import Verdict, kernel_count
from iosched.jobs.schedules import priced
from iosched.jobs.time_budget import TimeBudget
from iosched.models.model import Model
from iosched.profiler.devices.profiled_device import AttachedModel, OpenModel
from iosched.profiler.measuring.interleaved_models import Budget, closing_all, measure_rates
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.runtime.executor import Candidate
from iosched.runtime.faults import Faults
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential
from iosched.scheduler.search import SearchResult
from iosched.scheduler.teams import Teams

COUNTS = (1, 2, 4, 8, 16)

_LEAST_GAIN = 0.05
"""Minimum saving by more concurrent runs, each of which takes longer and needs memory."""

_TRIED = Budget(rounds=2, least_rounds=1)
_COMPARED = Budget(rounds=15, max_seconds=60.0, least_rounds=LEAST_SAMPLES)
_FEWER = "No more than {most} requests at a time were tried: the GPU has no memory for more."
_NO_TIME = "The time ran out before all numbers of requests at a time were tried: use a larger --budget."
_NEVER_RUN = "These requests were never run: the analytic model computes their throughput."


def fewest_near_best(rates_us: Mapping[tuple[str, int], float]) -> tuple[str, int]:
    """The schedule and the number of runs, the fewest within `_LEAST_GAIN` of the fastest.

    Args:
        rates_us: microseconds between the ends of runs by schedule and number of runs.
    """
    limit_us = min(rates_us.values()) / (1 - _LEAST_GAIN)
    return min((each for each in rates_us if rates_us[each] <= limit_us), key=lambda each: (each[1], rates_us[each]))


def predicted_in_flight(model: Model, opened: OpenModel, found: SearchResult, single: Verdict) -> Verdict:
    """`single`, the verdict on one run at a time, or one on several if the analytic model predicts enough gain."""
    in_flight_us = opened.details.in_flight_us
    assert in_flight_us is not None
    schedules = {"sequential": sequential(opened.graph), "iosched": found.schedule}
    rates_us = {(name, count): in_flight_us(each, count) for name, each in schedules.items() for count in COUNTS}
    chosen, count = fewest_near_best(rates_us)
    if count == 1:
        return single
    known_us = {"sequential": rates_us["sequential", 1], "iosched": rates_us[chosen, count]}
    schedule = opened.units.expanded(priced(opened, schedules[chosen]))
    gain = f"{known_us['sequential'] / known_us['iosched']:.2f}x as fast as one operator after another"
    reason = f"by the analytic model, {_words(chosen, count)} is {gain}"
    latencies = {name: Measurement(us, us, us, ()) for name, us in known_us.items()}
    running = replace(single.running, n_kernels=sum(map(kernel_count, schedule.stages)))
    verdict = replace(single, schedule=schedule, reason=reason, latencies=latencies, running=running)
    return _shipping(verdict, count, model, _NEVER_RUN)


def measured_in_flight(
    model: Model,
    attached: AttachedModel,
    found: SearchResult,
    single: Verdict,
    faults: Faults,
    observer: Observer,
    time_budget: TimeBudget,
) -> Verdict:
    """`single`, the verdict on one run at a time, or one on several if these are measured to be faster."""
    inputs, ways = random_inputs(model.graph.inputs), {**attached.one_after_another(), **attached.ways(found.schedule)}
    rates_us: dict[tuple[str, int], float] = {}
    for number, (name, count) in enumerate(product(ways, COUNTS)):
        if time_budget.remaining_s() <= 0:
            return single.noting((_NO_TIME, *faults.notes))
        observer.progress(number, len(ways) * len(COUNTS), "trying requests at a time")
        with faults.contained(name):
            candidate = attached.ready(replace(ways[name], requests=count), inputs)
            with closing_all({name: candidate}):
                rate = measure_rates({name: candidate}, _TRIED, rest=time_budget.ask)[name]
            rates_us[name, candidate.in_flight] = rate.median_us
    if not rates_us or (best := fewest_near_best(rates_us))[1] == 1:
        return single.noting(faults.notes)
    way, opened = replace(ways[best[0]], requests=best[1]), dict[str, Candidate]()
    with closing_all(opened):
        opened["sequential"] = attached.ready(ways["sequential"], inputs)
        opened["iosched"] = attached.ready(way, inputs)
        compared, count = measure_rates(opened, _COMPARED, rest=time_budget.ask), opened["iosched"].in_flight
    decided = decide(compared, "sequential", ["iosched"])
    if decided.chosen == "sequential" or count == 1:
        return single.noting(faults.notes)
    most, schedule = max(each for _, each in rates_us), attached.units.expanded(way.schedule)
    fewer = () if most == COUNTS[-1] else (_FEWER.format(most=most),)
    reason = decided.reason({"iosched": _words(best[0], count), "sequential": attached.measuring.wording.sequential})
    verdict = replace(single, schedule=schedule, reason=reason, latencies=compared, running=attached.running(way, {}))
    return _shipping(replace(verdict, ratio=decided.ratio()), count, model, *fewer, *faults.notes)


def _words(name: str, count: int) -> str:
    words = "one operator after another" if name == "sequential" else "the schedule found"
    return f"{words} for {count} requests at a time"


def _shipping(verdict: Verdict, count: int, model: Model, *notes: str) -> Verdict:
    teams = Teams(count, 1, model.batch_size)
    shipping = replace(
        verdict, shipped="iosched", teams=teams, proven=None, intervals=None, verdict=None, candidate=None
    )
    return shipping.noting((CALLERS.format(requests=count), *notes))
