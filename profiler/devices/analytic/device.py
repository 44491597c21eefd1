"""A GPU that is not attached, as a device: nothing runs there, and latencies are computed from its specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from iosched.models.errors import DeviceError, UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.models.whole_numbers import in_whole_numbers
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.calibration import CALIBRATIONS
from iosched.profiler.devices.analytic.scaled import ScaledCost
from iosched.profiler.devices.analytic.uncertainty import AnalyticUncertainty
from iosched.profiler.devices.device import Baselines, CostDetails, OpenModel, ProfiledDevice
from iosched.profiler.devices.gpus import GpuSpec, gpu_called, gpu_named
from iosched.profiler.devices.idle_share import idle_streams
from iosched.profiler.devices.imported_stages import NOTHING, FindElsewhere, FoundElsewhere, nothing_elsewhere
from iosched.profiler.devices.kind import Kind
from iosched.profiler.devices.launch import DEFAULT_LAUNCH, LaunchName, launch_named
from iosched.profiler.devices.open_settings import OpenSettings, refuse_for_attached_gpus, refuse_throughput
from iosched.profiler.devices.precision import precision_on
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.device import DeviceInfo
from iosched.runtime.executor import Executor
from iosched.runtime.reference import SelfCheck
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.schedule import Stage
from iosched.scheduler.unit_graph import UnitGraph, join_units

_LONG_SEARCH = 2_000  # stages computed of a block


@dataclass(frozen=True)
class PaperGpu:
    """A GPU of which only the specification is known; see `ProfiledDevice`.

    Attributes:
        remarks: why a GPU that is attached and has this name cannot be used, if there is one.
        find_elsewhere: finds in the profile database what was measured on such a GPU on another machine.
    """

    gpu: GpuSpec
    remarks: tuple[str, ...] = ()
    find_elsewhere: FindElsewhere = field(default=nothing_elsewhere, compare=False)

    @property
    def info(self) -> DeviceInfo:
        """The GPU's short name and its product's; no memory, because GPUs of one name are sold with different ones."""
        return DeviceInfo(self.gpu.key, "cuda", self.gpu.name, "analytic")

    def checks(self) -> Sequence[SelfCheck]:
        """Refuses to try anything.

        Raises:
            DeviceError: always; the text says what can be done instead.
        """
        raise self._not_here()

    def check(self, settings: OpenSettings) -> None:
        """Refuses settings for attached GPUs, precisions that the GPU does not have, and unknown ways to launch.

        Raises:
            UsageError: a setting is refused; the text says which.
        """
        refuse_for_attached_gpus(settings)
        refuse_throughput(settings)
        self._precision(settings)
        launch_named(settings.launch)

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None = None,
        *,
        beside: OpenModel | None = None,
    ) -> OpenOnPaper:
        """Opens the analytic model of `model` on this GPU, beside what the database has of such a GPU.

        Raises:
            UsageError: the GPU has no such precision, there is no such way to launch, the database is damaged, the
                model is in whole numbers, or its units cannot be.
        """
        del beside
        _refuse_whole_numbers(self.gpu, model.graph)
        precision, launch = self._precision(settings), launch_named(settings.launch)
        units = join_units(model.graph, settings.units)
        cost = AnalyticCost(model.graph, self.gpu, precision, calibration=CALIBRATIONS[launch], units=units)
        opened = OpenOnPaper(self, cost, launch, effort=_effort(settings.gap_percent))
        if database is None or not settings.resume:
            return opened
        found = self.find_elsewhere(database, model, self.gpu.key, precision).of_units(units)
        if launch != DEFAULT_LAUNCH:
            return replace(opened, elsewhere=found.in_graphs_alone())
        if found.measured is None:
            return replace(opened, elsewhere=found)
        scaled = ScaledCost(cost, found.measured)
        return replace(opened, cost=scaled, elsewhere=replace(found, factor=scaled.scaling.factor))

    def plain(self, model: Model, settings: OpenSettings) -> None:
        """None: plain onnxruntime runs on the CPU."""

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """Refuses to run anything.

        Raises:
            DeviceError: always; the text says what can be done instead.
        """
        del model, document, threads
        raise self._not_here()

    def _not_here(self) -> DeviceError:
        if self.remarks:
            return DeviceError(self.remarks[0])
        return DeviceError(
            f"{self.gpu.name} is not here: 'iosched optimize --device {self.gpu.key}' plans for it, but nothing can be"
            " run or measured on it; use --device cpu"
        )

    def _precision(self, settings: OpenSettings) -> PrecisionName:
        return precision_on(self.gpu.name, settings.precision, has_tf32=self.gpu.has_tf32)


def _refuse_whole_numbers(gpu: GpuSpec, graph: ComputationGraph) -> None:
    found = in_whole_numbers(graph)
    if found:
        raise UsageError(
            f"{gpu.name}: latencies are known for floats alone, and {len(found)} of {len(graph.operators)} operators"
            f" are in whole numbers (int8), the first of them {found[0]!r}.\n"
            "Plan for the model in floats that was quantized, which has the same operators, or use --device cpu."
        )


@dataclass(frozen=True, eq=False)
class OpenOnPaper:
    """A model on a GPU that is not attached; see `OpenModel`."""

    device: PaperGpu
    cost: AnalyticCost | ScaledCost
    launch: LaunchName = DEFAULT_LAUNCH
    elsewhere: FoundElsewhere = NOTHING
    effort: Effort = Effort()
    is_schedulable: ClassVar[bool] = True
    baselines: ClassVar[Baselines] = Baselines()
    teams: ClassVar[None] = None
    here: ClassVar[None] = None

    @property
    def graph(self) -> ComputationGraph:
        """The model's own operators, or the units that the user asked for."""
        return self.units.graph

    @property
    def units(self) -> UnitGraph:
        """Translates schedules between operators and units."""
        return self.cost.units

    @cached_property
    def details(self) -> CostDetails:
        """Intervals are by how far kernels and networks that others measured lie from the model.

        The share of the SMs' time that is filled with work is known where nothing was measured.
        """
        uncertainty = AnalyticUncertainty(self.cost, self.launch)
        return CostDetails(self.cost.throughputs, self._idle_share, self.elsewhere, uncertainty)

    def _idle_share(self, stage: Stage) -> float | None:
        return idle_streams(stage, self.cost.stage_latency_us)

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


def _effort(gap_percent: float | None) -> Effort:
    """Searches to the proof, or to the gap that is asked for; by default a long search may leave 1 %."""
    if gap_percent is None:
        return Effort(long_after=_LONG_SEARCH, long_tolerance=0.01)  # the model itself is known to some 10 %
    return Effort(tolerance=gap_percent / 100)


def _spec(text: str) -> GpuSpec | None:
    """The specification of the GPU with this key or full name."""
    return gpu_named(text.strip()) or gpu_called(text.strip())


def _device(text: str) -> PaperGpu:
    gpu = _spec(text)
    assert gpu is not None  # `KIND.claims` was asked before
    return PaperGpu(gpu)


def _made(document: ScheduleDocument) -> tuple[ProfiledDevice, OpenSettings] | None:
    launch = document.launch
    if launch is None:  # its latencies were measured
        return None
    gpu = gpu_called(document.device_name)
    if gpu is None:
        raise DeviceError(f"the schedule is for {document.device_name}, which this version has no specification of")
    # Under the name of tf32, schedules were once made in float32 for GPUs that have no tf32.
    is_unknown = document.precision == "tf32" and not gpu.has_tf32
    precision = DEFAULT_PRECISION if is_unknown else document.precision
    return PaperGpu(gpu), OpenSettings(precision=precision, launch=launch)


KIND = Kind(
    key="cuda",
    knows=lambda text: _spec(text) is not None,
    claims=lambda text, model: _spec(text) is not None,
    device=_device,
    name=lambda text: "",
    made=_made,
    unscheduled="on plain onnxruntime",
)
