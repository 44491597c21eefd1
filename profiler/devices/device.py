"""A device that schedules are found for, and a model opened on it: all that `jobs/` knows of CPUs and GPUs.

Each kind of device is a folder beside this file; `resolve.py` alone asks which kind one is. A GPU that is not here, but
only its specification, is a device too: there nothing runs, and latencies come from a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts, StageCosts
from iosched.profiler.devices.executor import Executor
from iosched.profiler.devices.throughput import Throughputs
from iosched.profiler.devices.units import Units
from iosched.profiler.measuring.in_turn import Budget, Candidate
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.peers.onnxruntime import PlainOnnxruntime
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.latencies import structure
from iosched.runtime.inputs import Arrays
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Schedule

CostKind = Literal["measured", "analytic"]
Barriers = Literal["auto", "stage", "none"]


@dataclass(frozen=True)
class OpenSettings:
    """How a model is to be opened on a device.

    Attributes:
        threads: cores that a CPU uses; all that the process may use by default.
        precision: what a GPU computes in: "fp32", "tf32" or "fp16".
        barriers: on an attached GPU, whether a stage waits for all of the one before ("stage"), for what it reads alone
            ("none"), or as is faster ("auto").
        resume: whether latencies in the profile database are taken; else all is measured anew and replaced.
        may_time: whether something may be run to open the model, as to find out which kernels suit it.
    """

    threads: int | None = None
    precision: str = DEFAULT_PRECISION
    barriers: Barriers = "auto"
    resume: bool = True
    may_time: bool = True


@dataclass(frozen=True)
class Way:
    """One way to run a whole model.

    Attributes:
        schedule: in the device's units.
        how: what the device does differently from its usual way, in words of its own; empty for the usual way.
    """

    schedule: Schedule
    how: str = ""

    @property
    def text(self) -> str:
        """Equal for ways that do the same."""
        return structure(self.schedule) + self.how


@dataclass(frozen=True)
class Running:
    """What a way of running the model comes to.

    Attributes:
        n_kernels: launched in one run.
        runtime: how the runtime is to be set to run it this way again, as schedule files say it.
        notes: sentences on what a user should know of it.
    """

    n_kernels: int
    runtime: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Prices:
    """About what measuring takes on a device.

    Attributes:
        measurement_s: for a stage to be compiled, warmed up and sampled.
        comparison_s: for whole models to be compared at the end, if they run for a few milliseconds.
        samples_alone: how often an operator is measured alone: on all lanes, and on one where that says something.
    """

    measurement_s: float
    comparison_s: float
    samples_alone: int


@dataclass(frozen=True)
class Wording:
    """How things are called on a device.

    Attributes:
        sequential: one operator after another.
        rival: what whole models are compared with at the end.
        elsewhere: where the runtimes are that do not run here.
    """

    sequential: str
    rival: str
    elsewhere: str


class OpenModel(Protocol):
    """A model opened on a device: what is scheduled there, and what stages of it cost."""

    @property
    def device(self) -> Device:
        """Where it is open."""
        ...

    @property
    def graph(self) -> ComputationGraph:
        """What is scheduled: the model's operators, or the units that the device runs several of them as."""
        ...

    @property
    def units(self) -> Units:
        """Translates schedules between the model's operators and the device's units."""
        ...

    @property
    def cost(self) -> StageCosts:
        """Latencies of stages of units."""
        ...

    @property
    def effort(self) -> Effort:
        """How hard a search tries here, by how well latencies are known and what they cost to be known."""
        ...

    @property
    def throughputs(self) -> Throughputs:
        """What stages of units compute, and how fast."""
        ...

    @property
    def here(self) -> OpenModelHere | None:
        """The same, where the model can be run; None where the device is not here."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


class OpenModelHere(OpenModel, Protocol):
    """A model opened on a device that can run it."""

    @property
    def cost(self) -> MeasuredCosts:
        """Latencies of stages of units, measured and kept."""
        ...

    @property
    def is_schedulable(self) -> bool:
        """Whether schedules can be run: inputs have a fixed size, and something is computed."""
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Of libraries and drivers that change latencies."""
        ...

    @property
    def prices(self) -> Prices:
        """What measuring takes."""
        ...

    @property
    def wording(self) -> Wording:
        """How things are called here."""
        ...

    @property
    def plain(self) -> PlainOnnxruntime | None:
        """What people have without a schedule; None where that is running one operator after another."""
        ...

    @property
    def budget(self) -> Budget:
        """How long whole models are measured in turn where nobody says otherwise."""
        ...

    def ways(self, schedule: Schedule) -> Mapping[str, Way]:
        """The ways to run a schedule that was found, by name; the preferred one, "iosched" or a variant, first."""
        ...

    def ready(self, way: Way, inputs: Arrays) -> Candidate:
        """The model compiled to run this way, with its inputs in place.

        Raises:
            DeviceError: the device has not enough memory for it, say.
            ExecutionError: a kernel fails.
        """
        ...

    def rivals(self, inputs: Arrays) -> Mapping[str, Callable[[], Candidate]]:
        """Other runtimes by name, as `profiler/peers` opens them here.

        Raises:
            DeviceError: by those called, where it is not installed or cannot run this model.
        """
        ...

    def in_turn(
        self, candidates: Mapping[str, Candidate], budget: Budget, observer: Callable[[int, int], None] | None = None
    ) -> Mapping[str, Measurement]:
        """Latency of every candidate, sample k of each taken in round k."""
        ...

    def running(self, way: Way | None, measured: Mapping[str, Measurement]) -> Running:
        """What running the model this way comes to; None: without a schedule.

        Args:
            measured: what was measured of whole models, by the names of `ways`, for remarks on it.
        """
        ...


class Device(Protocol):
    """A device that schedules are found for."""

    @property
    def key(self) -> str:
        """What tells it from others in a table: "cpu", "cuda:0", "v100"."""
        ...

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda", as schedule files say it."""
        ...

    @property
    def name(self) -> str:
        """The device's own name."""
        ...

    @property
    def cost_kind(self) -> CostKind:
        """Whether latencies are measured, or computed since the device is not here."""
        ...

    def check(self, settings: OpenSettings) -> None:
        """Refuses settings that mean nothing on this device.

        Raises:
            UsageError: says which, and where it means something.
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
        """Opens a model.

        Args:
            database: of what was measured; needed where `cost_kind` is "measured".
            beside: another model that is open here, and stays open longer, whose threads this one may use too.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device cannot place the model, or a library is missing.
            UsageError: no such precision.
        """
        ...

    def executor(self, model: Model, document: ScheduleDocument | None, threads: int | None = None) -> Executor:
        """The model ready to run by a schedule that fits it; without one in the device's usual way.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: the device is not here, cannot place the model, or lacks a library.
        """
        ...
