"""The main job: search a schedule by measurement, compare it with what it has to beat, and decide what to ship."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import iosched
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.candidates import (
    REST_SECONDS,
    Arrays,
    Budget,
    Runnable,
    best_reference,
    close_all,
    expand,
    measure_in_turn,
)
from iosched.profiler.cpu_cost import YARDSTICK, StageCost, cpu_name
from iosched.profiler.cuda_cost import CudaStageCost
from iosched.profiler.cuda_device import StoredPlans, attach
from iosched.profiler.cuda_job import CudaJob
from iosched.profiler.database import MeasurementStore, ProfileDatabase, default_path
from iosched.profiler.effort import CPU_EFFORT
from iosched.profiler.optimization import (
    Interrupt,
    Observer,
    OptimizeResult,
    OptimizeSettings,
    SearchProgress,
    Shipped,
    Silence,
    Uninterrupted,
    baseline,
)
from iosched.profiler.plan import plan
from iosched.profiler.refresh import Refreshed
from iosched.profiler.statistics import Measurement
from iosched.profiler.target import attached_index, planned_gpu
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.reference import candidates as reference_candidates
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument, SearchRecord, model_dtype
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import Pruning, SearchResult, SearchStrategy, search

__all__ = ["OptimizeResult", "OptimizeSettings", "optimize"]

STRATEGIES = ("concurrent", "merge", "both", "sequential", "greedy")

_N_CANDIDATES = 4  # three schedules and plain onnxruntime
_LEAST_RUNS = 3  # of each, when whole models are compared in a hurry: two to warm up
_HURRIED = Budget(rounds=1, max_seconds=0.1)


def optimize(
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> OptimizeResult:
    """Finds the fastest way to run `model` here, or on a GPU that is not here, by a model of it.

    On the CPU, the schedule found is measured in turn with the sequential and the greedy schedule and with plain
    onnxruntime in its best setting; the fastest is shipped, so the result is never slower than plain onnxruntime beyond
    noise. On a GPU it is measured in turn with the sequential schedule in one CUDA graph.

    Raises:
        UsageError: a setting is wrong.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
        KeyboardInterrupt: `interrupt` was asked, and the best schedule known is not wanted.
    """
    if settings.strategy not in STRATEGIES:
        raise UsageError(f"unknown strategy {settings.strategy!r}")
    gpu = planned_gpu(settings.device)
    observer, interrupt = observer or Silence(), interrupt or Uninterrupted()
    index = attached_index(settings.device)
    if index is not None and (settings.device != "auto" or CudaBackend.supports(model)):
        return _optimize_on_gpu(model, settings, index, observer, interrupt)
    if gpu is not None:
        return plan(model, gpu, settings, observer, interrupt)
    if settings.precision != "fp32":
        raise UsageError("--precision is for GPUs; the CPU computes in the model's own types")
    started = time.monotonic()
    with _database(settings) as database, CpuBackend(model, lanes=settings.threads) as backend:
        cost = StageCost(backend, _store(database, settings))
        return _Job(model, settings, backend, cost, observer, interrupt, started).run()


def _optimize_on_gpu(
    model: Model, settings: OptimizeSettings, index: int, observer: Observer, interrupt: Interrupt
) -> OptimizeResult:
    started = time.monotonic()
    gpu = attach(index)
    with _database(settings) as database:
        device = gpu.key(settings.precision)
        backend = gpu.backend(model, settings.precision, StoredPlans(database, device))
        cost = CudaStageCost(backend, _store(database, settings), device, clock=gpu.clock)
        return CudaJob(model, settings, gpu, backend, cost, observer, interrupt, started).run()


def _database(settings: OptimizeSettings) -> ProfileDatabase:
    return ProfileDatabase(settings.profile_db or default_path())


def _store(database: ProfileDatabase, settings: OptimizeSettings) -> MeasurementStore:
    return database if settings.resume else Refreshed(database, kept=frozenset({YARDSTICK}))


class _StoppedError(Exception):
    """An interruption came between two rounds of comparing."""


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of `optimize`: the things that its steps share."""

    model: Model
    settings: OptimizeSettings
    backend: CpuBackend
    cost: StageCost
    observer: Observer
    interrupt: Interrupt
    started: float
    _probed: list[tuple[float, float]] = field(default_factory=list)

    def run(self) -> OptimizeResult:
        """Search, compare, decide."""
        graph = self.backend.graph
        with self.interrupt.holding():
            found = self._search()
            if self.interrupt.came:
                self.interrupt.ask()
            schedules = {"iosched": found.schedule, "sequential": sequential(graph), "greedy": greedy(graph)}
            latencies, reference = self._compare(schedules)
        shipped, reason = _decide(latencies)
        if not self.backend.is_supported():
            reason = "its inputs have no fixed size or nothing is computed, so there is nothing to schedule"
        chosen = expand(self.backend.coarse, schedules.get(shipped, found.schedule))
        before = len(self.backend.kernels.nodes)
        after = before if shipped == "reference" else self._kernel_count(schedules[shipped])
        return OptimizeResult(
            document=self._document(chosen, found, shipped, reference, latencies),
            schedule=chosen,
            device_kind="cpu",
            device_name=cpu_name(),
            cost="measured",
            optimal=found.schedule.optimal,
            predicted_us=found.schedule.predicted_us or _median(latencies, "iosched") or 0.0,
            measured_us=_median(latencies, "iosched"),
            sequential_us=_median(latencies, "sequential") or 0.0,
            greedy_us=_median(latencies, "greedy"),
            reference_us=_median(latencies, "reference"),
            shipped=shipped,
            reason=reason,
            seconds=time.monotonic() - self.started,
            states=found.states,
            transitions=found.transitions,
            stages=found.stages,
            signatures=self.cost.signatures,
            measurements=self.cost.measurements,
            cache_hits=self.cost.cache_hits,
            kernels_before=before,
            kernels_after=after,
            gap=found.gap if found.states else None,
        )

    def _search(self) -> SearchResult:
        graph, strategy = self.backend.graph, self.settings.strategy
        if not self.backend.is_supported() or strategy in ("sequential", "greedy"):
            return baseline(graph, strategy)
        return search(
            graph,
            self.cost,
            strategy=cast(SearchStrategy, strategy),
            pruning=Pruning(self.settings.r, self.settings.s),
            observer=SearchProgress(self.observer),
            deadline=self._deadline(),
            effort=CPU_EFFORT.exhausted() if self.settings.exhaustive else CPU_EFFORT,
        )

    def _deadline(self) -> Callable[[], bool] | None:
        """True once the search has to leave the rest of the budget to comparing whole models, or was interrupted."""
        if self.settings.budget_s is None:
            return (lambda: self.interrupt.came) if self.interrupt.can_come else None
        budget_s = self.settings.budget_s
        end = self.started + max(budget_s - self._least_comparison_s(), budget_s / 2)
        return lambda: self.interrupt.came or time.monotonic() >= end

    def _left_s(self) -> float:
        """Seconds left of the budget."""
        if self.interrupt.accepted:
            return 0.0
        if self.settings.budget_s is None:
            return math.inf
        return max(self.settings.budget_s - (time.monotonic() - self.started), 0.0)

    def _probe(self) -> tuple[float, float]:
        """Seconds that plain onnxruntime takes to be opened and to run once."""
        if not self._probed:
            began = time.monotonic()
            with Reference(self.model, reference_candidates(self.backend.lanes)[0]) as reference:
                run_s = reference.time(random_inputs(self.model.graph.inputs), 1)[0] / 1e6
            self._probed.append((time.monotonic() - began - run_s, run_s))
        return self._probed[0]

    def _least_comparison_s(self) -> float:
        """About what comparing whole models takes in a hurry; that what is compiled opens like plain onnxruntime."""
        open_s, run_s = self._probe() if self.backend.is_supported() else (0.0, 0.0)
        return _N_CANDIDATES * (open_s + _LEAST_RUNS * (run_s + REST_SECONDS))

    def _compare(self, schedules: dict[str, Schedule]) -> tuple[dict[str, Measurement], ReferenceSettings]:
        """Latency of each schedule and of plain onnxruntime, from the database or measured in turn."""
        if not self.backend.is_supported():
            return {}, ReferenceSettings("sequential", self.backend.lanes)
        keys = {name: self._key(_structure(schedule)) for name, schedule in schedules.items()}
        keys["reference"] = self._key("reference")
        stored = {name: self.cost.database.get(key, self.cost.device) for name, key in keys.items()}
        setting = self._stored_setting()
        known = {name: found for name, found in stored.items() if found is not None}
        if setting is not None and len(known) == len(stored):
            return known, setting
        if math.isfinite(self._left_s()) and self._left_s() < self._least_comparison_s():
            del schedules["greedy"]
        # Schedules that are the same are measured once, so that a later run finds the latencies that this one had.
        twin = {keys[name]: name for name in reversed(tuple(schedules))}
        setting, measured = self._measure_models({name: schedules[name] for name in reversed(tuple(twin.values()))})
        if self._is_thorough(measured):  # else a later run that has the time shall measure again
            for name, found in measured.items():
                self.cost.database.put(keys[name], self.cost.device, found)
            self._store_setting(setting)
        return {**measured, **{name: measured[twin[keys[name]]] for name in schedules}}, setting

    def _is_thorough(self, measured: Mapping[str, Measurement]) -> bool:
        rounds = min(len(found.samples_us) for found in measured.values())
        return math.isinf(self._left_s()) or rounds >= Budget().rounds

    def _measure_models(self, schedules: Mapping[str, Schedule]) -> tuple[ReferenceSettings, Mapping[str, Measurement]]:
        inputs = random_inputs(self.model.graph.inputs)
        runnables: dict[str, Runnable] = {}
        try:
            setting = self._reference_setting(inputs)
            runnables["reference"] = Reference(self.model, setting)
            for name, schedule in schedules.items():
                runnables[name] = self.backend.compile(schedule)
            return setting, self._in_turn(runnables, inputs)
        finally:
            close_all(list(runnables.values()))

    def _reference_setting(self, inputs: Arrays) -> ReferenceSettings:
        """The best one, where there is time to find it."""
        settings = reference_candidates(self.backend.lanes)
        left_s = self._left_s()
        if math.isinf(left_s):
            return best_reference(self.model, inputs, self.backend.lanes)
        effort_s = sum(self._probe()) + _LEAST_RUNS * REST_SECONDS
        enough = left_s > 2 * len(settings) * effort_s + self._least_comparison_s()
        return best_reference(self.model, inputs, self.backend.lanes) if enough else settings[0]

    def _in_turn(self, runnables: Mapping[str, Runnable], inputs: Arrays) -> Mapping[str, Measurement]:
        try:
            return measure_in_turn(runnables, inputs, self._model_budget(len(runnables)), self._compared)
        except _StoppedError:
            self.interrupt.ask()
            return measure_in_turn(runnables, inputs, _HURRIED, self._compared)

    def _model_budget(self, n_runnables: int) -> Budget:
        left_s = self._left_s()
        if math.isinf(left_s):
            return Budget()
        run_s = self._probe()[1] + REST_SECONDS  # rests between runs are time too
        rounds = int(left_s / (n_runnables * run_s)) - _LEAST_RUNS + 1
        return Budget(min(max(rounds, 1), Budget().rounds), min(Budget().max_seconds, max(left_s * 0.8, 0.1)))

    def _compared(self, done: int, total: int) -> None:
        if self.interrupt.came:
            raise _StoppedError
        self.observer.progress(done, total, "comparing with plain onnxruntime")

    def _kernel_count(self, schedule: Schedule) -> int:
        return sum(len(lane) for lane in self.backend.lower(schedule).plan.lanes)

    def _key(self, what: str) -> str:
        shapes = sorted(self.model.bindings.items())
        text = f"{self.model.digest}:{shapes}:{what}"
        return f"model:{hashlib.sha256(text.encode()).hexdigest()}"

    def _stored_setting(self) -> ReferenceSettings | None:
        """The reference setting found best before; its index is kept as if it were a latency of one sample."""
        settings = reference_candidates(self.backend.lanes)
        found = self.cost.database.get(self._key("reference setting"), self.cost.device)
        return None if found is None or found.median_us >= len(settings) else settings[int(found.median_us)]

    def _store_setting(self, setting: ReferenceSettings) -> None:
        index = float(reference_candidates(self.backend.lanes).index(setting))
        record = Measurement(index, index, index, (index,))
        self.cost.database.put(self._key("reference setting"), self.cost.device, record)

    def _document(
        self,
        chosen: Schedule,
        found: SearchResult,
        shipped: Shipped,
        reference: ReferenceSettings,
        latencies: Mapping[str, Measurement],
    ) -> ScheduleDocument:
        latency_us = {"predicted": found.schedule.predicted_us, "measured": _median(latencies, "iosched")}
        latency_us |= {name: _median(latencies, name) for name in ("sequential", "greedy", "reference")}
        settings = self.settings
        sizes = (found.states, found.transitions, found.stages, self.cost.signatures)
        return ScheduleDocument(
            model=self.model.name,
            sha256=self.model.digest,
            inputs=dict(self.model.bindings),
            dtype=model_dtype(self.model.graph),
            device={"kind": "cpu", "name": cpu_name()},
            schedule=chosen,
            shipped=shipped,
            search=SearchRecord(settings.strategy, settings.r, settings.s, *sizes),
            latency_us=latency_us,
            versions={"iosched": iosched.__version__, "onnxruntime": load_onnxruntime().__version__},
            runtime={
                "lanes": self.backend.lanes,
                "executor": "compiled" if self.backend.is_native else "python",
                "reference": {
                    "mode": reference.mode,
                    "intra_threads": reference.intra_threads,
                    "inter_threads": reference.inter_threads,
                },
            },
        )


def _decide(latencies: Mapping[str, Measurement]) -> tuple[Shipped, str]:
    """The fastest candidate, and why in words; our own schedule where it ties."""
    if not latencies:
        return "reference", ""
    names: tuple[Shipped, ...] = ("iosched", "sequential", "reference")
    shipped = min(names, key=lambda name: latencies[name].median_us)
    ours, plain = latencies[shipped].median_us, latencies["reference"].median_us
    if shipped == "reference":
        best = min(latencies[name].median_us for name in ("iosched", "sequential"))
        return shipped, f"plain onnxruntime is the fastest here; the best schedule takes {best / plain:.2f}x its time"
    what = "the schedule found" if shipped == "iosched" else "one operator after another, each over all cores,"
    return shipped, f"{what} is {plain / ours:.2f}x as fast as plain onnxruntime"


def _median(latencies: Mapping[str, Measurement], name: str) -> float | None:
    return latencies[name].median_us if name in latencies else None


def _structure(schedule: Schedule) -> str:
    """What runs together, without what was measured: equal schedules have equal text."""
    return repr([(stage.strategy.value, stage.groups) for stage in schedule.stages])
