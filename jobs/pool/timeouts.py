"""Timeouts of a pool, some of them from the durations of earlier tasks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_high

from iosched.jobs.pool.task_queue import QueuedTask

_KIND_WINDOW, _WORKER_WINDOW = 101, 5
"""Window sizes of the medians, per kind of task and per worker. Later stages of a search differ from the first."""


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of a pool, in seconds if not stated otherwise.

    Attributes:
        factor: timeout of a task, as a multiple of the median duration of its kind on its device. It is also multiplied
            by the slowness of the worker unless another worker is idle.
        floor_s: minimum timeout of a task.
        unknown_s: timeout of a task whose kind has not completed on the device.
        losses: number of lost workers after which a task fails.
        turn_s: how long a machine's CPU or GPUs keep it while the other side waits.
        without_s: how long tasks wait for a worker of their device before they fail.
        reconnect_s: delay before the pool opens another transport; doubles with each attempt.
        ending_s: time for the processes of a score command to end after their worker has ended.
    """

    factor: float = 4.0
    floor_s: float = 60.0
    unknown_s: float = 3600.0
    losses: int = 3
    turn_s: float = 60.0
    without_s: float = 180.0
    reconnect_s: float = 1.0
    ending_s: float = 8.0


class Durations:
    """Durations of tasks by kind and device, and the slowness of each worker."""

    def __init__(self) -> None:
        self._by_kind: dict[tuple[str, str], deque[float]] = {}
        self._by_worker: dict[str, deque[float]] = {}

    def add(self, task: QueuedTask, seconds: float, worker: str) -> None:
        """Records the duration of a completed task."""
        self.took_at_least(task, seconds, worker)
        self._by_kind.setdefault((task.kind, task.device), deque(maxlen=_KIND_WINDOW)).append(seconds)

    def took_at_least(self, task: QueuedTask, seconds: float, worker: str) -> None:
        """Records how long a worker has had a task, which need not be complete."""
        if (usual_s := self._usual_s(task)) is not None:
            ratios = self._by_worker.setdefault(worker, deque(maxlen=_WORKER_WINDOW))
            ratios.append(seconds / max(usual_s, 1e-9))

    def slowness(self, worker: str) -> float:
        """Returns the worker's median ratio to the usual duration; at least 1."""
        return max(1.0, median_high(self._by_worker.get(worker, (1.0,))))

    def late_s(self, task: QueuedTask, timeouts: Timeouts, slowness: float) -> float:
        """Returns the seconds after which a task is late on a worker with this `slowness`."""
        usual_s = self._usual_s(task)
        return timeouts.unknown_s if usual_s is None else max(timeouts.floor_s, timeouts.factor * usual_s * slowness)

    def forget(self, worker: str) -> None:
        """Removes a worker that has ended."""
        self._by_worker.pop(worker, None)

    def _usual_s(self, task: QueuedTask) -> float | None:
        durations = self._by_kind.get((task.kind, task.device))
        return median_high(durations) if durations else None
