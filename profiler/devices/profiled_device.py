"""A device that schedules are made for, and a model opened on it: everything that `jobs/` knows of CPUs and GPUs.

Each kind of device has a folder here, and only `resolve.py` asks for the kind. A simulated GPU is a device too: nothing
runs there, and latencies are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from iosched.models.errors import DeviceError
from iosched.profiler.devices.imported_stages import NO_PROFILE, ImportedProfile
from iosched.profiler.measuring.statistics import Interval, Measurement
from iosched.runtime.device import Device
from iosched.scheduler.schedule import Schedule, Stage, structure_text

if TYPE_CHECKING:
    from iosched.models.graph import ComputationGraph
    from iosched.models.model import Model
    from iosched.profiler.baselines.library import LibraryBaseline
    from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
    from iosched.profiler.baselines.openvino import OpenvinoBaseline
    from iosched.profiler.devices.measured_costs import MeasuredCosts, StageCosts
    from iosched.profiler.devices.open_settings import OpenSettings
    from iosched.profiler.devices.throughput import Throughputs
    from iosched.profiler.measuring.interleaved_models import Budget, TakeRound
    from iosched.profiler.store.database import ProfileDatabase
    from iosched.runtime.executor import Candidate
    from iosched.runtime.inputs import Arrays
    from iosched.scheduler.effort import Effort
    from iosched.scheduler.teams import Teams
    from iosched.scheduler.unit_graph import UnitGraph


@dataclass(frozen=True)
class MeasuringFacts:
    """Conditions under which a device measures whole models.

    Attributes:
        prices: approximate durations of measurements.
        budget: default duration of comparisons.
        wording: device-dependent words for messages.
        versions: of libraries and drivers that influence latencies, by name.
        opened_with: choices at opening that affect all latencies.
    """

    prices: Prices
    budget: Budget
    wording: Wording
    versions: Mapping[str, str]
    opened_with: str = ""


@dataclass(frozen=True, eq=False)
class CostDetails:
    """Facts about the latencies of stages of `OpenModel.graph`.

    Attributes:
        idle_share: the idle share of the lanes' time while a stage runs, from 0 to 1; None if unknown. Measures
            nothing.
        imported: stages measured on such a device on another machine; nothing for attached ones.
        uncertainty: of computed latencies; None for measured ones.
        in_flight_us: computes the microseconds between the ends of runs by a schedule of `OpenModel.graph`, if that
            many runs overlap; None if that is measured.
    """

    throughputs: Throughputs
    idle_share: Callable[[Stage], float | None]
    imported: ImportedProfile = NO_PROFILE
    uncertainty: Uncertainty | None = None
    in_flight_us: Callable[[Schedule, int], float] | None = None


@dataclass(frozen=True, eq=False)
class Baselines:
    """Other ways to run a model on a device.

    Attributes:
        onnxruntime: which a schedule has to beat; None for the sequential schedule instead.
        openvino: which a schedule has to beat too, and which ships if fastest; None if missing.
        tensorrt: the same on a GPU, by the seconds that building an engine may take; None on a CPU.
        only_way: OpenVINO, if nothing else supports the precision; else None.
        openers: open another runtime on this model and given inputs, by name; they raise `DeviceError`.
    """

    onnxruntime: OnnxruntimeBaseline | None = None
    openvino: OpenvinoBaseline | None = None
    tensorrt: Callable[[float | None], LibraryBaseline] | None = None
    only_way: OpenvinoBaseline | None = None
    openers: Mapping[str, Callable[[Arrays], Candidate]] = field(default_factory=dict)


@runtime_checkable
class CountsKernelCalls(Protocol):
    """Optional part of a device that calls kernels in different ways."""

    def kernel_calls(self, model: Model) -> Mapping[str, Mapping[str, int]]:
        """Numbers of kernels by operator: "invoked" without a session, and with "sessions"."""
        ...


class TeamWays(Protocol):
    """Runs a model in teams of cores, which share images or requests."""

    def opened(self, teams: Teams) -> AttachedModel:
        """The model as one team runs it, for the images of one piece; closed with the whole model."""
        ...

    def ready(self, schedule: Schedule, teams: Teams, inputs: Arrays) -> tuple[Candidate, Callable[[], Arrays]]:
        """The model ready to be timed on these inputs, and a function that returns its outputs.

        `schedule` is that of a team, in operators of the model.

        Raises:
            UsageError: the model does not compute the images of its batch independently.
            ExecutionError: a kernel fails.
        """
        ...

    def n_kernels(self, schedule: Schedule, teams: Teams) -> int:
        """Kernels of one run of the model; `schedule` is that of a team, in operators of the model."""
        ...


class OpenModel(Protocol):
    """A model opened on a device: the scheduled graph, and the latencies of its stages."""

    @property
    def device(self) -> ProfiledDevice:
        """The device."""
        ...

    @property
    def graph(self) -> ComputationGraph:
        """The scheduled graph: of the model's operators, or of units."""
        ...

    @property
    def units(self) -> UnitGraph:
        """Translates schedules between the model's operators and the device's units."""
        ...

    @property
    def cost(self) -> StageCosts:
        """The latencies of stages of `graph`."""
        ...

    @property
    def effort(self) -> Effort:
        """The effort of a search, by the precision and the duration of measurements."""
        ...

    @property
    def is_schedulable(self) -> bool:
        """Whether a schedule can run the model: fixed inputs, something to compute, a supported precision."""
        ...

    @property
    def details(self) -> CostDetails:
        """Facts about the latencies of stages."""
        ...

    @property
    def baselines(self) -> Baselines:
        """Other ways to run the model; none on a simulated device."""
        ...

    @property
    def teams(self) -> TeamWays | None:
        """The ways to run the model in teams of cores; None if cores cannot be divided."""
        ...

    @property
    def attached(self) -> AttachedModel | None:
        """This object if the device is attached, else None."""
        ...

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        ...


class AttachedModel(OpenModel, Protocol):
    """A model opened on a device that can run it."""

    @property
    def cost(self) -> MeasuredCosts:
        """The latencies of stages, measured and kept in the profile database."""
        ...

    @property
    def measuring(self) -> MeasuringFacts:
        """Conditions of whole-model measurements."""
        ...

    def ways(self, schedule: Schedule) -> Mapping[str, Way]:
        """The ways to run `schedule`, by name; the first one wins ties."""
        ...

    def one_after_another(self) -> Mapping[str, Way]:
        """The ways to run operators one after another on the whole device, by name, "sequential" first."""
        ...

    def by_image(self) -> Way | None:
        """The way in which each core runs whole images of the batch; None if there is none."""
        ...

    def ready(self, way: Way, inputs: Arrays) -> Candidate:
        """Compiles the model to run this way, and places the inputs.

        Raises:
            DeviceError: the device cannot run the model this way, for example for lack of memory.
            ExecutionError: a kernel fails.
        """
        ...

    def in_turn(
        self, candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Measurement]:
        """Interleaved latencies of all candidates; sample k of each is of round k.

        `observer` is called after each round with the rounds done and the total.
        """
        ...

    def rounds(self, candidates: Mapping[str, Candidate]) -> TakeRound:
        """A function that measures some candidates by name, once each, with the interference."""
        ...

    def running(self, way: Way | None, measured: Mapping[str, Measurement]) -> Running:
        """Facts about running the model this way, or without a schedule if `way` is None; notes comment on `measured`
        ways.
        """
        ...


def attached(opened: OpenModel) -> AttachedModel:
    """The open model on an attached device; raises a DeviceError if it is not attached."""
    if opened.attached is None:
        raise DeviceError(f"{opened.device.info.name} is not attached: nothing can be run or measured on it")
    return opened.attached


class ProfiledDevice(Device, Protocol):
    """A device that models can be opened on, for the latencies of their stages."""

    def check(self, settings: OpenSettings) -> None:
        """Raises a UsageError for a setting that does not apply to this device; names those that it applies to."""
        ...

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None,
        *,
        alongside: OpenModel | None = None,
    ) -> OpenModel:
        """Opens `model` on this device.

        Args:
            database: the profile database; needed if `DeviceInfo.cost_kind` is "measured".
            alongside: a model that stays open on this device, and whose threads the new one may use.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device cannot run the model, or a library is missing.
            UsageError: invalid precision or units.
        """
        ...

    def plain(self, model: Model, settings: OpenSettings) -> OnnxruntimeBaseline | None:
        """onnxruntime, which ships if our own plan fails; None if it does not run here or in this precision."""
        ...


LEVEL = 0.9
"""The probability of an interval."""


class Uncertainty(Protocol):
    """Intervals of computed latencies of one model on one device."""

    def latency_us(self, stages: Sequence[Stage]) -> Interval:
        """The latency of consecutive stages."""
        ...

    def ratio(self, stages: Sequence[Stage], others: Sequence[Stage]) -> Interval:
        """The latency of `stages` over that of `others`, on this device.

        Common parts cancel, so the ratio is more certain than either latency, and exact for equal schedules.
        """
        ...


@dataclass(frozen=True)
class Fp16Gain:
    """A schedule in fp16 by the analytic model: its latency, and its speedup over fp32 by the same model."""

    latency_us: Interval
    speedup: Interval


@dataclass(frozen=True)
class Way:
    """One way to run a whole model: a schedule in the device's units, a suffix for unusual ways, the number of requests
    at a time on a GPU, if its memory suffices, and the teams on a CPU, unless all cores share each stage.
    """

    schedule: Schedule
    how: str = ""
    requests: int = 1
    teams: Teams | None = None

    @property
    def text(self) -> str:
        """Identifies how the model is run."""
        teams = "" if self.teams is None else f" in {self.teams.text}"
        return structure_text(self.schedule) + self.how + teams


@dataclass(frozen=True)
class Running:
    """Facts about one way to run the model.

    Attributes:
        n_kernels: kernels of one run; None if unknown.
        runtime: the settings that reproduce it; "runtime" in a schedule file.
        notes: sentences for the user.
        plan_nbytes: memory of the plan: weights, inputs, outputs and arena; None without a plan of ours.
    """

    n_kernels: int | None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    plan_nbytes: int | None = None


@dataclass(frozen=True)
class Prices:
    """Approximate durations of measurements on a device.

    Attributes:
        measurement_s: to compile, warm up and sample one stage.
        comparison_s: to compare whole models of a few milliseconds.
        samples_alone: measurements of each operator alone: on all lanes and, with several lanes, on one.
    """

    measurement_s: float
    comparison_s: float
    samples_alone: int


@dataclass(frozen=True)
class Wording:
    """Device-dependent words for messages: the sequential schedule, the baseline, and where another runtime can be
    measured.
    """

    sequential: str
    baseline: str
    other_device: str
