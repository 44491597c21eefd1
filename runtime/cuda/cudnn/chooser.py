"""Choices of cuDNN plans: interfaces of the chooser and of the store, and the choices' text form.

A plan is chosen for a key: a hash of the kernel and the layout of its tensors. By default it is the fastest plan alone;
a stage in which another plan is faster has its own choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.plan import View

CudnnPlanNames = Mapping[str, str]
"""Names of cuDNN plans by key."""

FASTEST_ALONE: CudnnPlanNames = MappingProxyType({})
"""No choice: for each key the plan that is fastest alone."""


@dataclass(frozen=True)
class CudnnPlanCandidate:
    """A cuDNN plan that may be the best for its key.

    Attributes:
        latency_us: alone; None if not timed.
    """

    name: str
    latency_us: float | None = None


class CudnnPlan(Protocol):
    """A cuDNN execution plan built for the views of one task."""

    @property
    def key(self) -> str:
        """Key of kernel and layout."""
        ...

    @property
    def name(self) -> str:
        """cuDNN's name: the engine and its knobs."""
        ...

    @property
    def candidates(self) -> Sequence[CudnnPlanCandidate]:
        """The best plans for the key, the fastest alone first."""
        ...

    @property
    def workspace_nbytes(self) -> int:
        """Scratch memory of a run."""
        ...

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """Enqueues the kernel on the stream.

        Args:
            addresses: of (*reads, *writes).
            workspace: address of `workspace_nbytes` bytes.

        Raises:
            ExecutionError: cuDNN fails.
        """
        ...


class CudnnPlanChooser(Protocol):
    """Chooses cuDNN plans for kernels."""

    @property
    def notes(self) -> Sequence[str]:
        """Notes for the user about choices that were replaced or skipped."""
        ...

    def __call__(
        self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames = FASTEST_ALONE
    ) -> CudnnPlan:
        """The plan that `names` gives for the key, else the fastest alone.

        Raises:
            DeviceError: there is none.
        """
        ...

    def of_stage(self, signature: str) -> CudnnPlanNames | None:
        """The plans chosen for stages with this signature; None if none were tried."""
        ...

    def keep(self, signature: str, names: CudnnPlanNames) -> CudnnPlanNames:
        """Stores the plans for stages with this signature; a choice that another process stored first is returned."""
        ...


def stage_key(signature: str) -> str:
    """Key of the choices for stages with this signature."""
    return f"stage {signature}"


def names_to_text(names: CudnnPlanNames) -> str:
    """One line, ordered by key."""
    return ", ".join(f"{key}: {name}" for key, name in sorted(names.items()))


def names_from_text(text: str) -> CudnnPlanNames:
    """Reads `names_to_text`; ignores malformed pairs."""
    pairs = (each.split(": ") for each in text.split(", "))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == len(("key", "name"))}


def candidates_to_text(candidates: Sequence[CudnnPlanCandidate]) -> str:
    """One line: names in order, with known latencies."""
    return ", ".join(
        each.name if each.latency_us is None else f"{each.name} {each.latency_us:.2f}us" for each in candidates
    )


def candidates_from_text(text: str) -> tuple[CudnnPlanCandidate, ...]:
    """Reads `candidates_to_text`; malformed latencies become None."""
    found = (each.split() for each in text.split(","))
    return tuple(CudnnPlanCandidate(words[0], _latency_us(words[1:])) for words in found if words)


def _latency_us(words: Sequence[str]) -> float | None:
    try:
        return float(words[0].removesuffix("us"))
    except (IndexError, ValueError):
        return None


class Choices(Protocol):
    """Persistent choices by key."""

    @property
    def times(self) -> bool:
        """Whether unknown choices may be found by timing; else the first guess is taken."""
        ...

    def choice(self, key: str) -> str | None:
        """The stored choice; None if there is none."""
        ...

    def choose(self, key: str, value: str) -> str:
        """Stores a choice; one that another process stored first is kept and returned."""
        ...

    def fatal(self, key: str) -> frozenset[str]:
        """Names of candidates that crashed the GPU or the process."""
        ...

    def trying(self, key: str, name: str) -> AbstractContextManager[None]:
        """Context for building, loading or first running a candidate: if that ends the process or GPU, it is `fatal`.

        In nested contexts, only the innermost candidate is.
        """
        ...
