"""The main job: search a schedule by measurement, compare it with what it has to beat, and decide what to ship."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, cast

import iosched
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.candidates import (
    REST_SECONDS,
    Budget,
    Runnable,
    best_reference,
    close_all,
    expand,
    measure_in_turn,
)
from iosched.profiler.cpu_cost import StageCost, cpu_name
from iosched.profiler.database import ProfileDatabase, default_path
from iosched.profiler.statistics import Measurement
from iosched.profiler.target import require_cpu
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.reference import candidates as reference_candidates
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.document import ScheduleDocument, SearchRecord, model_dtype
from iosched.scheduler.schedule import Block, Schedule
from iosched.scheduler.search import Pruning, SearchResult, SearchStrategy, search

BOUND_SLACK = 0.95
"""Operators one after another in one session keep their data in the cache, and timings are noisy: bounds give way."""

TOLERANCE = 0.03
"""Stage latencies are not known better than this, so a search that is as close to its bound is done."""

MEASUREMENTS_PER_BLOCK = 80
"""Where the gap to the bound has closed to a few percent, see benchmarks/search.py; one takes about 0.1 s."""

_N_CANDIDATES = 4  # three schedules and plain onnxruntime

Shipped = Literal["iosched", "reference", "sequential"]


@dataclass(frozen=True)
class OptimizeSettings:
    """What to optimize for, and how hard to try.

    Attributes:
        device: as `--device` takes it.
        threads: cores to use; all that the process may use by default.
        strategy: "concurrent", "merge", "both", or a baseline: "sequential", "greedy".
        r: most operators in a group, None for any number.
        s: most groups in a stage, None for any number.
        budget_s: seconds after which no further stage is measured.
        profile_db: the database; the user's own by default.
    """

    device: str = "auto"
    threads: int | None = None
    strategy: str = "both"
    r: int | None = 3
    s: int | None = 8
    budget_s: float | None = None
    profile_db: Path | None = None


class Observer(Protocol):
    """Told how the work goes."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """`done` steps of `total` (None: not known) are behind us."""
        ...


@dataclass(frozen=True)
class OptimizeResult:
    """A schedule, what it is worth, and what finding it took. Latencies are medians in microseconds."""

    document: ScheduleDocument
    schedule: Schedule
    device_kind: str
    device_name: str
    cost: str
    optimal: bool
    predicted_us: float
    measured_us: float | None
    sequential_us: float
    greedy_us: float
    reference_us: float | None
    shipped: str
    reason: str
    seconds: float
    states: int
    transitions: int
    stages: int
    signatures: int
    measurements: int
    cache_hits: int
    kernels_before: int
    kernels_after: int


def optimize(model: Model, settings: OptimizeSettings, observer: Observer | None = None) -> OptimizeResult:
    """Finds the fastest way to run `model` here.

    The schedule found is measured in turn with the sequential and the greedy schedule and with plain onnxruntime in its
    best setting; the fastest is shipped, so the result is never slower than plain onnxruntime beyond noise.

    Raises:
        UsageError: a setting is wrong.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
    """
    require_cpu(settings.device)
    if settings.strategy not in ("concurrent", "merge", "both", "sequential", "greedy"):
        raise UsageError(f"unknown strategy {settings.strategy!r}")
    started = time.monotonic()
    path = settings.profile_db or default_path()
    with ProfileDatabase(path) as database, CpuBackend(model, lanes=settings.threads) as backend:
        job = _Job(model, settings, backend, StageCost(backend, database), observer or _Silence(), started)
        return job.run()


class _Silence:
    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says nothing."""


@dataclass(frozen=True, eq=False)
class _Job:
    """One call of `optimize`: the things that its steps share."""

    model: Model
    settings: OptimizeSettings
    backend: CpuBackend
    cost: StageCost
    observer: Observer
    started: float

    def run(self) -> OptimizeResult:
        """Search, compare, decide."""
        graph = self.backend.graph
        found = self._search()
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
            greedy_us=_median(latencies, "greedy") or 0.0,
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
        )

    def _search(self) -> SearchResult:
        graph, strategy = self.backend.graph, self.settings.strategy
        if not self.backend.is_supported() or strategy in ("sequential", "greedy"):
            schedule = greedy(graph) if strategy == "greedy" else sequential(graph)
            n_stages = len(tuple(schedule.stages))
            return SearchResult(schedule, states=0, transitions=0, stages=n_stages, measured=0, lower_bound_us=0.0)
        return search(
            graph,
            self.cost,
            strategy=cast(SearchStrategy, strategy),
            pruning=Pruning(self.settings.r, self.settings.s),
            observer=SearchProgress(self.observer),
            deadline=self._deadline(),
            bound_slack=BOUND_SLACK,
            tolerance=TOLERANCE,
            max_measurements_per_block=MEASUREMENTS_PER_BLOCK,
        )

    def _deadline(self) -> Callable[[], bool] | None:
        """Three quarters of the budget are for the search, the rest for comparing whole models."""
        if self.settings.budget_s is None:
            return None
        end = self.started + 0.75 * self.settings.budget_s
        return lambda: time.monotonic() >= end

    def _compare(self, schedules: Mapping[str, Schedule]) -> tuple[dict[str, Measurement], ReferenceSettings]:
        """Latency of each schedule and of plain onnxruntime, from the database or measured in turn."""
        if not self.backend.is_supported():
            return {}, ReferenceSettings("sequential", self.backend.lanes)
        keys = {name: self._key(_structure(schedule)) for name, schedule in schedules.items()}
        keys["reference"] = self._key("reference")
        stored = {name: self.cost.database.get(key, self.cost.device) for name, key in keys.items()}
        setting = self._stored_setting()
        if setting is None or any(found is None for found in stored.values()):
            # Schedules that are the same are measured once, so that a later run finds the latencies that this one had.
            twin = {keys[name]: name for name in reversed(tuple(schedules))}
            setting, measured = self._measure_models({name: schedules[name] for name in reversed(tuple(twin.values()))})
            stored.update(measured)
            stored.update({name: measured[twin[keys[name]]] for name in schedules})
            for name, found in measured.items():
                self.cost.database.put(keys[name], self.cost.device, found)
            self._store_setting(setting)
        return {name: found for name, found in stored.items() if found is not None}, setting

    def _measure_models(self, schedules: Mapping[str, Schedule]) -> tuple[ReferenceSettings, Mapping[str, Measurement]]:
        inputs = random_inputs(self.model.graph.inputs)
        setting = best_reference(self.model, inputs, self.backend.lanes)
        runnables: dict[str, Runnable] = {"reference": Reference(self.model, setting)}
        try:
            for name, schedule in schedules.items():
                runnables[name] = self.backend.compile(schedule)
            return setting, measure_in_turn(runnables, inputs, self._model_budget(), self._compared)
        finally:
            close_all(list(runnables.values()))

    def _model_budget(self) -> Budget:
        if self.settings.budget_s is None:
            return Budget()
        left = max(self.settings.budget_s - (time.monotonic() - self.started), 0.0)
        rounds = int(left / (_N_CANDIDATES * REST_SECONDS))  # rests between runs are time too
        return Budget(min(max(rounds, 3), Budget().rounds), min(Budget().max_seconds, max(left * 0.8, 0.1)))

    def _compared(self, done: int, total: int) -> None:
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


class SearchProgress:
    """Says how far the search is, block by block."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def block_started(self, index: int, n_blocks: int, n_stages: int) -> None:
        """A block is next."""
        self._observer.progress(index, n_blocks, f"block {index + 1} of {n_blocks}: {n_stages} candidate stages")

    def stage_measured(self, index: int, n_measured: int, n_expected: int) -> None:
        """A stage is known."""
        del n_expected
        self._observer.progress(index, None, f"block {index + 1}: {n_measured} stages measured")

    def block_finished(self, index: int, n_blocks: int, block: Block) -> None:
        """A block is done."""
        del block
        self._observer.progress(index + 1, n_blocks, f"block {index + 1} of {n_blocks} done")


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
