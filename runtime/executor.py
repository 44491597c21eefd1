"""Models that are ready to run on a device, to be timed, and traces of their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from statistics import fmean
from typing import Any, Literal, Protocol, Self

import numpy as np

from iosched.models.errors import UsageError
from iosched.runtime.inputs import Arrays


class Runnable(Protocol):
    """A whole model, one run at a time."""

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Run once and return the outputs by name."""
        ...

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run."""
        ...

    def close(self) -> None:
        """Free sessions, buffers and threads."""
        ...


def _nothing() -> None:
    """Do nothing."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A whole model that is ready to be timed on fixed inputs.

    Attributes:
        time: runs the model n times in a row and returns the microseconds of each run.
        notes: returns sentences for the user about how the model runs; complete only after a run.
        in_flight: number of concurrent runs while it is timed, each with a latency of `time`.
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
        remarks: returns the sentences of `notes`.
        frees: called on closing, after the runnable is closed.
        on_device: runs the model on GPU arrays, see `run_on_device`; None on a CPU.
        placed: copies inputs to the device and returns the model ready to be timed; default: pass them to each run.
        in_flight: number of threads that may run the model at the same time; others wait.
        traced: times n runs on these inputs and records when each task ran; None if unsupported.
        by: the runtime: iosched's, plain onnxruntime on the whole model, or a library in another way, such as OpenVINO
            or sessions for parts of the batch.
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
        """Sentences for the user about how the model runs; complete only after a run."""
        return tuple(self.remarks())

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        """Run once and return the outputs by name."""
        return self.runnable.run(inputs)

    def run_on_device(self, inputs: Mapping[str, Any], *, stream: int | None = None) -> dict[str, Any]:
        """Run once on GPU arrays; see `CudaModel.run_on_device`. Raises `UsageError` on a CPU."""
        if self.on_device is None:
            raise UsageError("this model runs on the CPU: GPU arrays need device='cuda'")
        return self.on_device(inputs, stream=stream)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run `repeats` times and return the microseconds of each run."""
        return self.runnable.time(inputs, repeats)

    def ready(self, inputs: Arrays) -> Candidate:
        """The model ready to be timed on these inputs."""
        if self.placed is not None:
            return self.placed(inputs)
        return Candidate(partial(self.time, inputs), self.close, self.remarks, self.in_flight)

    def close(self) -> None:
        """Free sessions, buffers and threads."""
        self.runnable.close()
        if self.frees is not None:
            self.frees()


@dataclass(frozen=True)
class TaskOrigin:
    """The origin of a task of a plan.

    Attributes:
        name: the kernels that it calls, joined by "+".
        stage: index of its stage in the schedule, counted over all blocks.
        operators: operators of the model that it computes, completely or in part.
    """

    name: str
    lane: int
    stage: int
    operators: tuple[str, ...]


@dataclass(frozen=True)
class TracedTask:
    """A task, and when it ran, in microseconds since the run began."""

    origin: TaskOrigin
    begin_us: float
    end_us: float


@dataclass(frozen=True)
class TracedRuns:
    """Several runs, with the trace of one of them.

    Attributes:
        times_us: microseconds of each run.
        number: index of the traced run, which has the median latency.
        tasks: lane after lane, each in its order.
    """

    times_us: tuple[float, ...]
    number: int
    tasks: tuple[TracedTask, ...]

    @classmethod
    def of(cls, origins: Sequence[TaskOrigin], times_us: Sequence[float], spans_us: np.ndarray) -> Self:
        """Select the run of median latency; of an even number of runs, the faster of the middle two.

        Args:
            spans_us: `(runs, tasks, 2)`: begin and end of each task in microseconds since the run began.
        """
        number = sorted(range(len(times_us)), key=lambda run: times_us[run])[(len(times_us) - 1) // 2]
        spans = spans_us[number].tolist()
        tasks = (TracedTask(origin, *span) for origin, span in zip(origins, spans, strict=True))
        return cls(tuple(times_us), number, tuple(tasks))

    @property
    def latency_us(self) -> float:
        """Microseconds of the traced run."""
        return self.times_us[self.number]


class Requests:
    """A model that several threads run at the same time, one on each of the `runnables`; further callers wait.

    Attributes:
        in_flight: number of concurrent runs.
    """

    def __init__(self, runnables: Sequence[Runnable], frees: Callable[[], None] = lambda: None) -> None:
        self.in_flight = len(runnables)
        self._runnables, self._frees = tuple(runnables), frees
        self._free: SimpleQueue[Runnable] = SimpleQueue()
        for each in self._runnables:
            self._free.put(each)

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Run once and return the outputs by name."""
        with self.free() as runnable:
            return runnable.run(inputs)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Run all `runnables` `repeats` times in a row; microseconds of each run, averaged over the concurrent ones."""
        if self.in_flight == 1:
            return self._runnables[0].time(inputs, repeats)
        with ThreadPoolExecutor(self.in_flight) as callers:
            times_us = list(callers.map(lambda runnable: runnable.time(inputs, repeats), self._runnables))
        return tuple(map(fmean, zip(*times_us, strict=True)))

    def close(self) -> None:
        """Free sessions, buffers and threads."""
        for each in self._runnables:
            each.close()
        self._frees()

    @contextmanager
    def free(self) -> Iterator[Runnable]:
        """Lend one of the `runnables` exclusively; waits until one is free."""
        runnable = self._free.get()
        try:
            yield runnable
        finally:
            self._free.put(runnable)
