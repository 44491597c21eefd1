"""Plan files, independent of the device that writes and runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from iosched.models.graph import TensorSpec
from iosched.runtime.executor import Executor

if TYPE_CHECKING:
    from iosched.models.model import Model
    from iosched.scheduler.document import ScheduleDocument


@dataclass(frozen=True)
class PlanInterface:
    """Inputs and outputs of a program; the shape of an output is None if it is known only after a run."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class PlanModel(Protocol):
    """An open plan file: a model at one or several sets of input shapes. Threads may call it; runs queue."""

    @property
    def programs(self) -> tuple[PlanInterface, ...]:
        """One for each set of input shapes."""
        ...

    @property
    def lanes(self) -> int:
        """Threads of a run."""
        ...

    @property
    def model_sha256(self) -> str:
        """Of the ONNX file that it was exported with."""
        ...

    @property
    def checksum(self) -> int:
        """Of the plan's head."""
        ...

    def number_of(self, shapes: Mapping[str, tuple[int, ...]] | None) -> int | None:
        """Number of the program for these shapes (None: of a model without a dynamic batch); None if there is none."""
        ...

    def executor(self, number: int) -> Executor:
        """A program as an executor, which leaves the plan open."""
        ...

    def close(self) -> None:
        """Free threads, kernels, memory and processors. May be called again."""
        ...


@dataclass(frozen=True)
class WrittenProgram:
    """A program of a plan file that was written.

    Attributes:
        kernels: calls of kernels in a run.
        sessions: number of its kernels that are sessions of onnxruntime.
    """

    inputs: Mapping[str, tuple[int, ...]]
    kernels: int
    sessions: int


@dataclass(frozen=True)
class WrittenPlan:
    """A plan file that was written.

    Attributes:
        checksum: of its head.
        lanes: threads of a run.
    """

    checksum: int
    lanes: int
    programs: tuple[WrittenProgram, ...]


@runtime_checkable
class WritesPlans(Protocol):
    """Optional interface of a device that supports plan files."""

    def check_plans(self) -> None:
        """Raise a `DeviceError` where this machine or its onnxruntime cannot run plan files."""
        ...

    def open_plan(self, path: Path) -> PlanModel:
        """Open a plan file.

        Raises:
            ExecutionError: it is broken, or for another machine; the error names the reason.
            DeviceError: the runtime of plan files is missing.
        """
        ...

    def write_plan(
        self,
        path: Path,
        exported: Path,
        scheduled: Sequence[tuple[Model, ScheduleDocument]],
        threads: int | None,
        *,
        dynamic_batch: bool,
    ) -> WrittenPlan:
        """Write a plan file.

        Args:
            exported: the ONNX file that the plan is for.
            scheduled: the model at each set of input shapes, and its schedule.
            threads: of a run; default: one for each core.
            dynamic_batch: whether the ONNX file has a dynamic batch.

        Raises:
            UsageError: parts of the model need Python.
            DeviceError: see `check_plans`.
            OSError: the file cannot be written.
        """
        ...
