"""How long a worker may take before somebody else is asked as well."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_high

from iosched.jobs.pool.task_queue import QueuedTask

_REMEMBERED, _OF_A_WORKER = 101, 5
"""Times that a median is of: the latest, since a search's later stages differ from its first."""


@dataclass(frozen=True)
class Timeouts:
    """When to give up on a worker, on a task, and on a turn.

    Attributes:
        factor: a task is late after so many times the median of what its kind took on its device so far; on a worker
            that has been slower than others after as many times more, unless another rests,
        floor_s: but not before so many seconds,
        unknown_s: and after so many seconds where nothing of its kind was done there yet.
        losses: a task fails that so many workers were lost with.
        turn_s: how long the CPU of a machine waits for its GPUs, or they for it, before they are given nothing more.
    """

    factor: float = 4.0
    floor_s: float = 60.0
    unknown_s: float = 3600.0
    losses: int = 3
    turn_s: float = 60.0


class Durations:
    """What tasks of each kind took on each device, and how much slower than others each worker is."""

    def __init__(self) -> None:
        self._of_works: dict[tuple[str, str], _Latest] = {}
        self._of_workers: dict[str, _Latest] = {}

    def add(self, task: QueuedTask, seconds: float, worker: str) -> None:
        """One more task is done."""
        self.took_at_least(task, seconds, worker)
        self._of_works.setdefault((task.kind, task.device), _Latest(_REMEMBERED)).add(seconds)

    def took_at_least(self, task: QueuedTask, seconds: float, worker: str) -> None:
        """A worker had a task for so long; it need not have ended."""
        if usual := self._of_works.get((task.kind, task.device)):
            self._of_workers.setdefault(worker, _Latest(_OF_A_WORKER)).add(seconds / max(usual.median, 1e-9))

    def slowness(self, worker: str) -> float:
        """How many times the usual time this worker takes, 1 at least."""
        found = self._of_workers.get(worker)
        return 1.0 if found is None else max(1.0, found.median)

    def late_s(self, task: QueuedTask, timeouts: Timeouts, slowness: float) -> float:
        """After how many seconds a task is late on a worker that takes `slowness` times the usual time."""
        usual = self._of_works.get((task.kind, task.device))
        if usual is None:
            return timeouts.unknown_s
        return max(timeouts.floor_s, timeouts.factor * usual.median * slowness)

    def forget(self, worker: str) -> None:
        """A worker has ended."""
        self._of_workers.pop(worker, None)


class _Latest:
    """The latest of many numbers, and their median."""

    def __init__(self, most: int) -> None:
        self._numbers: deque[float] = deque(maxlen=most)
        self.median = 0.0

    def add(self, number: float) -> None:
        self._numbers.append(number)
        self.median = median_high(self._numbers)
