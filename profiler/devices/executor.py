"""A model that is ready to run on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from iosched.models.errors import UsageError
from iosched.profiler.measuring.in_turn import Candidate
from iosched.runtime.cuda.gpu.exchange import DeviceArray
from iosched.runtime.inputs import Arrays


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
