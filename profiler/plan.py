"""Schedules for GPUs that are not here: the search under the analytic model, with nothing measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import cast, get_args

import iosched
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.analytic import AnalyticCost, Precision
from iosched.profiler.gpus import GpuSpec
from iosched.profiler.optimization import (
    Interrupt,
    Observer,
    OptimizeResult,
    OptimizeSettings,
    SearchProgress,
    Shipped,
    baseline,
    deadline,
)
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument, SearchRecord, model_dtype
from iosched.scheduler.effort import Effort
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import Pruning, SearchResult, SearchStrategy, search


def analytic_cost(model: Model, gpu: GpuSpec, precision: str) -> AnalyticCost:
    """The analytic model of `model`'s operators on `gpu`.

    Raises:
        UsageError: no such precision.
    """
    known = get_args(Precision)
    if precision not in known:
        raise UsageError(f"unknown precision {precision!r}: give {', '.join(known)}")
    return AnalyticCost(model.graph, gpu, cast(Precision, precision))


def plan(
    model: Model, gpu: GpuSpec, settings: OptimizeSettings, observer: Observer, interrupt: Interrupt
) -> OptimizeResult:
    """The best schedule of `model` on `gpu` under the analytic model, and what it is worth beside the baselines.

    Raises:
        UsageError: no such precision.
        KeyboardInterrupt: `interrupt` was asked, and the best schedule known is not wanted.
    """
    job = _Plan(model, gpu, settings, analytic_cost(model, gpu, settings.precision), time.monotonic())
    with interrupt.holding():
        found = job.search(observer, interrupt)
        if interrupt.came:
            interrupt.ask()
    return job.result(found)


@dataclass(frozen=True, eq=False)
class _Plan:
    model: Model
    gpu: GpuSpec
    settings: OptimizeSettings
    cost: AnalyticCost
    started: float

    def search(self, observer: Observer, interrupt: Interrupt) -> SearchResult:
        """The schedule that the settings ask for."""
        graph, settings = self.model.graph, self.settings
        if settings.strategy in ("sequential", "greedy"):
            return baseline(graph, settings.strategy)
        return search(
            graph,
            self.cost,
            strategy=cast(SearchStrategy, settings.strategy),
            pruning=Pruning(settings.r, settings.s),
            observer=SearchProgress(observer),
            deadline=deadline(settings.budget_s, self.started, interrupt),
            effort=Effort(exhaustive=settings.exhaustive),
        )

    def result(self, found: SearchResult) -> OptimizeResult:
        """Compares the schedule found with the baselines, and ships it where it is faster than the sequential one."""
        schedule, plain = self._predicted(found.schedule), self._predicted(sequential(self.model.graph))
        predicted_us, sequential_us = self._us(schedule), self._us(plain)
        greedy_us = self._us(greedy(self.model.graph))
        shipped: Shipped = "iosched" if predicted_us < sequential_us else "sequential"
        chosen = schedule if shipped == "iosched" else plain
        latency_us = {"predicted": predicted_us, "measured": None, "sequential": sequential_us, "greedy": greedy_us}
        return OptimizeResult(
            document=self._document(chosen, found, shipped, latency_us),
            schedule=chosen,
            device_kind="cuda",
            device_name=self.gpu.name,
            cost="analytic",
            optimal=found.schedule.optimal,
            predicted_us=predicted_us,
            measured_us=None,
            sequential_us=sequential_us,
            greedy_us=greedy_us,
            reference_us=None,
            shipped=shipped,
            reason=_reason(shipped, predicted_us, sequential_us),
            seconds=time.monotonic() - self.started,
            states=found.states,
            transitions=found.transitions,
            stages=found.stages,
            signatures=found.measured,
            measurements=0,
            cache_hits=0,
            kernels_before=len(self.model.graph.operators),
            kernels_after=sum(map(_kernel_count, chosen.stages)),
            gap=found.gap if found.states else None,
        )

    def _us(self, schedule: Schedule) -> float:
        return self.cost.schedule_latency_us(schedule)

    def _predicted(self, schedule: Schedule) -> Schedule:
        return Schedule(
            tuple(
                Block(block.index, tuple(self._predicted_stage(stage) for stage in block.stages), block.optimal)
                for block in schedule.blocks
            )
        )

    def _predicted_stage(self, stage: Stage) -> Stage:
        return replace(stage, predicted_us=self.cost.stage_latency_us(stage))

    def _document(
        self, chosen: Schedule, found: SearchResult, shipped: Shipped, latency_us: dict[str, float | None]
    ) -> ScheduleDocument:
        model, settings = self.model, self.settings
        sizes = (found.states, found.transitions, found.stages, found.measured)
        return ScheduleDocument(
            model=model.name,
            sha256=model.digest,
            inputs=dict(model.bindings),
            dtype=model_dtype(model.graph),
            device={"kind": "cuda", "name": self.gpu.name},
            schedule=chosen,
            cost="analytic",
            shipped=shipped,
            search=SearchRecord(settings.strategy, settings.r, settings.s, *sizes),
            latency_us={**latency_us, "reference": None},
            versions={"iosched": iosched.__version__},
            runtime={"precision": settings.precision},
        )


def _kernel_count(stage: Stage) -> int:
    return 1 if stage.strategy is Strategy.MERGE else len(stage.operators)


def _reason(shipped: Shipped, predicted_us: float, sequential_us: float) -> str:
    if shipped == "sequential":
        return "by the analytic model no other schedule is faster than one operator after another"
    return f"by the analytic model it is {sequential_us / predicted_us:.2f}x as fast as one operator after another"
