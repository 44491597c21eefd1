"""The main job on the CPU: search by measurement, compare with what has to be beaten, and decide what to ship."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

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
from iosched.profiler.conclusion import Conclusion
from iosched.profiler.cpu_cost import StageCost, cpu_name
from iosched.profiler.effort import CPU_EFFORT
from iosched.profiler.model_latencies import ModelLatencies, structure
from iosched.profiler.optimization import (
    Interrupt,
    Observer,
    OptimizeResult,
    OptimizeSettings,
    Shipped,
    baseline,
    searched,
)
from iosched.profiler.statistics import Measurement
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.reference import candidates as reference_candidates
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult

_N_CANDIDATES = 4  # three schedules and plain onnxruntime
_LEAST_RUNS = 3  # of each, when whole models are compared in a hurry: two to warm up
_ENOUGH_RUNS = 5
_HURRIED = Budget(rounds=1, max_seconds=0.1)
_AS = {"iosched": "measured"}  # names of latencies in results


class _StoppedError(Exception):
    """An interruption came between two rounds of comparing."""


@dataclass(frozen=True, eq=False)
class CpuJob:
    """One call of `optimize` for the CPU: the things that its steps share."""

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
        concluded = Conclusion(
            found=found,
            schedule=chosen,
            proven=None if shipped == "sequential" else found.proven,
            shipped=shipped,
            reason=reason,
            device={"kind": "cpu", "name": cpu_name()},
            latency_us={_AS.get(name, name): each.median_us for name, each in latencies.items()},
            signatures=self.cost.signatures,
            kernels=(before, after),
            measurements=self.cost.measurements,
            cache_hits=self.cost.cache_hits,
            versions={"onnxruntime": load_onnxruntime().__version__},
            runtime={
                "lanes": self.backend.lanes,
                "executor": "compiled" if self.backend.is_native else "python",
                "reference": {
                    "mode": reference.mode,
                    "intra_threads": reference.intra_threads,
                    "inter_threads": reference.inter_threads,
                },
            },
            notes=_notes(latencies),
        )
        return concluded.result(self.model, self.settings, self.started)

    def _search(self) -> SearchResult:
        graph = self.backend.graph
        if not self.backend.is_supported():
            return baseline(graph, "sequential")
        return searched(graph, self.cost, self.settings, CPU_EFFORT, self.observer, self._deadline())

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
        ways = {name: structure(schedule) for name, schedule in schedules.items()} | {"reference": "reference"}
        known, setting = self._latencies.known(ways), self._stored_setting()
        if known is not None and setting is not None:
            return known, setting
        if math.isfinite(self._left_s()) and self._left_s() < self._least_comparison_s():
            del schedules["greedy"]
        # Schedules that are the same are measured once, so that a later run finds the latencies that this one had.
        twin = {ways[name]: name for name in reversed(tuple(schedules))}
        setting, measured = self._measure_models({name: schedules[name] for name in reversed(tuple(twin.values()))})
        if self._is_thorough(measured):  # else a later run that has the time shall measure again
            for name, found in measured.items():
                self._latencies.put(ways[name], found)
            self._store_setting(setting)
        return {**measured, **{name: measured[twin[ways[name]]] for name in schedules}}, setting

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

    @cached_property
    def _latencies(self) -> ModelLatencies:
        return ModelLatencies(self.model, self.cost.database, self.cost.device)

    def _stored_setting(self) -> ReferenceSettings | None:
        """The reference setting found best before; its index is kept as if it were a latency of one sample."""
        settings = reference_candidates(self.backend.lanes)
        found = self._latencies.get("reference setting")
        return None if found is None or found.median_us >= len(settings) else settings[int(found.median_us)]

    def _store_setting(self, setting: ReferenceSettings) -> None:
        index = float(reference_candidates(self.backend.lanes).index(setting))
        self._latencies.put("reference setting", Measurement(index, index, index, (index,)))


def _notes(latencies: Mapping[str, Measurement]) -> tuple[str, ...]:
    """A word where whole models were run too seldom for their ratios to mean much."""
    runs = min((len(each.samples_us) for each in latencies.values()), default=_ENOUGH_RUNS)
    if runs >= _ENOUGH_RUNS:
        return ()
    times = "once" if runs == 1 else f"{runs} times"
    return (f"For lack of time whole models were run {times} each: what they take is known roughly.",)


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
