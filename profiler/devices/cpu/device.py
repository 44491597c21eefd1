"""This machine's cores as a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, Literal, cast

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cpu.facts import cpu_facts
from iosched.profiler.devices.cpu.units import CpuUnits
from iosched.profiler.devices.device import (
    CostKind,
    Device,
    OpenModel,
    OpenModelHere,
    OpenSettings,
    Prices,
    Running,
    Way,
    Wording,
)
from iosched.profiler.devices.executor import Executor
from iosched.profiler.devices.kind import Kind
from iosched.profiler.devices.throughput import Throughputs
from iosched.profiler.devices.units import Units
from iosched.profiler.measuring.in_turn import Budget, Candidate, measure_in_turn
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.peers.onnxruntime import PlainOnnxruntime
from iosched.profiler.peers.openers import CPU_OPENERS
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend, cpu_count
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference, ReferenceSettings
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Schedule

CPU_EFFORT = Effort(bound_slack=0.95, tolerance=0.03, max_measurements=80)
"""Operators one after another in one session keep their data in the cache, and timings are noisy: bounds give way.
With 80 stages of a block the gap to its bound has closed to a few percent, see benchmarks/search.py; each takes about
0.1 s, and its latency is not known better than to 3 %."""

CPU_PRICES = Prices(measurement_s=0.1, comparison_s=8.0, samples_alone=2)
"""A stage takes half a second seldom, see `cost.STAGE_SETTINGS`."""


@dataclass(frozen=True)
class CpuDevice:
    """This machine's cores; see `Device`."""

    key: ClassVar[str] = "cpu"
    kind: ClassVar[str] = "cpu"
    cost_kind: ClassVar[CostKind] = "measured"

    @property
    def name(self) -> str:
        """The processor's own name."""
        return cpu_name()

    def check(self, settings: OpenSettings) -> None:
        """Refuses what is for GPUs.

        Raises:
            UsageError: says which.
        """
        if settings.barriers != "auto":
            raise UsageError("--barriers is for attached GPUs")
        if settings.precision != DEFAULT_PRECISION:
            raise UsageError("--precision is for GPUs; the CPU computes in the model's own types")

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None,
        *,
        beside: OpenModel | None = None,
    ) -> OpenOnCpu:
        """Prepares `model` for these cores.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
        """
        assert database is not None
        other = beside.cost.backend if isinstance(beside, OpenOnCpu) else None
        backend = CpuBackend(model, lanes=settings.threads, beside=other)
        return OpenOnCpu(self, model, StageCost(backend, database, resume=settings.resume))

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """The model under its schedule; plain onnxruntime without one, where it was shipped, or where nothing can be.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
        """
        lanes = threads or cpu_count()
        if document is None or document.shipped == "reference":
            return _plain_executor(model, _reference_settings(document, lanes))
        backend = CpuBackend(model, lanes=lanes)
        if not backend.is_supported():
            backend.close()
            return _plain_executor(model, _reference_settings(None, lanes))
        kind = "compiled" if backend.is_native else "Python"
        description = f"iosched, {lanes} threads, {kind} executor"
        return Executor(backend.compile(document.schedule), description, frees=backend.close)


@dataclass(frozen=True, eq=False)
class OpenOnCpu:
    """A model on this machine's cores; see `OpenModelHere`."""

    device: CpuDevice
    model: Model
    cost: StageCost
    effort: ClassVar[Effort] = CPU_EFFORT
    prices: ClassVar[Prices] = CPU_PRICES
    budget: ClassVar[Budget] = Budget()
    wording: ClassVar[Wording] = Wording(
        sequential="one operator after another, each over all cores,",
        rival="plain onnxruntime",
        elsewhere="runs on a GPU: use --device cuda",
    )

    @property
    def _backend(self) -> CpuBackend:
        return self.cost.backend

    @property
    def graph(self) -> ComputationGraph:
        """The units: what onnxruntime fuses is one."""
        return self._backend.graph

    @cached_property
    def units(self) -> Units:
        """Translates between operators and units."""
        return CpuUnits(self._backend.coarse)

    @property
    def throughputs(self) -> Throughputs:
        """Without a peak: nobody knows a CPU's."""
        return Throughputs(self.graph)

    @property
    def here(self) -> OpenModelHere:
        """This."""
        return self

    @property
    def is_schedulable(self) -> bool:
        """Whether plans can be made, see `CpuBackend.is_supported`."""
        return self._backend.is_supported()

    @property
    def versions(self) -> Mapping[str, str]:
        """Onnxruntime's, whose kernels run."""
        return {"onnxruntime": load_onnxruntime().__version__}

    @cached_property
    def plain(self) -> PlainOnnxruntime | None:
        """Onnxruntime on as many cores."""
        return PlainOnnxruntime(self.model, self._backend.lanes)

    def ways(self, schedule: Schedule) -> Mapping[str, Way]:
        """There is one."""
        return {"iosched": Way(schedule)}

    def ready(self, way: Way, inputs: Arrays) -> Candidate:
        """Compiled for these cores."""
        compiled = self._backend.compile(way.schedule)
        return Candidate(partial(compiled.time, inputs), compiled.close)

    def rivals(self, inputs: Arrays) -> Mapping[str, Callable[[], Candidate]]:
        """Onnxruntime in its settings, and OpenVINO."""
        return {name: partial(opener, self.model, self._backend.lanes, inputs) for name, opener in CPU_OPENERS.items()}

    def in_turn(
        self, candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Measurement]:
        """In a row and after a rest, see `measure_in_turn`."""
        return measure_in_turn(candidates, budget, observer)

    def running(self, way: Way | None, measured: Mapping[str, Measurement]) -> Running:
        """Kernel calls of onnxruntime's optimized graph, or of the plan; the lanes and the executor."""
        del measured
        runtime = {"lanes": self._backend.lanes, "executor": "compiled" if self._backend.is_native else "python"}
        if way is None:
            return Running(len(self._backend.kernels.nodes), runtime)
        return Running(sum(map(len, self._backend.lower(way.schedule).plan.lanes)), runtime)

    def close(self) -> None:
        """Stops the worker threads, where they are its own."""
        self._backend.close()


def _plain_executor(model: Model, settings: ReferenceSettings) -> Executor:
    return Executor(Reference(model, settings), f"onnxruntime, {settings.description}")


def _reference_settings(document: ScheduleDocument | None, lanes: int) -> ReferenceSettings:
    """The setting that `optimize` found best, as far as the file says so and this machine has the cores."""
    known = document.runtime.get("reference") if document is not None else None
    if not isinstance(known, dict):
        return ReferenceSettings("sequential", lanes)
    mode = known.get("mode")
    intra, inter = known.get("intra_threads"), known.get("inter_threads")
    if mode not in ("sequential", "parallel") or not isinstance(intra, int) or not isinstance(inter, int):
        return ReferenceSettings("sequential", lanes)
    known_mode = cast(Literal["sequential", "parallel"], mode)
    return ReferenceSettings(known_mode, min(max(intra, 1), lanes), min(max(inter, 1), lanes))


def _made(document: ScheduleDocument) -> tuple[Device, OpenSettings] | None:
    if document.cost == "analytic" or document.device_kind != "cpu":
        return None
    lanes = document.runtime.get("lanes")
    threads = min(lanes, cpu_count()) if isinstance(lanes, int) and lanes > 0 else cpu_count()
    return CpuDevice(), OpenSettings(threads=threads)


KIND = Kind(
    key="cpu",
    knows=lambda text: text.strip().lower() in ("auto", "cpu"),
    claims=lambda text, model: text.strip().lower() in ("auto", "cpu"),
    device=lambda text: CpuDevice(),
    name=lambda text: cpu_name(),
    made=_made,
    unscheduled="on plain onnxruntime",
    facts=cpu_facts,
)
