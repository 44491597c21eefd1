"""Which cuDNN plan runs which kernel: who chooses, and how choices are written down.

A cuDNN plan is chosen for a kernel and the layout of its tensors; a hash of both is its key. The choice is the plan
that is fastest when it runs alone. A stage in which another one turned out faster has choices of its own, which are for
that stage only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.plan import View

CudnnPlanNames = Mapping[str, str]
"""Names of cuDNN plans, by the keys that they are chosen for."""

FASTEST_ALONE: CudnnPlanNames = MappingProxyType({})
"""No choice at all: for every key the plan that is fastest alone."""


@dataclass(frozen=True)
class Candidate:
    """A cuDNN plan that may be the best one for its key.

    Attributes:
        name: of the plan.
        latency_us: microseconds that it takes alone; None where it was not timed.
    """

    name: str
    latency_us: float | None = None


class CudnnPlan(Protocol):
    """A cuDNN execution plan that was built for the views of one task."""

    @property
    def key(self) -> str:
        """The key of the kernel and layout that the plan was chosen for."""
        ...

    @property
    def name(self) -> str:
        """cuDNN's name of the plan: its engine, and how that is tuned."""
        ...

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The best plans for the key, the fastest alone first."""
        ...

    @property
    def workspace_nbytes(self) -> int:
        """Bytes of memory that the plan needs beside its tensors while it runs."""
        ...

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """Enqueues the kernel on the stream.

        Args:
            addresses: of (*reads, *writes).
            workspace: address of `workspace_nbytes` bytes.
            stream: where it runs.

        Raises:
            ExecutionError: cuDNN refuses.
        """
        ...


class CudnnPlanChooser(Protocol):
    """Chooses the cuDNN plan that runs a kernel on tensors of given layouts."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences for people about choices that could not be kept to."""
        ...

    def __call__(
        self, kernel: CudnnKernel, reads: Sequence[View], writes: Sequence[View], names: CudnnPlanNames = FASTEST_ALONE
    ) -> CudnnPlan:
        """The plan: the one in `names` under its key, else the fastest alone.

        Raises:
            DeviceError: there is none.
        """
        ...

    def of_stage(self, signature: str) -> CudnnPlanNames | None:
        """The plans that are better than the fastest alone in stages of that signature; None where none were tried."""
        ...

    def keep(self, signature: str, names: CudnnPlanNames) -> CudnnPlanNames:
        """Keeps what is chosen for stages of that signature.

        Returns:
            The choice that is kept: where another process has made one before, it is that one.
        """
        ...


def stage_key(signature: str) -> str:
    """The key of the choices for stages of that signature."""
    return f"stage {signature}"


def names_to_text(names: CudnnPlanNames) -> str:
    """Keys and names in one line, in the order of the keys."""
    return ", ".join(f"{key}: {name}" for key, name in sorted(names.items()))


def names_from_text(text: str) -> CudnnPlanNames:
    """Reads `names_to_text`; what is not of that form is left out."""
    pairs = (each.split(": ") for each in text.split(", "))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == len(("key", "name"))}


def candidates_to_text(candidates: Sequence[Candidate]) -> str:
    """One line: names in order, with latencies where they are known."""
    return ", ".join(
        each.name if each.latency_us is None else f"{each.name} {each.latency_us:.2f}us" for each in candidates
    )


def candidates_from_text(text: str) -> tuple[Candidate, ...]:
    """Reads `candidates_to_text`; latencies of another form are not known."""
    found = (each.split() for each in text.split(","))
    return tuple(Candidate(words[0], _latency_us(words[1:])) for words in found if words)


def _latency_us(words: Sequence[str]) -> float | None:
    try:
        return float(words[0].removesuffix("us"))
    except (IndexError, ValueError):
        return None
