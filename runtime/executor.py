"""A model that is ready to run on a device, or to be timed there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np

from iosched.models.errors import UsageError
from iosched.runtime.inputs import Arrays
from iosched.runtime.traced import TracedRuns


class Runnable(Protocol):
    """Runs a whole model."""

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Runs once and returns the outputs by name."""
        ...

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Runs `repeats` times and returns the microseconds of each run."""
        ...

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        ...


def _nothing() -> None:
    """Closes nothing."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A whole model that is ready to be timed on inputs that it was given.

    Attributes:
        time: runs the model a number of times in a row, and returns the microseconds of each run.
        close: frees the model's sessions, buffers and threads.
        notes: returns sentences that a user should read about how the model runs; complete only after a run.
        in_flight: how many runs go on at the same time while it is timed, each of which takes what `time` returns.
    """

    time: Callable[[int], Sequence[float]]
    close: Callable[[], None] = _nothing
    notes: Callable[[], Sequence[str]] = tuple
    in_flight: int = 1


By = Literal["schedule", "reference", "library"]


@dataclass(frozen=True, eq=False)
class Executor:
    """A model that is ready to run.

    Attributes:
        runnable: runs the model.
        description: a line that says how the model runs.
        remarks: returns the sentences for `notes`.
        frees: is called on closing, after the runnable is closed.
        on_device: runs the model on arrays that lie on a GPU, as `run_on_device`; None on a CPU.
        placed: puts inputs into the device's memory and returns the model ready to be timed on them; by default each
            run is given the inputs.
        in_flight: how many threads may run the model at the same time; more wait for each other.
        traced: times so many runs on these inputs and notes when each task ran; None where nothing can tell that.
        by: what runs the model: our own runtime by a schedule; plain onnxruntime on the whole model, which outputs are
            compared with; or a library in another way, such as OpenVINO, or sessions of parts of the batch.
    """

    runnable: Runnable
    description: str
    remarks: Callable[[], Sequence[str]] = tuple
    frees: Callable[[], None] | None = None
    on_device: Callable[..., dict[str, Any]] | None = None
    placed: Callable[[Arrays], Candidate] | None = None
    in_flight: int = 1
    traced: Callable[[Arrays, int], TracedRuns] | None = None
    by: By = "schedule"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what a user should know about how the model runs; complete only after a run."""
        return tuple(self.remarks())

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Runs once and returns the outputs by name."""
        return self.runnable.run(inputs)

    def run_on_device(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, Any]:
        """Runs once on arrays that lie on the GPU; see `CudaModel.run_on_device`.

        Raises:
            UsageError: the model runs on the CPU, or an input is missing or of another shape or type.
        """
        if self.on_device is None:
            raise UsageError("this model runs on the CPU: arrays that lie on a GPU need device='cuda'")
        return self.on_device(inputs, stream=stream)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Runs `repeats` times and returns the microseconds of each run."""
        return self.runnable.time(inputs, repeats)

    def ready(self, inputs: Arrays) -> Candidate:
        """The model ready to be timed on these inputs."""
        if self.placed is not None:
            return self.placed(inputs)
        return Candidate(partial(self.time, inputs), self.close, self.remarks, self.in_flight)

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        self.runnable.close()
        if self.frees is not None:
            self.frees()
