"""The main job on the CPU: search by measurement, compare with what has to be beaten, and decide what to ship."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from iosched.jobs.conclusion import Conclusion
from iosched.jobs.decision import Ratio, decide, speedup_text
from iosched.jobs.effort import CPU_EFFORT
from iosched.jobs.optimization import (
    Interrupt,
    Observer,
    OptimizeResult,
    OptimizeSettings,
    Shipped,
    baseline,
    searched,
    taken,
)
from iosched.models.model import Model
from iosched.profiler.devices.cpu.candidates import (
    QUICK,
    WARMUP_ROUNDS,
    Arrays,
    Budget,
    Runnable,
    best_reference,
    close_all,
    measure_in_turn,
    turn_seconds,
)
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cpu.units import expand, unit_schedule
from iosched.profiler.devices.known import KnownStages
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.profiler.store.latencies import ModelLatencies, structure
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.reference import candidates as reference_candidates
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import Alternative
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult

_LEAST_CANDIDATES = 3  # the schedule found, one operator after another, and plain onnxruntime
_LEAST_TURNS = WARMUP_ROUNDS + LEAST_SAMPLES  # of each candidate, to tell which is the fastest
_HURRIED = Budget(rounds=LEAST_SAMPLES)
_WORDS = {
    "iosched": "the schedule found",
    "sequential": "one operator after another, each over all cores,",
    "reference": "plain onnxruntime",
}
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
        shipped, reason, ratio = _decide(latencies)
        chosen = expand(self.backend.coarse, schedules.get(shipped, found.schedule))
        before = len(self.backend.kernels.nodes)
        after = before if shipped == "reference" else self._kernel_count(schedules[shipped])
        concluded = Conclusion(
            found=found,
            schedule=chosen,
            proven=None if shipped == "sequential" else found.proven,
            shipped=shipped,
            reason=reason,
            ratio=ratio,
            alternatives=self._alternatives(schedules, latencies, shipped),
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
            rested_us={_AS.get(name, name): each.rested.median_us for name, each in latencies.items() if each.rested},
            notes=(*self._notes(latencies), *_rest_notes(latencies, shipped)),
        )
        return concluded.result(self.model, self.settings, self.started)

    def _alternatives(
        self, schedules: Mapping[str, Schedule], latencies: Mapping[str, Measurement], shipped: str
    ) -> tuple[Alternative, ...]:
        """What was compared, but for what stands in the file anyway: with plain onnxruntime the schedule found."""
        chosen = "sequential" if shipped == "sequential" else "iosched"
        return tuple(
            Alternative(name, expand(self.backend.coarse, schedule), latencies[name].median_us)
            for name, schedule in schedules.items()
            if name in latencies and name != chosen
        )

    def _search(self) -> SearchResult:
        graph = self.backend.graph
        if not self.backend.is_supported():
            return baseline(sequential(graph))
        if (given := self.settings.schedule_from) is not None:
            return taken(unit_schedule(self.backend.coarse, given.schedule), KnownStages(self.cost).latency_us)
        return searched(graph, self.cost, self.settings, CPU_EFFORT, self.observer, self._deadline())

    def _deadline(self) -> Callable[[], bool] | None:
        """True once the search has to leave the rest of the budget to comparing whole models, or was interrupted."""
        if self.settings.budget_s is None:
            return (lambda: self.interrupt.came) if self.interrupt.can_come else None
        budget_s = self.settings.budget_s
        end = self.started + (budget_s - self._least_comparison_s() if self._can_decide else budget_s / 2)
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

    def _least_comparison_s(self, candidates: int = _LEAST_CANDIDATES) -> float:
        """About what it takes to tell which is the fastest, if what is compiled opens like plain onnxruntime."""
        open_s, run_s = self._probe() if self.backend.is_supported() else (0.0, 0.0)
        return candidates * (open_s + _LEAST_TURNS * turn_seconds(run_s))

    @property
    def _can_decide(self) -> bool:
        """Whether the budget suffices to tell which is the fastest; where not, plain onnxruntime ships in any case."""
        return self.settings.budget_s is None or self.settings.budget_s >= self._least_comparison_s()

    def _compare(self, schedules: dict[str, Schedule]) -> tuple[dict[str, Measurement], ReferenceSettings]:
        """Latency of each schedule and of plain onnxruntime, from the database or measured in turn."""
        if not self.backend.is_supported():
            return {}, ReferenceSettings("sequential", self.backend.lanes)
        ways = {name: structure(schedule) for name, schedule in schedules.items()} | {"reference": "reference"}
        known = self._known(ways)
        if known is not None:
            return known
        if math.isfinite(self._left_s()) and self._left_s() < self._least_comparison_s(len(ways)):
            del schedules["greedy"]
        # Schedules that are the same are measured once, so that a later run finds the latencies that this one had.
        twin = {ways[name]: name for name in reversed(tuple(schedules))}
        setting, measured = self._measure_models({name: schedules[name] for name in reversed(tuple(twin.values()))})
        found = {**measured, **{name: measured[twin[ways[name]]] for name in schedules}}
        if self._is_thorough(measured):  # else a later run that has the time shall measure again
            self._keep(ways, found, setting)
        return found, setting

    def _known(self, ways: Mapping[str, str]) -> tuple[dict[str, Measurement], ReferenceSettings] | None:
        """An earlier comparison of the same ways, and plain onnxruntime's setting in it."""
        settings = {each.description: each for each in reference_candidates(self.backend.lanes)}
        found, setting = self._latencies.known(ways), settings.get(self._latencies.setting(ways) or "")
        return None if found is None or setting is None else (found, setting)

    def _keep(self, ways: Mapping[str, str], found: Mapping[str, Measurement], setting: ReferenceSettings) -> None:
        kept = {name: text for name, text in ways.items() if name in found}
        self._latencies.keep(kept, found, {"reference": setting.description})

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
        open_s, run_s = self._probe()
        effort_s = open_s + (WARMUP_ROUNDS + QUICK.rounds) * turn_seconds(run_s)
        enough = left_s > len(settings) * effort_s + self._least_comparison_s()
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
        rounds = int(left_s / (n_runnables * turn_seconds(self._probe()[1]))) - WARMUP_ROUNDS
        least = LEAST_SAMPLES if self._can_decide else 1
        most = min(max(rounds, least), Budget().rounds)
        return Budget(most, min(Budget().max_seconds, max(left_s * 0.8, 0.1)), least)

    def _compared(self, done: int, total: int) -> None:
        if self.interrupt.came:
            raise _StoppedError
        self.observer.progress(done, total, "comparing with plain onnxruntime")

    def _kernel_count(self, schedule: Schedule) -> int:
        return sum(len(lane) for lane in self.backend.lower(schedule).plan.lanes)

    @cached_property
    def _latencies(self) -> ModelLatencies:
        return ModelLatencies(self.model, self.cost.database, self.cost.device)

    def _notes(self, latencies: Mapping[str, Measurement]) -> tuple[str, ...]:
        """What to do where whole models were run too seldom to tell which is faster."""
        runs = min((len(each.samples_us) for each in latencies.values()), default=LEAST_SAMPLES)
        if runs >= LEAST_SAMPLES:
            return ()
        times = "once" if runs == 1 else f"{runs} times"
        needed_s = math.ceil(self._least_comparison_s())
        return (
            f"For lack of time whole models were run {times} each, too seldom to tell which is the fastest: this takes"
            f" about {needed_s} s of --budget beside the search, and what was measured of stages is kept.",
        )


def _rest_notes(latencies: Mapping[str, Measurement], shipped: Shipped) -> tuple[str, ...]:
    """A word where what ships, being faster in a row, is slower after a rest."""
    ours, plain = (latencies[name].rested if name in latencies else None for name in (shipped, "reference"))
    found = None if ours is None or plain is None else compare(plain, ours)
    if found is None or not found.is_slower:
        return ()
    return (
        f"After a rest {_WORDS[shipped]} is {speedup_text(found)} as fast as plain onnxruntime: what runs seldom is"
        " served better by the model as it was given.",
    )


def _decide(latencies: Mapping[str, Measurement]) -> tuple[Shipped, str, Ratio | None]:
    """What ships, why in words, and how it compares."""
    if not latencies:
        reason = "its inputs have no fixed size or nothing is computed, so there is nothing to schedule"
        return "reference", reason, None
    found = decide(latencies, "reference", ("iosched", "sequential"))
    return cast(Shipped, found.chosen), found.reason(_WORDS), found.ratio()
