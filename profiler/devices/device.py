"""A device that schedules are found for, and a model opened on it: all that `jobs/` knows of CPUs and GPUs.

Each kind of device is a folder beside this file; `resolve.py` alone asks which kind one is. A GPU that is not here, but
only its specification, is a device too: there nothing runs, and latencies come from a formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np

from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts, StageCosts
from iosched.profiler.devices.throughput import Throughputs
from iosched.profiler.devices.units import Units
from iosched.profiler.measuring.in_turn import Budget, Candidate
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.peers.onnxruntime import PlainOnnxruntime
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.latencies import structure
from iosched.runtime.cuda.gpu.exchange import DeviceArray
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


class Runnable(Protocol):
    """Runs a whole model."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run; outputs by name."""
        ...

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


class RunOnDevice(Protocol):
    """One run on arrays that lie on a GPU."""

    def __call__(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, DeviceArray]:
        """See `Executor.run_on_device`."""
        ...


@dataclass(frozen=True, eq=False)
class Executor:
    """A model that is ready to run.

    Attributes:
        runnable: runs it.
        description: says in a line how it runs.
        remarks: asked for `notes`.
        frees: called when it is closed, beside the runnable.
        on_device: runs it on arrays that lie on a GPU; None on a CPU.
        placed: makes it ready to be timed on inputs that lie where it runs; by default these are given to each run.
    """

    runnable: Runnable
    description: str
    remarks: Callable[[], Sequence[str]] = tuple
    frees: Callable[[], None] | None = None
    on_device: RunOnDevice | None = None
    placed: Callable[[Arrays], Candidate] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is amiss; all is known after a run."""
        return tuple(self.remarks())

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """One run; outputs by name."""
        return self.runnable.run(inputs)

    def run_on_device(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, DeviceArray]:
        """One run on arrays that lie on the GPU; see `CudaModel.run_on_device`.

        Raises:
            UsageError: this runs on the CPU, or an input is not what it should be.
        """
        if self.on_device is None:
            raise UsageError("this model runs on the CPU: arrays that lie on a GPU need device='cuda'")
        return self.on_device(inputs, stream=stream)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs."""
        return self.runnable.time(inputs, repeats)

    def ready(self, inputs: Arrays) -> Candidate:
        """Ready to be timed on these inputs."""
        if self.placed is not None:
            return self.placed(inputs)
        return Candidate(partial(self.time, inputs), self.close, self.remarks)

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        self.runnable.close()
        if self.frees is not None:
            self.frees()


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
