"""A simulated GPU as a device: nothing runs there, and latencies are computed from its specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import ClassVar

from iosched.models.errors import DeviceError, UsageError
from iosched.models.graph import ComputationGraph, quantized_operators
from iosched.models.model import Model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import LAUNCH_CONSTANTS
from iosched.profiler.devices.analytic.scaled import ScaledCost
from iosched.profiler.devices.analytic.uncertainty import AnalyticUncertainty
from iosched.profiler.devices.gpus import GpuSpec, gpu_called, gpu_named
from iosched.profiler.devices.imported_stages import NO_PROFILE, FindImported, ImportedProfile, find_nothing
from iosched.profiler.devices.kind import DeviceKind
from iosched.profiler.devices.open_settings import (
    DEFAULT_LAUNCH,
    LaunchName,
    OpenSettings,
    launch_named,
    precision_on,
    refuse_for_attached_gpus,
)
from iosched.profiler.devices.profiled_device import Baselines, CostDetails, Fp16Gain, OpenModel, ProfiledDevice
from iosched.profiler.devices.throughput import idle_streams
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.device import DeviceInfo
from iosched.runtime.executor import Executor
from iosched.runtime.reference import SelfCheck
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.unit_graph import UnitGraph, join_units

_LONG_SEARCH = 2_000  # stages computed of a block


@dataclass(frozen=True)
class SimulatedGpu:
    """A GPU known by its specification; see `ProfiledDevice`.

    Attributes:
        remarks: why an attached GPU of this name cannot be used, if there is one.
        find_imported: finds measurements of such a GPU on another machine in the profile database.
    """

    gpu: GpuSpec
    remarks: tuple[str, ...] = ()
    find_imported: FindImported = field(default=find_nothing, compare=False)

    @property
    def info(self) -> DeviceInfo:
        """The GPU's short name and its product's; no memory, which differs between cards of one name."""
        return DeviceInfo(self.gpu.key, "cuda", self.gpu.name, "analytic")

    def checks(self) -> Sequence[SelfCheck]:
        """Raises a DeviceError: nothing can run here."""
        raise self._not_attached()

    def check(self, settings: OpenSettings) -> None:
        """Raises a UsageError for settings for attached GPUs, unsupported precisions and unknown launches."""
        refuse_for_attached_gpus(settings)
        self._precision(settings)
        launch_named(settings.launch)

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None = None,
        *,
        alongside: OpenModel | None = None,
    ) -> OpenOnSimulatedGpu:
        """Opens the analytic model of `model`, with imported stages from the database.

        Raises a UsageError for an invalid precision, launch or units, a damaged database, or a model in integers.
        """
        del alongside
        _refuse_whole_numbers(self.gpu, model.graph)
        precision, launch = self._precision(settings), launch_named(settings.launch)
        units = join_units(model.graph, settings.units)
        cost = AnalyticCost(model.graph, self.gpu, precision, launches=LAUNCH_CONSTANTS[launch], units=units)
        opened = OpenOnSimulatedGpu(self, cost, launch, effort=_effort(settings.gap_percent))
        if database is None or not settings.resume:
            return opened
        found = self.find_imported(database, model, self.gpu.key, precision).of_units(units)
        if launch != DEFAULT_LAUNCH:
            return replace(opened, imported=found.without_graphs())
        if found.measured is None:
            return replace(opened, imported=found)
        scaled = ScaledCost(cost, found.measured)
        return replace(opened, cost=scaled, imported=replace(found, factor=scaled.scaling.factor))

    def plain(self, model: Model, settings: OpenSettings) -> None:
        """None: onnxruntime runs on the CPU."""

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """Raises a DeviceError: nothing can run here."""
        del model, document, threads
        raise self._not_attached()

    def _not_attached(self) -> DeviceError:
        if self.remarks:
            return DeviceError(self.remarks[0])
        return DeviceError(
            f"{self.gpu.name} is not attached: 'iosched optimize --device {self.gpu.key}' simulates it, but nothing can"
            " run or be measured on it; use --device cpu"
        )

    def _precision(self, settings: OpenSettings) -> PrecisionName:
        return precision_on(self.gpu.name, settings.precision, has_tf32=self.gpu.has_tf32)


def fp16_gain(gpu: GpuSpec, model: Model, settings: OpenSettings, schedule: Schedule) -> Fp16Gain | None:
    """Speedup of fp16 over fp32 for the operators of `schedule`; None without tensor cores, or within uncertainty."""
    if gpu.fp16_tensor_tflops is None or quantized_operators(model.graph):
        return None
    opened = [SimulatedGpu(gpu).open(model, replace(settings, precision=name)) for name in ("fp16", "fp32")]
    fp16, fp32 = (AnalyticUncertainty(each.cost, each.launch) for each in opened)
    stages = tuple(opened[0].units.scheduled(schedule).stages)
    latency_us = fp16.latency_us(stages)
    speedup = fp16.speedup(fp32, stages) if 0 < latency_us.value < inf else latency_us
    return Fp16Gain(latency_us, speedup) if speedup.is_faster else None


def _refuse_whole_numbers(gpu: GpuSpec, graph: ComputationGraph) -> None:
    found = quantized_operators(graph)
    if found:
        raise UsageError(
            f"{gpu.name}: only floating-point models can be simulated, but {len(found)} of {len(graph.operators)}"
            f" operators compute in integers (int8), such as {found[0]!r}.\n"
            "Optimize the floating-point model, which has the same operators, or use --device cpu."
        )


@dataclass(frozen=True, eq=False)
class OpenOnSimulatedGpu:
    """A model on a simulated GPU; see `OpenModel`."""

    device: SimulatedGpu
    cost: AnalyticCost | ScaledCost
    launch: LaunchName = DEFAULT_LAUNCH
    imported: ImportedProfile = NO_PROFILE
    effort: Effort = Effort()
    is_schedulable: ClassVar[bool] = True
    baselines: ClassVar[Baselines] = Baselines()
    teams: ClassVar[None] = None
    attached: ClassVar[None] = None

    @property
    def graph(self) -> ComputationGraph:
        """The model's operators, or the requested units."""
        return self.units.graph

    @property
    def units(self) -> UnitGraph:
        """Translates schedules between operators and units."""
        return self.cost.units

    @cached_property
    def details(self) -> CostDetails:
        """Intervals come from the errors of the model on measured kernels and networks."""
        uncertainty = AnalyticUncertainty(self.cost, self.launch)
        return CostDetails(self.cost.throughputs, self._idle_share, self.imported, uncertainty, self.cost.in_flight_us)

    def _idle_share(self, stage: Stage) -> float | None:
        return idle_streams(stage, self.cost.stage_latency_us)

    def close(self) -> None:
        """Does nothing."""


def _effort(gap_percent: float | None) -> Effort:
    """Searches to the proof, or to the requested gap; by default a long search may leave 1 %."""
    if gap_percent is None:
        return Effort(long_after=_LONG_SEARCH, long_tolerance=0.01)  # the model's own error is about 10 %
    return Effort(tolerance=gap_percent / 100)


def _spec(text: str) -> GpuSpec | None:
    return gpu_named(text.strip()) or gpu_called(text.strip())


def _device(text: str) -> SimulatedGpu:
    gpu = _spec(text)
    assert gpu is not None  # `KIND.claims` is checked before
    return SimulatedGpu(gpu)


def _made(document: ScheduleDocument) -> tuple[ProfiledDevice, OpenSettings] | None:
    launch = document.launch
    if launch is None:  # its latencies were measured
        return None
    gpu = gpu_called(document.device_name)
    if gpu is None:
        raise DeviceError(
            f"the schedule was made for {document.device_name}, whose specification this version does not have"
        )
    # Old files name tf32 for GPUs without it; these schedules were computed in float32.
    is_unknown = document.precision == "tf32" and not gpu.has_tf32
    precision = DEFAULT_PRECISION if is_unknown else document.precision
    return SimulatedGpu(gpu), OpenSettings(precision=precision, launch=launch)


KIND = DeviceKind(
    key="cuda",
    knows=lambda text: _spec(text) is not None,
    claims=lambda text, model: _spec(text) is not None,
    device=_device,
    name=lambda text: "",
    made=_made,
    unscheduled="on plain onnxruntime",
)
