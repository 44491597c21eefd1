"""Runs of a plan of which it was noted when each task began and ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np


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
