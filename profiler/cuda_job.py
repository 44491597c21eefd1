"""The main job on an attached GPU: search by measurement, compare whole models in one CUDA graph each, and decide."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import iosched
from iosched.models.model import Model
from iosched.profiler.cuda_candidates import measure_in_turn
from iosched.profiler.cuda_cost import CudaStageCost
from iosched.profiler.cuda_device import AttachedGpu
from iosched.profiler.effort import GPU_EFFORT
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
from iosched.profiler.session_note import session_notes
from iosched.profiler.statistics import Measurement
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument, SearchRecord, model_dtype
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import Pruning, SearchResult, SearchStrategy, search

ROUNDS = 30


@dataclass(frozen=True, eq=False)
class CudaJob:
    """One call of `optimize` for an attached GPU."""

    model: Model
    settings: OptimizeSettings
    gpu: AttachedGpu
    backend: CudaBackend
    cost: CudaStageCost
    observer: Observer
    interrupt: Interrupt
    started: float

    def run(self) -> OptimizeResult:
        """Search, compare, decide.

        Raises:
            DeviceError: the GPU has not enough memory, or cuDNN no engine.
            ExecutionError: a kernel fails.
            KeyboardInterrupt: `interrupt` was asked, and the best schedule known is not wanted.
        """
        graph = self.backend.graph
        with self.interrupt.holding():
            found = self._search()
            if self.interrupt.came:
                self.interrupt.ask()
            schedules = {"iosched": found.schedule, "sequential": sequential(graph), "greedy": greedy(graph)}
            models, latencies = self._compare(schedules)
        shipped: Shipped = min(
            cast(tuple[Shipped, ...], ("iosched", "sequential")), key=lambda name: latencies[name].median_us
        )
        return OptimizeResult(
            document=self._document(schedules[shipped], models[shipped].cudnn_plans, found, shipped, latencies),
            schedule=schedules[shipped],
            device_kind="cuda",
            device_name=self.gpu.name,
            cost="measured",
            optimal=found.schedule.optimal,
            predicted_us=found.schedule.predicted_us or latencies["iosched"].median_us,
            measured_us=latencies["iosched"].median_us,
            sequential_us=latencies["sequential"].median_us,
            greedy_us=latencies["greedy"].median_us,
            reference_us=None,
            shipped=shipped,
            reason=_reason(latencies, shipped),
            seconds=time.monotonic() - self.started,
            states=found.states,
            transitions=found.transitions,
            stages=found.stages,
            signatures=self.cost.signatures,
            measurements=self.cost.measurements,
            cache_hits=self.cost.cache_hits,
            kernels_before=models["sequential"].kernel_count,
            kernels_after=models[shipped].kernel_count,
            gap=found.gap if found.states else None,
            notes=(*_notes(self.cost), *self.backend.notes, *session_notes(models[shipped])),
        )

    def _search(self) -> SearchResult:
        graph, settings = self.backend.graph, self.settings
        if settings.strategy in ("sequential", "greedy"):
            return baseline(graph, settings.strategy)
        return search(
            graph,
            self.cost,
            strategy=cast(SearchStrategy, settings.strategy),
            pruning=Pruning(settings.r, settings.s),
            observer=SearchProgress(self.observer),
            deadline=deadline(settings.budget_s, self.started, self.interrupt),
            effort=GPU_EFFORT.exhausted() if settings.exhaustive else GPU_EFFORT,
        )

    def _compare(self, schedules: Mapping[str, Schedule]) -> tuple[dict[str, CudaModel], Mapping[str, Measurement]]:
        """Each schedule in one CUDA graph, measured in turn."""
        inputs = random_inputs(self.model.graph.inputs)
        models = {name: self.backend.compile(schedule) for name, schedule in schedules.items()}
        return models, measure_in_turn(models, inputs, ROUNDS, self._compared)

    def _compared(self, done: int, total: int) -> None:
        self.observer.progress(done, total, "comparing with the sequential schedule in one CUDA graph")

    def _document(
        self,
        chosen: Schedule,
        plans: Mapping[str, str],
        found: SearchResult,
        shipped: Shipped,
        latencies: Mapping[str, Measurement],
    ) -> ScheduleDocument:
        latency_us: dict[str, float | None] = {
            "predicted": found.schedule.predicted_us,
            "measured": latencies["iosched"].median_us,
            "sequential": latencies["sequential"].median_us,
            "greedy": latencies["greedy"].median_us,
            "reference": None,
        }
        settings = self.settings
        sizes = (found.states, found.transitions, found.stages, self.cost.signatures)
        return ScheduleDocument(
            model=self.model.name,
            sha256=self.model.digest,
            inputs=dict(self.model.bindings),
            dtype=model_dtype(self.model.graph),
            device={"kind": "cuda", "name": self.gpu.name},
            schedule=chosen,
            shipped=shipped,
            search=SearchRecord(settings.strategy, settings.r, settings.s, *sizes),
            latency_us=latency_us,
            versions={"iosched": iosched.__version__, **self.gpu.versions},
            runtime={
                "precision": settings.precision,
                "cudnn_plans": {**plans},
            },
        )


def _notes(cost: CudaStageCost) -> tuple[str, ...]:
    """What held the GPU's clock down, most often first."""
    return tuple(
        f"Of {cost.signatures} stages {count} were measured while the GPU ran slower than it could ({reason})."
        for reason, count in cost.throttled.most_common()
    )


def _reason(latencies: Mapping[str, Measurement], shipped: Shipped) -> str:
    ours, plain = latencies["iosched"].median_us, latencies["sequential"].median_us
    if shipped == "sequential":
        return (
            f"one operator after another in one CUDA graph is the fastest; the schedule found takes {ours / plain:.2f}x"
        )
    return f"the schedule found is {plain / ours:.2f}x as fast as one operator after another in one CUDA graph"
