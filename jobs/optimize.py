"""The job `optimize`: searches a schedule by measurement, compares it with others, and decides which one ships."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.open_model import NO_SHARED_RESOURCES, SharedResources, opened
from iosched.jobs.optimizing.comparison import Comparison, comparing
from iosched.jobs.optimizing.fallback import shipped_plain
from iosched.jobs.optimizing.in_flight import measured_in_flight, predicted_in_flight
from iosched.jobs.optimizing.measured_stages import measured_stages_notes
from iosched.jobs.optimizing.output_check import checked
from iosched.jobs.optimizing.result import OptimizeResult, result_of
from iosched.jobs.optimizing.throughput import best_throughput
from iosched.jobs.optimizing.verdict import (
    Verdict,
    measured_verdict,
    predicted_verdict,
    reduced_verdict,
    unscheduled_verdict,
)
from iosched.jobs.optimizing.whole_models import keep_whole
from iosched.jobs.schedules import or_in_lanes, schedule_asked_for, unsearched
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import ENGINE_SHARE, TimeBudget
from iosched.models.errors import UsageError
from iosched.models.log import logger
from iosched.models.model import Model
from iosched.profiler.baselines.library import LibraryBaseline
from iosched.profiler.baselines.onnxruntime import MANY_SESSIONS_NBYTES
from iosched.profiler.devices.measured_costs import MeasuredCosts
from iosched.profiler.devices.profiled_device import OpenModel, ProfiledDevice
from iosched.profiler.devices.resolve import check_name, fp16_gain, remarks, resolve
from iosched.profiler.measuring.deciding import LEAST_ROUNDS
from iosched.profiler.measuring.statistics import LEAST_SAMPLES
from iosched.profiler.store.latencies import ModelLatencies
from iosched.runtime.faults import Faults
from iosched.scheduler.baselines import sequential
from iosched.scheduler.cost import Prefetchable
from iosched.scheduler.schedule import Stage
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import NAMES
from iosched.scheduler.transfer import fitted

_log = logger(__name__)

_SEARCHING = 0.5
"""The part of the budget for a search on a GPU for throughput; the rest is for trying requests at a time."""

__all__ = ["OptimizeResult", "OptimizeSettings", "optimize"]


def optimize(
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    shared: SharedResources = NO_SHARED_RESOURCES,
) -> OptimizeResult:
    """Finds the fastest way to run `model` on an attached device or, by the analytic model, on another GPU.

    On the CPU, the schedule that is found is measured interleaved with the sequential and the greedy schedule, with
    plain onnxruntime in its best setting, and with OpenVINO if installed. A schedule ships only if it is faster than
    both beyond noise, and OpenVINO only if it is faster than plain onnxruntime. On a GPU, the schedule that is found
    has to beat the sequential schedule in one CUDA graph in the same way, and TensorRT if it runs the whole model.

    A stage that fails is left out of the search. If a whole plan fails on the CPU, plain onnxruntime ships; on an
    attached GPU one operator after another is tried. With `settings.strict` both are errors.

    With `settings.schedule_from` nothing is searched: the given schedule replaces the one that is found.

    Args:
        interrupt: defers interruptions of the search; by default they are raised at once.
        shared: resources shared with other jobs.

    Raises:
        UsageError: a setting is wrong.
        InvalidScheduleError: the given schedule was made for another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device is not attached, onnxruntime is not installed, or the memory of a GPU is too small.
        ExecutionError: onnxruntime fails to run the model, or on a GPU a kernel fails; with `settings.strict` a
            `PlanError` if a plan fails on the CPU.
        ResourceError: the machine has too little memory, threads or disk space.
        MismatchError: outputs differ from onnxruntime's, on a GPU or with `settings.strict`.
        KeyboardInterrupt: the user interrupts and declines the best schedule known.
    """
    if settings.strategy not in NAMES:
        raise UsageError(f"unknown strategy {settings.strategy!r}")
    check_name(settings.device)
    if settings.schedule_from is not None:
        settings = replace(settings, schedule_from=fitted(settings.schedule_from, model))
    device = resolve(settings.device, model)
    device.check(settings.opening)
    _log.info("optimize %r on %s: %s", model.name, device.info.name, settings.words)
    started, attempt = time.monotonic(), Faults()
    with attempt.contained(model.name):
        return _optimized(model, settings, device, observer or Silence(), interrupt or Uninterrupted(), shared, started)
    result = shipped_plain(attempt.found[model.name], model, settings, device, started)
    return replace(result, notes=(*remarks(settings.device), *result.notes))


def _optimized(
    model: Model,
    settings: OptimizeSettings,
    device: ProfiledDevice,
    observer: Observer,
    interrupt: Interrupt,
    shared: SharedResources,
    started: float,
) -> OptimizeResult:
    with opened(device, model, settings.opening, settings.profile_db, shared=shared) as open_model:
        started = started if shared.counts_opening else time.monotonic()
        baselines = open_model.baselines
        least = LEAST_SAMPLES if settings.objective == "throughput" else LEAST_ROUNDS
        library: LibraryBaseline | None = baselines.openvino
        if baselines.tensorrt is not None:
            library = baselines.tensorrt(settings.budget_s and ENGINE_SHARE * settings.budget_s)
        time_budget = TimeBudget(settings.budget_s, started, interrupt, baselines.onnxruntime, library, least=least)
        result = _OptimizeJob(
            model, settings, open_model, observer, time_budget, shared.prefetcher_of(open_model, time_budget)
        ).run()
    return checked(result, model, device, settings.threads, strict=settings.strict)


@dataclass(frozen=True, eq=False)
class _OptimizeJob:
    model: Model
    settings: OptimizeSettings
    opened: OpenModel
    observer: Observer
    time_budget: TimeBudget
    prefetcher: Prefetchable | None

    def run(self) -> OptimizeResult:
        with self.time_budget.interrupt.holding():
            is_for_throughput = self.settings.objective == "throughput" and self.opened.is_schedulable
            here = self.opened.attached
            if is_for_throughput and here is not None and here.teams is not None:
                return self._result(*best_throughput(here, self.model, self.settings, self.observer, self.time_budget))
            found, verdict, search_seconds = self._decided()
            if is_for_throughput and here is None:
                verdict = predicted_in_flight(self.model, self.opened, found, verdict)
            elif is_for_throughput and here is not None:
                tools = Faults(self.settings.strict), self.observer, self.time_budget
                verdict = measured_in_flight(self.model, here, found, verdict, *tools)
        result = self._result(found, verdict)
        return replace(result, search_seconds=search_seconds)

    def _decided(self) -> tuple[SearchResult, Verdict, float]:
        """The plan that ships and the seconds of the search; one operator after another if no other plan runs."""
        here = self.opened.attached
        has_plain = here is None or here.baselines.onnxruntime is not None
        attempt = Faults(self.settings.strict or has_plain)
        with attempt.contained("the schedule found"):
            return self._searched_and_compared()
        found = unsearched(sequential(self.opened.graph))
        with self._comparing() as comparison:
            return found, self._verdict(found, comparison).noting(attempt.notes), self.time_budget.seconds

    def _searched_and_compared(self) -> tuple[SearchResult, Verdict, float]:
        with self._comparing() as comparison:
            began = self.time_budget.seconds
            first = self._compared_unsearched(comparison)
            comparison_seconds = self.time_budget.seconds - began
            found = self._searched(first)
            search_seconds = self.time_budget.seconds - comparison_seconds
            _log.info("searched %d stages in %.1f s, gap %.3g", found.stages, search_seconds, found.gap)
            self.time_budget.ask()
            return found, self._verdict(found, comparison), search_seconds

    def _compared_unsearched(self, comparison: Comparison | None) -> Iterable[Stage]:
        """Compares baselines before the search, if a CPU runs them, time allows and all may stay open during it.

        Returns the stages with several groups of the best of ours, which the search measures first.
        """
        plain = self.opened.baselines.onnxruntime
        weights_nbytes = sum(array.nbytes for array in self.model.weights.values())
        is_reduced = self.opened.baselines.only_way is not None
        if plain is None or is_reduced or not self.opened.is_schedulable or weights_nbytes > MANY_SESSIONS_NBYTES:
            return ()
        if comparison is None or self.settings.schedule_from is not None or self.settings.strict:
            return ()  # strict: the search names the operators of a failing stage, a whole model does not
        if not self.time_budget.has_time_before_the_search:
            return ()
        self.observer.progress(0, None, "comparing baselines")
        compared = comparison.of(None, None)
        best = compared.ways[compared.trial.leader].schedule
        return [stage for stage in best.stages if len(stage.groups) > 1]

    @contextmanager
    def _comparing(self) -> Iterator[Comparison | None]:
        here = self.opened.attached
        if here is None:
            yield None
            return
        latencies = ModelLatencies(self.model, here.cost.database, here.cost.device, self.settings.resume)
        with comparing(latencies, here, self.time_budget, self.observer, Faults(self.settings.strict)) as comparison:
            yield comparison

    def _result(self, found: SearchResult, verdict: Verdict, cost: MeasuredCosts | None = None) -> OptimizeResult:
        here = self.opened.attached
        cost = here.cost if cost is None and here is not None else cost
        of_model = self.model, self.settings, self.opened.device, here
        result = result_of(*of_model, found, verdict, cost, self.time_budget.seconds)
        counts = result.measurements, result.cache_hits, result.seconds
        _log.info("%d stages measured, %d known before, %.1f s in all", *counts)
        _log.info("ships %s: %s", result.shipped, result.reason)
        fp16 = fp16_gain(self.opened.device, self.model, self.settings.opening, result.schedule)
        return replace(result, fp16=fp16, notes=(*remarks(self.settings.device), *result.notes))

    def _searched(self, first: Iterable[Stage]) -> SearchResult:
        if self.opened.baselines.only_way is not None and self.settings.schedule_from is not None:
            raise UsageError(f"no schedule runs in {self.settings.precision} on a CPU: remove --schedule-from")
        if not self.opened.is_schedulable:
            return unsearched(sequential(self.opened.graph))
        share = _SEARCHING if self.settings.objective == "throughput" else 1.0
        deadline = partial(self.time_budget.deadline, share=share)
        found = schedule_asked_for(self.opened, self.settings, self.observer, deadline, self.prefetcher, first)
        is_computed = self.opened.attached is None and self.settings.schedule_from is None
        return or_in_lanes(self.opened, self.settings, found) if is_computed else found

    def _verdict(self, found: SearchResult, comparison: Comparison | None) -> Verdict:
        here = self.opened.attached
        if here is None or comparison is None:
            runtime = {"precision": self.settings.precision, "launch": self.settings.launch}
            verdict = predicted_verdict(self.model, self.opened, runtime, found)
            share = verdict.running.runtime.get("measured_share")
            return verdict.noting(measured_stages_notes(self.opened, self.settings, share))
        if here.baselines.only_way is not None:
            return reduced_verdict(here, here.baselines.only_way, found, self.time_budget, comparison)
        if not here.is_schedulable:
            return unscheduled_verdict(here, found)
        compared = comparison.of(found.schedule, self.time_budget.seconds)
        verdict = measured_verdict(here, found, compared, self.time_budget)
        keep_whole(self.model, self.settings, here, found, verdict)
        return verdict
