"""The latency of a model on a device: measured, estimated from stages, or computed."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.open_model import NO_SHARED_RESOURCES, SharedResources, check_schedulable, opened
from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing.measured_stages import MeasuredOnly
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.jobs.optimizing.whole_models import operators_us, whole_key
from iosched.jobs.ranking.measures import Measure
from iosched.jobs.schedules import found_by, schedule_asked_for
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import TimeBudget
from iosched.models.errors import ExecutionError, UsageError
from iosched.models.model import Model
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.devices.profiled_device import LEVEL, AttachedModel, attached
from iosched.profiler.devices.resolve import resolve, throughputs
from iosched.profiler.measuring.statistics import CONFIDENCE, Interval, quantile, summarize
from iosched.profiler.store.tables import WholeRow
from iosched.runtime.device import DeviceInfo
from iosched.scheduler.baselines import sequential
from iosched.scheduler.cost import Prefetchable
from iosched.scheduler.effort import Effort
from iosched.scheduler.schedule import Stage, sum_us
from iosched.scheduler.search import SearchResult

Cost = Literal["measured", "estimated", "analytic"]


@dataclass(frozen=True)
class ModelCost:
    """The latency of a model on a device as `optimize` ships it, and its source.

    Attributes:
        device: the short name of the device ("cpu", "v100").
        cost: "measured" as a whole, "estimated" from the latencies of its stages, or "analytic".
        low_us: lower end of its interval; None if its error is unknown.
        high_us: upper end of it.
        level: the intended coverage probability of the interval; None without one.
        sequential_us: the latency of one operator after another; None if that of an operator is unknown.
        shipped: the alternative of this latency: "iosched", "sequential", "reference" or "openvino"; None if undecided.
        sum_us: the sum of the latencies of the stages of the schedule found.
        share_of_peak: the model's operations a second over the peak of the device; None if unknown.
        cache_hits: the number of stage latencies from the profile database.
        measurements: the number of these measured.
        measured_share: on a simulated GPU, the part of the latency that was measured on such a GPU on another machine.
        search_seconds: seconds to open the model, measure stages and search.
        comparison_seconds: seconds to measure whole models.
        result: the schedule; None if no whole model was measured or computed.
    """

    device: str
    device_name: str
    cost: Cost
    latency_us: float
    low_us: float | None
    high_us: float | None
    level: float | None
    sequential_us: float | None
    shipped: str | None = None
    sum_us: float | None = None
    share_of_peak: float | None = None
    cache_hits: int = 0
    measurements: int = 0
    measured_share: float | None = None
    search_seconds: float = 0.0
    comparison_seconds: float = 0.0
    notes: tuple[str, ...] = ()
    result: OptimizeResult | None = None

    @property
    def hit_rate(self) -> float | None:
        """The part, from 0 to 1, of the requested latencies that the database had; None if none was requested."""
        asked = self.cache_hits + self.measurements
        return self.cache_hits / asked if asked else None


def model_cost(
    model: Model,
    measure: Measure,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    shared: SharedResources = NO_SHARED_RESOURCES,
) -> ModelCost:
    """The latency of `model` on `settings.device` as `optimize` ships it.

    On an attached device, "models" is `optimize`; "stages" searches in the same way and measures no whole model; and
    "none" measures nothing and uses the stored latency of the whole model, or else of the best schedule of stored
    stages. On a simulated GPU, all three are the analytic model.

    Raises:
        UsageError: a setting is wrong, nothing can be scheduled, or the profile database does not know enough.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device is not attached, or a library is missing.
        ExecutionError: a kernel fails.
        KeyboardInterrupt: the user interrupts.
    """
    device = resolve(settings.device, model)
    if device.info.cost_kind == "analytic" or measure == "models":
        return _of_result(model, device.info, optimize(model, settings, observer, interrupt, shared))
    device.check(settings.opening)
    started = time.monotonic()
    opening = replace(settings.opening, may_time=measure != "none")
    with opened(device, model, opening, settings.profile_db, writes=measure != "none", shared=shared) as there:
        held = interrupt or Uninterrupted()
        began = started if shared.counts_opening else time.monotonic()
        time_budget = TimeBudget(settings.budget_s, began, held)  # reserves no time for whole models
        prefetcher = shared.prefetcher_of(there, time_budget)
        job = _FromStages(model, settings, attached(there), observer or Silence(), started, time_budget, prefetcher)
        return job.searched() if measure == "stages" else job.known()


def _of_result(model: Model, device: DeviceInfo, result: OptimizeResult) -> ModelCost:
    whole, computed, search_seconds = result.shipped_whole, result.intervals, result.search_seconds
    if whole is not None:
        found, level, sum_us = whole.interval, CONFIDENCE, result.predicted_us
    elif computed is not None:
        found, level, sum_us = computed.latency_us[result.shipped], computed.level, result.shipped_us
    else:
        raise UsageError(f"nothing was measured: {result.reason}")
    if computed is not None or search_seconds is None:
        search_seconds = result.seconds
    return ModelCost(
        *(device.key, device.name, result.document.cost, result.shipped_us, *_ends(found, level)),
        sequential_us=result.sequential_us if computed else result.sequential_us or None,
        shipped=result.shipped,
        sum_us=sum_us,
        share_of_peak=_share_of_peak(model, result),
        cache_hits=result.cache_hits,
        measurements=result.measurements,
        measured_share=result.measured_share,
        search_seconds=search_seconds,
        comparison_seconds=result.seconds - search_seconds,
        notes=result.notes,
        result=result,
    )


def _ends(found: Interval | None, level: float) -> tuple[float | None, float | None, float | None]:
    return (None, None, None) if found is None else (found.low, found.high, level)


@dataclass(frozen=True, eq=False)
class _FromStages:
    model: Model
    settings: OptimizeSettings
    here: AttachedModel
    observer: Observer
    started: float
    time_budget: TimeBudget
    fetcher: Prefetchable | None

    def searched(self) -> ModelCost:
        self._check()
        with self.time_budget.interrupt.holding():
            found = schedule_asked_for(self.here, self.settings, self.observer, self.time_budget.deadline, self.fetcher)
            self.time_budget.ask()
        total_us, cost = _total_us(found), self.here.cost
        estimated = self._estimated(total_us, operators_us(self.here))
        return replace(estimated, cache_hits=cost.cache_hits, measurements=cost.measurements)

    def known(self) -> ModelCost:
        row = self.here.cost.database.whole(whole_key(self.model, self.settings, self.here), self.here.cost.device)
        if row is not None and self.settings.resume:
            return self._as_before(row)
        self._check()
        stages = sequential(self.here.graph).stages
        alone = [(self.here.cost.operator_key(stage.operators[0]), self._known_us(stage)) for stage in stages]
        in_turn_us, names = sum_us(us for _, us in alone), dict(alone)
        if in_turn_us is None:
            missing = sum(us is None for us in names.values())
            raise UsageError(
                f"the profile database has no latency on this device for {missing} of {len(names)} distinct operators"
                " of this model: measure them with --measure stages"
            )
        return replace(self._estimated(_total_us(self._known_schedule()), in_turn_us), cache_hits=len(names))

    def _as_before(self, row: WholeRow) -> ModelCost:
        whole = summarize(row.samples_us)
        device = self.here.device.info
        return ModelCost(
            *(device.key, device.name, "measured", whole.median_us, *_ends(whole.interval, CONFIDENCE)),
            sequential_us=quantile(row.sequential_us, 0.5) if row.sequential_us else None,
            shipped=row.shipped,
            sum_us=row.sum_us,
            share_of_peak=self._share_of_peak(whole.median_us),
            cache_hits=1,
            search_seconds=time.monotonic() - self.started,
        )

    def _known_schedule(self) -> SearchResult:
        cost = MeasuredOnly(self._known_us, self.here.cost.operator_key)
        try:
            return found_by(self.here.graph, cost, Effort(), self.settings.strategy, self.settings.pruning)
        except ExecutionError as error:
            raise UsageError(f"the stages in the profile database do not form a schedule: {error}") from error

    def _known_us(self, stage: Stage) -> float | None:
        return known_us(self.here.cost, stage) if self.settings.resume else None

    def _check(self) -> None:
        if self.here.baselines.only_way is not None:
            raise UsageError(f"no schedule runs in {self.settings.precision} on this device: use --measure models")
        check_schedulable(self.here)

    def _estimated(self, total_us: float, in_turn_us: float) -> ModelCost:
        rows = self._rows()
        calibration = calibrated([(row.sum_us, quantile(row.samples_us, 0.5)) for row in rows])
        of_sequential = calibrated([(row.sequential_sum_us, quantile(row.sequential_us, 0.5)) for row in rows])
        known, device = calibration.applied(total_us), self.here.device.info
        return ModelCost(
            *(device.key, device.name, "estimated", total_us * calibration.factor, *_ends(known, LEVEL)),
            sequential_us=in_turn_us * of_sequential.factor,
            sum_us=total_us,
            share_of_peak=self._share_of_peak(total_us * calibration.factor),
            search_seconds=time.monotonic() - self.started,
            notes=(_note(calibration),),
        )

    def _rows(self) -> Sequence[WholeRow]:
        cost = self.here.cost
        own = whole_key(self.model, self.settings, self.here)
        return [row for row in cost.database.wholes(cost.device) if row.key != own and row.sequential_us]

    def _share_of_peak(self, latency_us: float) -> float | None:
        return share_of(self.model, latency_us, self.here.details.throughputs.peak_tflops)


def _total_us(found: SearchResult) -> float:
    """The sum of stage latencies; raises `UsageError` if the search ended before it had a schedule."""
    total_us = found.schedule.predicted_us
    if total_us is None:
        raise UsageError("no time was left to measure stages: use a larger --budget")
    return total_us


def share_of(model: Model, latency_us: float, peak_tflops: float | None) -> float | None:
    """The model's FLOP/s over the device's peak."""
    return model.flops / latency_us / 1e6 / peak_tflops if latency_us and peak_tflops else None


def _note(calibration: Calibration) -> str:
    if calibration.error is None:
        return (
            f"The error of sums of stage latencies is unknown: {calibration.models} of the {LEAST_MODELS} whole models"
            " that its estimate needs were measured on this device. Measure more with --measure models."
        )
    return (
        f"Sums of stage latencies are multiplied by {calibration.factor:.2f}; {LEVEL:.0%} of the results are then"
        f" within {calibration.error - 1:.0%}, as estimated from {calibration.models} whole models."
    )


def _share_of_peak(model: Model, result: OptimizeResult) -> float | None:
    return share_of(model, result.shipped_us, throughputs(model, result.document).peak_tflops)


LEAST_MODELS = 9
"""With fewer models even the largest error seen is exceeded more often than `LEVEL` allows: n / (n + 1) is below it."""


@dataclass(frozen=True)
class Calibration:
    """The factor for sums of stages, and its error.

    Attributes:
        models: the number of models used.
        factor: latency of whole models over the sums of their stages; 1 with too few models.
        error: the largest error factor of the product with probability `LEVEL`; None with too few models.
    """

    models: int
    factor: float = 1.0
    error: float | None = None

    def applied(self, sum_us: float) -> Interval | None:
        """The estimated interval of a whole model in microseconds; None if the error is unknown."""
        value = sum_us * self.factor
        return None if self.error is None else Interval(value, value / self.error, value * self.error)


def calibrated(pairs: Sequence[tuple[float, float]]) -> Calibration:
    """Calibrates by pairs of a sum of stages and a whole model's latency, in microseconds.

    Complexity: O(n^2 log n) for n pairs.
    """
    logs = [math.log(whole / total) for total, whole in pairs if total > 0 and whole > 0]
    if len(logs) < LEAST_MODELS:
        return Calibration(len(logs))
    missed = sorted(abs(each - quantile([*logs[:place], *logs[place + 1 :]], 0.5)) for place, each in enumerate(logs))
    rank = math.ceil((len(logs) + 1) * LEVEL)
    return Calibration(len(logs), math.exp(quantile(logs, 0.5)), math.exp(missed[min(rank, len(missed)) - 1]))
