"""Which of cuDNN's plans run which kernels: what is chosen, for what, and how choices are written down.

A plan is chosen for a kernel and the layout of its tensors (its key): the fastest alone. A stage in which another plan
turned out faster has choices of its own, which hold in that stage only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

from iosched.runtime.cuda.kernel import CudnnKernel
from iosched.runtime.plan import View

CudnnPlanNames = Mapping[str, str]
"""Plans' names, by the keys that they are chosen for."""

FASTEST_ALONE: CudnnPlanNames = MappingProxyType({})


@dataclass(frozen=True)
class Candidate:
    """A plan that may be the best for its key.

    Attributes:
        name: the plan's.
        latency_us: what it takes alone; None where it was not timed.
    """

    name: str
    latency_us: float | None = None


class CudnnPlan(Protocol):
    """A cuDNN execution plan that was built for the views of one task."""

    @property
    def key(self) -> str:
        """What it was chosen for."""
        ...

    @property
    def name(self) -> str:
        """Which one it is."""
        ...

    @property
    def candidates(self) -> Sequence[Candidate]:
        """The best plans for the key, the fastest alone first."""
        ...

    @property
    def workspace_nbytes(self) -> int:
        """Memory that it needs while it runs."""
        ...

    def execute(self, addresses: Sequence[int], workspace: int, stream: Any) -> None:
        """Gives the stream the work; `addresses` of (*reads, *writes).

        Raises:
            ExecutionError: cuDNN refuses.
        """
        ...


class CudnnPlanChooser(Protocol):
    """Which plan runs a kernel on tensors as they lie."""

    @property
    def notes(self) -> Sequence[str]:
        """What people should know of the choices, in sentences."""
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
        """What is chosen for stages of that signature beside what is fastest alone; None where nobody looked."""
        ...

    def keep(self, signature: str, names: CudnnPlanNames) -> CudnnPlanNames:
        """Keeps what is chosen for stages of that signature; answers what holds, which others may have chosen."""
        ...


def stage_key(signature: str) -> str:
    """The key of the choices for stages of that signature."""
    return f"stage {signature}"


def names_to_text(names: CudnnPlanNames) -> str:
    """One line, in the order of the keys."""
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
