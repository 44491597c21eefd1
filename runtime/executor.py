"""A model that is ready to run on a device, or to be timed there."""

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
    """Runs a whole model."""

    def run(self, inputs: Arrays) -> dict[str, Any]:
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
            raise UsageError("this model runs on the CPU: GPU arrays need device='cuda'")
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


@dataclass(frozen=True)
class TaskOrigin:
    """What a task of a plan is of.

    Attributes:
        name: the kernels that it calls, joined by "+".
        lane: which runs it.
        stage: index of the stage of the schedule that it runs in, counted over all blocks.
        operators: those of the model whose work it does, or a part of it.
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
    """Several runs, and when the tasks of one of them ran.

    Attributes:
        times_us: the microseconds of each run.
        number: index of the run that `tasks` are of: of the runs, the one in the middle by latency.
        tasks: lane after lane, each lane in its order.
    """

    times_us: tuple[float, ...]
    number: int
    tasks: tuple[TracedTask, ...]

    @classmethod
    def of(cls, origins: Sequence[TaskOrigin], times_us: Sequence[float], spans_us: np.ndarray) -> Self:
        """Takes the run in the middle, of an even number of runs the faster of the two.

        Args:
            origins: what each task is of.
            times_us: the microseconds of each run, of one at least.
            spans_us: for each run and task its begin and its end in microseconds since the run began.
        """
        number = sorted(range(len(times_us)), key=lambda run: times_us[run])[(len(times_us) - 1) // 2]
        spans = spans_us[number].tolist()
        tasks = (TracedTask(origin, *span) for origin, span in zip(origins, spans, strict=True))
        return cls(tuple(times_us), number, tuple(tasks))

    @property
    def latency_us(self) -> float:
        """The microseconds of the run that `tasks` are of."""
        return self.times_us[self.number]


class Requests:
    """A model that as many threads run at the same time as there are `runnables`; further callers wait.

    Attributes:
        in_flight: how many runs go on at the same time.
    """

    def __init__(self, runnables: Sequence[Runnable], frees: Callable[[], None] = lambda: None) -> None:
        """Takes over what is ready to run.

        Args:
            runnables: the same model, each on cores of its own.
            frees: is called on closing, after these are closed.
        """
        self.in_flight = len(runnables)
        self._runnables, self._frees = tuple(runnables), frees
        self._free: SimpleQueue[Runnable] = SimpleQueue()
        for each in self._runnables:
            self._free.put(each)

    def run(self, inputs: Arrays) -> dict[str, Any]:
        """Runs once and returns the outputs by name."""
        with self._one() as runnable:
            return runnable.run(inputs)

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        """Has all of them run `repeats` times in a row; microseconds of each run, the mean of those at one time."""
        if self.in_flight == 1:
            return self._runnables[0].time(inputs, repeats)
        with ThreadPoolExecutor(self.in_flight) as callers:
            times_us = list(callers.map(lambda runnable: runnable.time(inputs, repeats), self._runnables))
        return tuple(map(fmean, zip(*times_us, strict=True)))

    def close(self) -> None:
        """Frees sessions, buffers and threads."""
        for each in self._runnables:
            each.close()
        self._frees()

    @contextmanager
    def _one(self) -> Iterator[Runnable]:
        runnable = self._free.get()
        try:
            yield runnable
        finally:
            self._free.put(runnable)
