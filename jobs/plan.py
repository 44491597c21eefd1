"""Schedules for GPUs that are not here: the search under the analytic model, with nothing measured."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from iosched.jobs.conclusion import Conclusion
from iosched.jobs.optimization import (
    Interrupt,
    Observer,
    OptimizeResult,
    OptimizeSettings,
    Shipped,
    deadline,
    searched,
    taken,
)
from iosched.models.model import Model
from iosched.profiler.devices.analytic import AnalyticCost
from iosched.profiler.devices.gpus import GpuSpec
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import Alternative
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import precision_named
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.search import SearchResult
from iosched.scheduler.strategies import runs_as_one


def analytic_cost(model: Model, gpu: GpuSpec, precision: str) -> AnalyticCost:
    """The analytic model of `model`'s operators on `gpu`.

    Raises:
        UsageError: no such precision.
    """
    return AnalyticCost(model.graph, gpu, precision_named(precision))


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
        if (given := self.settings.schedule_from) is not None:
            return taken(given.schedule, self.cost.stage_latency_us)
        until = deadline(self.settings.budget_s, self.started, interrupt)
        return searched(self.model.graph, self.cost, self.settings, Effort(), observer, until)

    def result(self, found: SearchResult) -> OptimizeResult:
        """Compares the schedule found with the baselines, and ships it where it is faster than the sequential one."""
        graph = self.model.graph
        schedule, plain, eager = map(self._predicted, (found.schedule, sequential(graph), greedy(graph)))
        predicted_us, sequential_us, greedy_us = map(self._us, (schedule, plain, eager))
        # Sums of the same latencies in another order differ in the last bits.
        is_faster = predicted_us < sequential_us * (1 - 1e-9)
        shipped: Shipped = "iosched" if is_faster else "sequential"
        proven = found.proven
        chosen = schedule
        if shipped == "sequential":  # as fast as what was found; its only block is the whole graph
            proven = "whole" if proven == "whole" else None
            chosen = Schedule(tuple(replace(block, optimal=proven == "whole") for block in plain.blocks))
        concluded = Conclusion(
            found=found,
            schedule=chosen,
            proven=proven,
            shipped=shipped,
            reason=_reason(shipped, predicted_us, sequential_us),
            alternatives=tuple(
                Alternative(name, each)
                for name, each in (("iosched", schedule), ("sequential", plain), ("greedy", eager))
                if name != shipped
            ),
            device={"kind": "cuda", "name": self.gpu.name},
            latency_us={"predicted": predicted_us, "sequential": sequential_us, "greedy": greedy_us},
            signatures=found.measured,
            kernels=(len(self.model.graph.operators), sum(map(_kernel_count, chosen.stages))),
            cost="analytic",
            runtime={"precision": self.settings.precision},
        )
        return concluded.result(self.model, self.settings, self.started)

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


def _kernel_count(stage: Stage) -> int:
    return 1 if runs_as_one(stage) else len(stage.operators)


def _reason(shipped: Shipped, predicted_us: float, sequential_us: float) -> str:
    if shipped == "sequential":
        return "by the analytic model no other schedule is faster than one operator after another"
    return f"by the analytic model it is {sequential_us / predicted_us:.2f}x as fast as one operator after another"
