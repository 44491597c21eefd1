"""Timeouts of tasks, from the durations of earlier tasks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_high

from iosched.jobs.pool.task_queue import QueuedTask

_KIND_WINDOW, _WORKER_WINDOW = 101, 5
"""Window sizes of the medians, per kind of task and per worker. Later stages of a search differ from the first."""


@dataclass(frozen=True)
class Timeouts:
    """When a task is late or fails, and when a side yields a machine.

    Attributes:
        factor: timeout of a task, as a multiple of the median duration of its kind on its device. It is also multiplied
            by the slowness of the worker unless another worker is idle.
        floor_s: minimum timeout of a task, in seconds.
        unknown_s: timeout of a task whose kind has not completed on the device, in seconds.
        losses: number of lost workers after which a task fails.
        turn_s: how long a machine's CPU or GPUs keep it while the other side waits, in seconds.
    """

    factor: float = 4.0
    floor_s: float = 60.0
    unknown_s: float = 3600.0
    losses: int = 3
    turn_s: float = 60.0


class Durations:
    """Durations of tasks by kind and device, and the slowness of each worker."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[str, str], _Window] = {}
        self._by_worker: dict[str, _Window] = {}

    def add(self, task: QueuedTask, seconds: float, worker: str) -> None:
        """Records the duration of a completed task."""
        self.took_at_least(task, seconds, worker)
        self._by_kind.setdefault((task.kind, task.device), _Window(_KIND_WINDOW)).add(seconds)

    def took_at_least(self, task: QueuedTask, seconds: float, worker: str) -> None:
        """Records how long a worker has had a task, which need not be complete."""
        if usual := self._by_kind.get((task.kind, task.device)):
            self._by_worker.setdefault(worker, _Window(_WORKER_WINDOW)).add(seconds / max(usual.median, 1e-9))

    def slowness(self, worker: str) -> float:
        """Returns the worker's median ratio to the usual duration; at least 1."""
        found = self._by_worker.get(worker)
        return 1.0 if found is None else max(1.0, found.median)

    def late_s(self, task: QueuedTask, timeouts: Timeouts, slowness: float) -> float:
        """Returns the seconds after which a task is late on a worker with this `slowness`."""
        usual = self._by_kind.get((task.kind, task.device))
        if usual is None:
            return timeouts.unknown_s
        return max(timeouts.floor_s, timeouts.factor * usual.median * slowness)

    def forget(self, worker: str) -> None:
        """Removes a worker that has ended."""
        self._by_worker.pop(worker, None)


class _Window:
    """A sliding window of numbers and its median."""

    def __init__(self, most: int) -> None:
        self._numbers: deque[float] = deque(maxlen=most)
        self.median = 0.0

    def add(self, number: float) -> None:
        self._numbers.append(number)
        self.median = median_high(self._numbers)
