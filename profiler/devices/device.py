"""A device that schedules are found for, and a model opened on it: all that `jobs/` knows of CPUs and GPUs.

Each kind of device has a folder beside this file, and only `resolve.py` asks of which kind a device is. A GPU that is
not attached is a device too: nothing can be run there, and latencies are computed from the GPU's specification.
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
    from iosched.profiler.baselines.onnxruntime import OnnxruntimeBaseline
    from iosched.profiler.baselines.openvino import OpenvinoBaseline
    from iosched.profiler.devices.cost import MeasuredCosts, StageCosts
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
    """How whole models are measured on a device.

    Attributes:
        prices: about how long measuring takes.
        budget: how long whole models are measured in turn by default.
        wording: words for messages about the device.
        versions: the versions of the libraries and drivers that influence latencies, by their names.
        opened_with: what was chosen when the model was opened and changes latencies of all of it, beside the way that
            it runs.
    """

    prices: Prices
    budget: Budget
    wording: Wording
    versions: Mapping[str, str]
    opened_with: str = ""


@dataclass(frozen=True, eq=False)
class CostDetails:
    """Facts about the latencies of stages, which name nodes of `OpenModel.graph`.

    Attributes:
        throughputs: how much stages compute and how fast.
        idle_share: returns the share of the lanes' time in which they wait while a stage runs, from 0 to 1; None if
            not known. It is known of concurrent stages whose latency is, as well as that of their groups alone.
            Measures nothing.
        elsewhere: stages that were measured on such a device on another machine; nothing if the device is attached.
        uncertainty: how well latencies are known that are computed; None where they are measured.
    """

    throughputs: Throughputs
    idle_share: Callable[[Stage], float | None]
    elsewhere: ImportedProfile = NO_PROFILE
    uncertainty: Uncertainty | None = None


@dataclass(frozen=True, eq=False)
class Baselines:
    """Other ways to run a model on a device, which a schedule is compared with.

    Attributes:
        onnxruntime: plain onnxruntime, which a schedule has to beat; None if it has to beat the sequential schedule.
        openvino: OpenVINO, which a schedule has to beat as well, and which ships where it is fastest; None where it is
            not.
        only_way: OpenVINO, if nothing else runs the model in the precision that was asked for; else None.
        openers: functions that open another runtime on this model and given inputs, by its name in `profiler/peers`;
            each raises a `DeviceError` if the runtime is not installed or cannot run this model.
    """

    onnxruntime: OnnxruntimeBaseline | None = None
    openvino: OpenvinoBaseline | None = None
    only_way: OpenvinoBaseline | None = None
    openers: Mapping[str, Callable[[Arrays], Candidate]] = field(default_factory=dict)


@runtime_checkable
class CountsKernelCalls(Protocol):
    """Optional part of a device that calls kernels in different ways."""

    def kernel_calls(self, model: Model) -> Mapping[str, Mapping[str, int]]:
        """How many kernels of the model, by operator, are "invoked" without a session and how many have "sessions"."""
        ...


class TeamWays(Protocol):
    """The ways to run a model in teams of cores, which take different images or different requests."""

    def opened(self, teams: Teams) -> AttachedModel:
        """The model as one team runs it, for as many images as it takes at once; closed with the whole model."""
        ...

    def ready(self, schedule: Schedule, teams: Teams, inputs: Arrays) -> tuple[Candidate, Callable[[], Arrays]]:
        """The model ready to be timed on these inputs, and a function that runs it once for its outputs.

        Args:
            schedule: what a team runs, in operators of the model.

        Raises:
            UsageError: the model does not compute the images of its batch apart.
            ExecutionError: a kernel fails.
        """
        ...

    def n_kernels(self, schedule: Schedule, teams: Teams) -> int:
        """How many kernels one run of the model launches; `schedule` is what a team runs, in operators of the model."""
        ...


class OpenModel(Protocol):
    """A model opened on a device: the graph that is scheduled there, and the latencies of its stages."""

    @property
    def device(self) -> ProfiledDevice:
        """The device that the model is opened on."""
        ...

    @property
    def graph(self) -> ComputationGraph:
        """The graph that is scheduled: of the model's operators, or of units of several operators that run as one."""
        ...

    @property
    def units(self) -> UnitGraph:
        """Translates schedules between the model's operators and the device's units."""
        ...

    @property
    def cost(self) -> StageCosts:
        """The latencies of stages; a stage names nodes of `graph`."""
        ...

    @property
    def effort(self) -> Effort:
        """How hard a search tries: it depends on how exact latencies are, and how long measuring one takes."""
        ...

    @property
    def is_schedulable(self) -> bool:
        """Whether the model can be run by a schedule: its inputs have a fixed size, it computes something,
        and schedules run in the precision that is asked for."""
        ...

    @property
    def details(self) -> CostDetails:
        """Facts about the latencies of stages."""
        ...

    @property
    def baselines(self) -> Baselines:
        """What a schedule is compared with; nothing if the device is not attached."""
        ...

    @property
    def teams(self) -> TeamWays | None:
        """The ways to run the model in teams of cores; None where cores cannot be divided."""
        ...

    @property
    def here(self) -> AttachedModel | None:
        """This object, if the device can run the model; None if the device is not attached."""
        ...

    def close(self) -> None:
        """Frees the sessions, buffers and threads of the open model."""
        ...


class AttachedModel(OpenModel, Protocol):
    """A model opened on a device that can run it."""

    @property
    def cost(self) -> MeasuredCosts:
        """The latencies of stages, which are measured and kept in the profile database."""
        ...

    @property
    def measuring(self) -> MeasuringFacts:
        """How whole models are measured."""
        ...

    def ways(self, schedule: Schedule) -> Mapping[str, Way]:
        """The ways to run `schedule`, by name; the first one is preferred where they are equally fast."""
        ...

    def one_after_another(self) -> Mapping[str, Way]:
        """The ways to run one operator after another, each on the whole device, by name; the usual one, "sequential",
        is the first."""
        ...

    def ready(self, way: Way, inputs: Arrays) -> Candidate:
        """Compiles the model to run this way, and puts the inputs where it reads them.

        Raises:
            DeviceError: the device cannot run the model this way, for example because its memory is too small.
            ExecutionError: a kernel fails.
        """
        ...

    def in_turn(
        self, candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Measurement]:
        """Measures the latency of every candidate by name; sample k of each is taken in round k.

        Args:
            observer: is called after each round with the rounds done and the rounds in all.
        """
        ...

    def rounds(self, candidates: Mapping[str, Candidate]) -> TakeRound:
        """A function that measures some of the candidates by name, once each, and says who else had the device."""
        ...

    def running(self, way: Way | None, measured: Mapping[str, Measurement]) -> Running:
        """Facts about running the model this way, or without a schedule if `way` is None.

        Args:
            measured: latencies of whole models by the names of `ways`, which the notes comment on.
        """
        ...


def attached(opened: OpenModel) -> AttachedModel:
    """The open model, of which the device is attached.

    Raises:
        DeviceError: the device is not attached.
    """
    if opened.here is None:
        raise DeviceError(f"{opened.device.info.name} is not attached: nothing can be run or measured on it")
    return opened.here


class ProfiledDevice(Device, Protocol):
    """A device that models can be opened on, to know the latencies of their stages."""

    def check(self, settings: OpenSettings) -> None:
        """Refuses settings that mean nothing on this device.

        Raises:
            UsageError: a setting means nothing here; the text says on which devices it does.
        """
        ...

    def open(
        self,
        model: Model,
        settings: OpenSettings,
        database: ProfileDatabase | None,
        *,
        beside: OpenModel | None = None,
    ) -> OpenModel:
        """Opens `model` on this device.

        Args:
            database: the profile database; needed if `DeviceInfo.cost_kind` is "measured".
            beside: another model that is open on this device and is closed later; the new one may use its threads.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device cannot place the model, or a library is missing.
            UsageError: there is no such precision, or `settings.units` cannot be.
        """
        ...

    def plain(self, model: Model, settings: OpenSettings) -> OnnxruntimeBaseline | None:
        """Plain onnxruntime, which ships if our own plan fails; None if it does not run the model on this
        device, or not in this precision."""
        ...


LEVEL = 0.9
"""The probability with which an interval is meant to hold what would be measured."""


class Uncertainty(Protocol):
    """Intervals of computed latencies of one model on one device."""

    def latency_us(self, stages: Sequence[Stage]) -> Interval:
        """The latency of stages that run one after another."""
        ...

    def ratio(self, stages: Sequence[Stage], others: Sequence[Stage]) -> Interval:
        """The latency of `stages` over that of `others`, both on this device.

        What both have in common cancels, so that the ratio is known better than either latency, and exactly of equal
        schedules.
        """
        ...


@dataclass(frozen=True)
class Way:
    """One way to run a whole model.

    Attributes:
        schedule: the schedule to run, in the device's units.
        how: a text of the device's own that says how this way differs from its usual way; empty for the usual way.
    """

    schedule: Schedule
    how: str = ""

    @property
    def text(self) -> str:
        """A text that says all of how the model is run; ways with equal texts do the same."""
        return structure_text(self.schedule) + self.how


@dataclass(frozen=True)
class Running:
    """Facts about one way to run the model.

    Attributes:
        n_kernels: how many kernels one run launches; None where the library that runs them does not tell.
        runtime: the settings with which the runtime runs the model this way again; "runtime" in a schedule file.
        notes: sentences that a user should read about this way.
        plan_nbytes: memory of the plan: weights, inputs and outputs, and the arena in which all other tensors lie; None
            where no plan of ours runs the model.
    """

    n_kernels: int | None
    runtime: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    plan_nbytes: int | None = None


@dataclass(frozen=True)
class Prices:
    """About how long it takes to measure something on a device.

    Attributes:
        measurement_s: seconds to compile, warm up and sample one stage.
        comparison_s: seconds to compare whole models at the end, if one run of a model takes a few milliseconds.
        samples_alone: how often each operator is measured alone: once on all lanes and, where the device has several,
            once more on a single lane.
    """

    measurement_s: float
    comparison_s: float
    samples_alone: int


@dataclass(frozen=True)
class Wording:
    """Words for messages that depend on the device.

    Attributes:
        sequential: names the schedule that runs one operator after another.
        rival: names what the schedule is compared with at the end.
        elsewhere: says on which device a runtime can be measured that does not run on this one.
    """

    sequential: str
    rival: str
    elsewhere: str
