"""Plan files that are open, whatever device runs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from iosched.models.graph import TensorSpec
from iosched.runtime.executor import Executor


@dataclass(frozen=True)
class PlanInterface:
    """Inputs and outputs of a program; the shape of an output is None if it is known only after a run."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class PlanModel(Protocol):
    """A plan file that is open: a model at one or several sets of input shapes. Threads may call it; runs queue."""

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
        """The program for inputs of these shapes, or for those of a model without a dynamic batch; None without one."""
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
        sessions: how many of its kernels are sessions of onnxruntime.
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
