"""The main job on an attached GPU: search by measurement, compare whole models in one CUDA graph each, and decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from iosched.jobs.conclusion import Conclusion
from iosched.jobs.decision import decide, speedup_text
from iosched.jobs.effort import GPU_EFFORT
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
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.candidates import measure_in_turn
from iosched.profiler.devices.cuda.clock import with_clock
from iosched.profiler.devices.cuda.cost import CudaStageCost
from iosched.profiler.devices.cuda.session_note import session_notes
from iosched.profiler.devices.known import KnownStages
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.latencies import ModelLatencies, structure
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import Alternative
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult

ROUNDS = 30

_NO_BARRIERS = "iosched without barriers"
_LABELS = {_NO_BARRIERS: "iosched"}
_WORDS = {
    "iosched": "the schedule found",
    _NO_BARRIERS: "the schedule found",
    "sequential": "one operator after another in one CUDA graph",
}


@dataclass(frozen=True)
class _Way:
    """A schedule, and whether its stages wait for one another."""

    schedule: Schedule
    barriers: bool = True

    @property
    def text(self) -> str:
        """Equal for ways that do the same."""
        return structure(self.schedule) + ("" if self.barriers else " without barriers")


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
        with self.interrupt.holding():
            found = self._search()
            self._ask()
            ways = self._ways(found.schedule)
            latencies = self._compared(ways)
            self._ask()
        return self._conclusion(found, ways, latencies).result(self.model, self.settings, self.started)

    def _search(self) -> SearchResult:
        if (given := self.settings.schedule_from) is not None:
            return taken(given.schedule, KnownStages(self.cost).latency_us)
        until = deadline(self.settings.budget_s, self.started, self.interrupt)
        return searched(self.backend.graph, self.cost, self.settings, GPU_EFFORT, self.observer, until)

    def _ask(self) -> None:
        if self.interrupt.came:
            self.interrupt.ask()

    def _ways(self, found: Schedule) -> dict[str, _Way]:
        """What is compared."""
        graph, barriers = self.backend.graph, self.settings.barriers
        ways = {"iosched": _Way(found)} if barriers != "none" else {}
        if barriers != "stage":
            ways[_NO_BARRIERS] = _Way(found, barriers=False)
        return ways | {"sequential": _Way(sequential(graph)), "greedy": _Way(greedy(graph))}

    def _compared(self, ways: Mapping[str, _Way]) -> Mapping[str, Measurement]:
        """Each in one CUDA graph, from the database or measured in turn."""
        texts = {name: way.text for name, way in ways.items()}
        known = self._latencies.known(texts)
        if known is not None:
            return known
        inputs = random_inputs(self.model.graph.inputs)
        twins = {text: name for name, text in reversed(texts.items())}
        models = {name: self._compiled(ways[name]) for name in twins.values()}
        try:
            measured = measure_in_turn(models, inputs, ROUNDS, self._told)
        finally:
            for model in models.values():
                model.close()
        found = {name: measured[twins[text]] for name, text in texts.items()}
        self._latencies.keep(texts, {name: with_clock(each, self.gpu.clock) for name, each in found.items()})
        return found

    def _told(self, done: int, total: int) -> None:
        self.observer.progress(done, total, "comparing with the sequential schedule in one CUDA graph")

    def _compiled(self, way: _Way) -> CudaModel:
        return self.backend.compile(way.schedule, barriers=way.barriers)

    @cached_property
    def _latencies(self) -> ModelLatencies:
        return ModelLatencies(self.model, self.cost.database, self.cost.device)

    def _conclusion(
        self, found: SearchResult, ways: Mapping[str, _Way], latencies: Mapping[str, Measurement]
    ) -> Conclusion:
        """The schedule found, where it is faster than one operator after another; without barriers where that helps."""
        median_us = {name: each.median_us for name, each in latencies.items()}
        decided = decide(latencies, "sequential", [name for name in ("iosched", _NO_BARRIERS) if name in ways])
        shipped: Shipped = "sequential" if decided.chosen == "sequential" else "iosched"
        chosen = ways[decided.chosen]
        model = self._compiled(chosen)
        conclusion = Conclusion(
            found=found,
            schedule=chosen.schedule,
            proven=None if shipped == "sequential" else found.proven,
            shipped=shipped,
            reason=decided.reason(_WORDS),
            ratio=decided.ratio(_LABELS),
            alternatives=tuple(
                Alternative(_LABELS.get(name, name), ways[name].schedule, median_us[name])
                for name in (decided.weighed, "sequential", "greedy")
                if name != decided.chosen
            ),
            device={"kind": "cuda", "name": self.gpu.name},
            latency_us={**median_us, "measured": median_us[decided.weighed]},
            signatures=self.cost.signatures,
            kernels=(_kernel_count(self.backend, ways["sequential"]), model.kernel_count),
            measurements=self.cost.measurements,
            cache_hits=self.cost.cache_hits,
            versions=self.gpu.versions,
            runtime={
                "precision": self.settings.precision,
                "barriers": "stage" if chosen.barriers else "none",
                "cudnn_plans": {**model.cudnn_plans},
            },
            notes=(*_barrier_notes(latencies), *_notes(self.cost), *self.backend.notes, *session_notes(model)),
        )
        model.close()
        return conclusion


def _kernel_count(backend: CudaBackend, way: _Way) -> int:
    return sum(map(len, backend.lower(way.schedule, barriers=way.barriers).plan.lanes))


def _barrier_notes(latencies: Mapping[str, Measurement]) -> tuple[str, ...]:
    """What waiting for less than whole stages brings, where both were measured and differ."""
    if not {"iosched", _NO_BARRIERS} <= latencies.keys():
        return ()
    found = compare(latencies["iosched"], latencies[_NO_BARRIERS])
    if found is None or not (found.is_faster or found.is_slower):
        return ()
    speedup = speedup_text(found)
    return (f"With stages that wait only for what they read, the schedule found is {speedup} as fast as else.",)


def _notes(cost: CudaStageCost) -> tuple[str, ...]:
    """What held the GPU's clock down, most often first."""
    return tuple(
        f"Of {cost.signatures} stages {count} were measured while the GPU ran slower than it could ({reason})."
        for reason, count in cost.throttled.most_common()
    )
