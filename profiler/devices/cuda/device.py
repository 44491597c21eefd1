"""An attached GPU as a device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from iosched.models.errors import DeviceError, first_line
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.baselines.gpu_openers import GPU_OPENERS, GpuSetup, TensorrtBaseline
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach, cudnn_text, layout_of
from iosched.profiler.devices.cuda.clock import with_clock
from iosched.profiler.devices.cuda.facts import cuda_facts, missing_packages, usable_names
from iosched.profiler.devices.cuda.gpu_checks import cuda_checks
from iosched.profiler.devices.cuda.gpu_cost import CudaStageCost, open_cost
from iosched.profiler.devices.facts import installed
from iosched.profiler.devices.gpus import gpu_named, spec_of
from iosched.profiler.devices.kind import DeviceKind
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.devices.open_settings import (
    LayoutName,
    OpenSettings,
    refuse_for_simulated_gpus,
)
from iosched.profiler.devices.profiled_device import (
    AttachedModel,
    Baselines,
    CostDetails,
    MeasuringFacts,
    OpenModel,
    Prices,
    ProfiledDevice,
    Running,
    Way,
    Wording,
)
from iosched.profiler.devices.throughput import gpu_throughputs, idle_streams
from iosched.profiler.measuring.interleave import compare, speedup_text
from iosched.profiler.measuring.interleaved_models import Budget, TakeRound, measure_interleaved, rounds_of
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cores import cpu_count
from iosched.runtime.cuda.backend import CudaBackend, CudaModel
from iosched.runtime.cuda.gpu.extras import extra_for, query_driver, way_to_run
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.cuda.onnxruntime.sessions import described
from iosched.runtime.cuda.onnxruntime.tensorrt import Engine, open_whole
from iosched.runtime.device import DeviceInfo
from iosched.runtime.executor import Candidate, Executor, Requests
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import SelfCheck
from iosched.scheduler.baselines import sequential
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.unit_graph import Unit, UnitGraph, units_text

GPU_EFFORT = Effort(bound_slack=0.95, tolerance=0.02, max_measurements=60)
"""Latencies are steadier than on a CPU, but bounds are weak, since the idle share of an operator is unknown. Most
searches therefore end at the limit, a guess.
"""

GPU_PRICES = Prices(measurement_s=0.03, comparison_s=2.0, samples_alone=1)
"""Guesses; four ways of some 13 ms each in 32 rounds."""

ROUNDS = 30

_WORDING = Wording(
    sequential="one operator after another in one CUDA graph",
    baseline="the sequential schedule in one CUDA graph",
    other_device="runs on the CPU: use --device cpu",
)

_NO_BARRIERS = " without barriers"
_FEWER = "Only {found} of {asked} requests run at a time: the GPU has no memory for more."


@dataclass(frozen=True, eq=False)
class CudaDevice:
    """A GPU of this machine; see `ProfiledDevice`. `suggest` returns likely good stages of a model on such a GPU."""

    gpu: AttachedGpu
    suggest: Callable[[Model, str, str, tuple[Unit, ...]], Iterable[Stage]] = lambda *_: ()

    @cached_property
    def info(self) -> DeviceInfo:
        """The GPU's number as "cuda:0", its name, memory, compute capability, and versions."""
        gpu = self.gpu
        return DeviceInfo(f"cuda:{gpu.index}", "cuda", gpu.name, "measured", {}, gpu.memory_nbytes, about(gpu))

    def checks(self) -> Sequence[SelfCheck]:
        """See `cuda_checks`."""
        return cuda_checks(self.gpu)

    def check(self, settings: OpenSettings) -> None:
        """Raises a UsageError for settings for simulated GPUs, and unsupported precisions."""
        refuse_for_simulated_gpus(settings)
        self.gpu.precision(settings.precision)

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None,
        *,
        alongside: OpenModel | None = None,
    ) -> OpenOnGpu:
        """Lowers `model` for this GPU; see `ProfiledDevice.open`."""
        del alongside
        assert database is not None
        cost = open_cost(
            self.gpu, model, settings.precision, database,
            layout=None if settings.layout == "auto" else Layout(settings.layout),
            resume=settings.resume, times=settings.may_time,
            suggest=partial(self.suggest, model, self.gpu.name, settings.precision, settings.units),
            units=settings.units,
        )  # fmt: skip
        return OpenOnGpu(self, model, settings, cost)

    def plain(self, model: Model, settings: OpenSettings) -> None:
        """None: onnxruntime runs on the CPU."""

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """Captures `model` in CUDA graphs by its schedule, by default one operator after another.

        If TensorRT ships, it runs the model where it is installed, and the schedule only runs arrays on the GPU.

        Raises:
            DeviceError: the GPU cannot run the model, has too little memory, or cuDNN is missing.
            ExecutionError: a kernel fails.
        """
        del threads
        precision, notes = DEFAULT_PRECISION if document is None else document.precision, tuple[str, ...]()
        if document is not None and document.shipped == "tensorrt":
            try:
                return self._in_tensorrt(model, document)
            except DeviceError as error:
                notes = (f"Runs without TensorRT: {first_line(error)}.",)
        backend = self.gpu.backend(model, precision, self.gpu.cudnn_plans_of(document), layout_of(document))
        schedule = sequential(backend.graph) if document is None else document.schedule
        barriers = document is None or document.runtime.get("barriers") != "none"
        teams = None if document is None or document.device_kind == "cpu" else document.teams  # of a CPU's cores
        count = 1 if teams is None else teams.requests
        models = backend.compile_in_flight(schedule, count, barriers=barriers)
        first, requests = models[0], Requests(models)
        at_once = f", {len(models)} requests at a time" if len(models) > 1 else ""
        fewer = () if len(models) == count else (_FEWER.format(found=len(models), asked=count),)
        return Executor(
            requests if len(models) > 1 else first,
            f"iosched, {self.gpu.name}, {precision}, {first.kernel_count} kernels{at_once}",
            lambda: (*fewer, *notes, *backend.notes, *session_notes(first)),
            on_device=partial(_run_on_device, requests),
            placed=partial(_placed, models, notes=fewer),
            in_flight=len(models),
        )

    def _in_tensorrt(self, model: Model, document: ScheduleDocument) -> Executor:
        opened = open_whole(model, self.gpu.engine(model, document.precision))
        by_schedule = cache(partial(self.executor, model, replace(document, shipped="iosched")))
        return Executor(
            opened,
            f"{opened.description}, {self.gpu.name}, {document.precision}",
            on_device=lambda inputs, **options: by_schedule().run_on_device(inputs, **options),
            by="library",
        )


@dataclass(frozen=True, eq=False)
class OpenOnGpu:
    """A model opened on an attached GPU; see `AttachedModel`."""

    device: CudaDevice
    model: Model
    settings: OpenSettings
    cost: CudaStageCost
    is_schedulable: ClassVar[bool] = True
    teams: ClassVar[None] = None

    @property
    def _backend(self) -> CudaBackend:
        return self.cost.backend

    @property
    def effort(self) -> Effort:
        """`GPU_EFFORT` with the requested gap."""
        return GPU_EFFORT.with_gap(self.settings.gap_percent)

    @property
    def graph(self) -> ComputationGraph:
        """The model's operators, or the requested units."""
        return self._backend.graph

    @property
    def units(self) -> UnitGraph:
        """Translates schedules between operators and units."""
        return self._backend.units

    @cached_property
    def details(self) -> CostDetails:
        """Throughputs with the share of the peak, if the specification is known; idle shares by the database."""
        throughputs = gpu_throughputs(self.graph, self.device.gpu.name, self.settings.precision)
        return CostDetails(throughputs, lambda stage: idle_streams(stage, partial(known_us, self.cost)))

    @property
    def measuring(self) -> MeasuringFacts:
        """Conditions of whole-model measurements, and versions. NHWC, once the only layout, is not named."""
        layout = self._backend.layout
        opened_with = ("" if layout is Layout.NHWC else f" in {layout.value}") + units_text(self.settings.units)
        budget = Budget(ROUNDS, max_seconds=math.inf)
        return MeasuringFacts(GPU_PRICES, budget, _WORDING, self.device.gpu.versions, opened_with)

    @property
    def baselines(self) -> Baselines:
        """onnxruntime with its CUDA and TensorRT providers, and PyTorch in three ways."""
        openers = {name: partial(self._opened, opener) for name, opener in GPU_OPENERS.items()}
        return Baselines(tensorrt=self._tensorrt, openers=openers)

    def _opened(self, opener: Callable[[GpuSetup], Candidate], inputs: Arrays) -> Candidate:
        gpu, precision = self.device.gpu, self._backend.precision
        provider = Provider.cuda(gpu.index, precision)
        return opener(GpuSetup(self.model, inputs, precision, gpu.driver, provider, self._engine))

    def _tensorrt(self, limit_s: float | None) -> TensorrtBaseline:
        return TensorrtBaseline(self.model, cpu_count(), self.settings.precision, limit_s, engine=self._engine)

    @property
    def _engine(self) -> Engine:
        return self.device.gpu.engine(self.model, self.settings.precision)

    @property
    def attached(self) -> AttachedModel:
        """This object."""
        return self

    def one_after_another(self) -> Mapping[str, Way]:
        """The sequential schedule."""
        return {"sequential": Way(sequential(self.graph))}

    def by_image(self) -> Way | None:
        """None: on a GPU, a kernel computes all images."""
        return None

    def ways(self, schedule: Schedule) -> Mapping[str, Way]:
        """With and without barriers between stages."""
        barriers = self.settings.barriers
        ways = {"iosched": Way(schedule)} if barriers != "none" else {}
        if barriers != "stage":
            ways[f"iosched{_NO_BARRIERS}"] = Way(schedule, _NO_BARRIERS)
        return ways

    def ready(self, way: Way, inputs: Arrays) -> Candidate:
        """Captures the model in CUDA graphs, copies the inputs to the GPU, and runs it once."""
        barriers = way.how != _NO_BARRIERS
        return _placed(self._backend.compile_in_flight(way.schedule, way.requests, barriers=barriers), inputs)

    def in_turn(
        self, candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Measurement]:
        """Interleaved latencies by GPU events: from an idle GPU, and in a row.

        A candidate ends by waiting for the GPU, so each finds it idle without a pause.
        """
        found = measure_interleaved(candidates, budget, observer, rest=lambda: None)
        return {name: with_clock(each, self.device.gpu.clock) for name, each in found.items()}

    def rounds(self, candidates: Mapping[str, Candidate]) -> TakeRound:
        """See `AttachedModel.rounds`; interference on a GPU is unknown."""
        return rounds_of(candidates, rest=lambda: None)

    def running(self, way: Way | None, measured: Mapping[str, Measurement]) -> Running:
        """The number of kernels, the settings and cuDNN plans, and notes on throttling."""
        if way is None:
            return Running(self._backend.lower(sequential(self.graph)).kernel_count)
        with closing(self._compiled(way)) as model:
            runtime = {
                "precision": self.settings.precision,
                "layout": self._backend.layout.value,
                "barriers": "none" if way.how == _NO_BARRIERS else "stage",
                "cudnn_plans": {**model.cudnn_plans},
            }
            notes = (*_barrier_notes(measured), *_clock_notes(self.cost), *self._backend.notes, *session_notes(model))
            return Running(model.kernel_count, runtime, notes, model.lowering.plan.nbytes)

    def close(self) -> None:
        """Does nothing: GPU memory is freed with its objects."""

    def _compiled(self, way: Way) -> CudaModel:
        return self._backend.compile(way.schedule, barriers=way.how != _NO_BARRIERS)


def _placed(models: Sequence[CudaModel], inputs: Arrays, notes: tuple[str, ...] = ()) -> Candidate:
    first, requests = models[0], Requests(models)
    with ExitStack() as unless_ready:
        unless_ready.callback(requests.close)
        for model in models:
            model.run(inputs)
        unless_ready.pop_all()
    time = first.executor.time_launches if len(models) == 1 else partial(requests.time, inputs)
    return Candidate(time, requests.close, lambda: (*notes, *session_notes(first)), len(models))


def _run_on_device(requests: Requests, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, Any]:
    with requests.free() as model:
        assert isinstance(model, CudaModel)
        return model.run_on_device(inputs, stream=stream)


def _barrier_notes(measured: Mapping[str, Measurement]) -> tuple[str, ...]:
    waiting, free = measured.get("iosched"), measured.get(f"iosched{_NO_BARRIERS}")
    found = None if waiting is None or free is None else compare(waiting, free)
    if found is None or not (found.is_faster or found.is_slower):
        return ()
    speedup = speedup_text(found)
    return (f"With stages that wait only for their inputs, the speedup of the schedule found is {speedup}.",)


def _clock_notes(cost: CudaStageCost) -> tuple[str, ...]:
    return tuple(
        f"{count} of {cost.signatures} stages were measured while the GPU was throttled ({reason})."
        for reason, count in cost.throttled.most_common()
    )


_NUMBERED = re.compile(r"cuda(?::(\d+))?")


def attached_index(device: str, names: Callable[[], Sequence[str]] | None = None) -> int | None:
    """The number in CUDA of the attached GPU that `device` means; None for another device.

    `cuda[:N]` always means a GPU, even if it is not attached. A GPU's name means an attached one of that name, and
    `auto` the first usable one. `names` returns the names of all attached GPUs by number, "" for unusable ones.
    """
    name = device.strip().lower()
    if match := _NUMBERED.fullmatch(name):
        return int(match[1] or 0)
    if name == "cpu":
        return None
    found = enumerate((names or usable_names)())
    return next((index for index, gpu in found if gpu and (name == "auto" or _is_called(gpu, name))), None)


def _is_called(gpu: str, name: str) -> bool:
    """Whether the text of `--device` matches a driver's name: "a10" is no A100."""
    spec = gpu_named(name)
    whole = re.search(rf"(?<!\w){re.escape(name)}(?!\w)", gpu, re.IGNORECASE)
    return whole is not None or (spec is not None and spec == spec_of(gpu))


def _remarks(text: str) -> tuple[str, ...]:
    name = text.strip().lower()
    if name == "cpu" or attached_index(text) is not None:
        return ()
    seen = query_driver()
    gpu = next((gpu for gpu in seen.gpus if name == "auto" or _is_called(gpu.name, name)), None)
    if gpu is None:
        return ()
    extra = extra_for(seen.cuda, [gpu.capability])
    is_complete = extra is not None and not missing_packages(extra)
    way = "see `iosched devices`" if is_complete else way_to_run(seen.cuda, gpu.capability)
    return (f"{gpu.name} is attached, but cannot be used; {way}",)


def _claims(text: str, model: Model | None) -> bool:
    is_placed = text != "auto" or model is None or CudaBackend.supports(model)
    return is_placed and attached_index(text) is not None


def _made(document: ScheduleDocument) -> tuple[ProfiledDevice, OpenSettings] | None:
    if document.cost == "analytic" or document.device_kind != "cuda":
        return None
    gpu = attach(attached_index(document.device_name) or 0)
    if gpu.name != document.device_name:
        raise DeviceError(f"the schedule was measured on {document.device_name}, but the attached GPU is {gpu.name}")
    layout = layout_of(document)
    name: LayoutName = "auto" if layout is None else layout.value
    return CudaDevice(gpu), OpenSettings(precision=document.precision, layout=name)


KIND = DeviceKind(
    key="cuda",
    knows=lambda text: _NUMBERED.fullmatch(text.strip().lower()) is not None,
    claims=_claims,
    device=lambda text: CudaDevice(attach(attached_index(text) or 0)),
    name=lambda text: dict(enumerate(usable_names())).get(attached_index(text) or 0, ""),
    made=_made,
    unscheduled="one operator after another",
    facts=cuda_facts,
    remarks=_remarks,
)


_MODULE = Path("/sys/module/nvidia/version")
_PACKAGES = ("nvidia-cudnn-frontend",)


def about(gpu: AttachedGpu) -> dict[str, str]:
    """Versions by short names; `cuda_driver` is the newest CUDA that the driver supports."""
    found = dict(gpu.versions)
    named = {"cuda_driver": "driver", "cuda": "cuda"}
    versions = {name: _cuda(found.pop(key)) for name, key in named.items() if key in found}
    if "cudnn" in found:
        found["cudnn"] = cudnn_text(int(found["cudnn"]))
    capability = "{}.{}".format(*divmod(gpu.driver.gpu.capability, 10))
    return {"capability": capability, **_driver(), **versions, **found, **installed(_PACKAGES)}


def _driver() -> dict[str, str]:
    try:
        return {"driver": _MODULE.read_text().strip()}
    except OSError:
        return {}


def _cuda(number: str) -> str:
    """CUDA numbers 13.0 as 13000."""
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"


RUNS = 5


def session_notes(model: CudaModel) -> tuple[str, ...]:
    """A sentence on the operators that run in onnxruntime and their share of the latency; empty without any.

    Runs the model a few times on the inputs on the GPU; raises an ExecutionError if a kernel fails.
    """
    executor = model.executor
    if not executor.session_devices:
        return ()
    samples = [executor.time_sessions() for _ in range(RUNS)]
    within_us, total_us = (median(values) for values in zip(*samples, strict=True))
    text = described(model.lowering.sessions, executor.session_devices)
    cost = f"{within_us:.0f} of {total_us:.0f} µs ({within_us / total_us:.0%})"
    return (f"Outside the CUDA graph: {text}, {cost}.",)
