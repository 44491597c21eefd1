"""How long a worker may take before somebody else is asked as well."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass

_WORKS = 101
"""Times of one kind of work that its median is of: the latest, since a search's later stages differ from its first."""

_OF_A_WORKER = 5


@dataclass(frozen=True)
class Patience:
    """When to give up on a worker, on a work, and on a turn.

    Attributes:
        factor: a work is late after so many times the median of what its kind took on its device so far; on a worker
            that has been slower than others after as many times more, unless another rests,
        floor_s: but not before so many seconds,
        unknown_s: and after so many seconds where nothing of its kind was done there yet.
        losses: a work fails that so many workers were lost with.
        turn_s: how long the CPU of a machine waits for its GPUs, or they for it, before they are given nothing more.
    """

    factor: float = 4.0
    floor_s: float = 60.0
    unknown_s: float = 3600.0
    losses: int = 3
    turn_s: float = 60.0


class Durations:
    """What works of each kind took on each device, and how much slower than others each worker is."""

    def __init__(self) -> None:
        self._of_works: dict[tuple[str, str], _Latest] = {}
        self._of_workers: dict[str, _Latest] = {}

    def add(self, kind: str, device: str, seconds: float, worker: str) -> None:
        """One more work is done; O(log of what is remembered), and a short move in memory."""
        self.took_at_least(kind, device, seconds, worker)
        self._of_works.setdefault((kind, device), _Latest(_WORKS)).add(seconds)

    def took_at_least(self, kind: str, device: str, seconds: float, worker: str) -> None:
        """A worker had a work for so long; it need not have ended."""
        if expected_s := self.expected_s(kind, device):
            self._of_workers.setdefault(worker, _Latest(_OF_A_WORKER)).add(seconds / expected_s)

    def expected_s(self, kind: str, device: str) -> float | None:
        """The median, the upper one of two; None where nothing of this kind was done on that device."""
        found = self._of_works.get((kind, device))
        return None if found is None else found.median

    def slowness(self, worker: str) -> float:
        """How many times the expected time this worker takes, 1 at least: one that is slow and steady is not late."""
        found = self._of_workers.get(worker)
        return 1.0 if found is None else max(1.0, found.median)

    def forget(self, worker: str) -> None:
        """A worker has ended."""
        self._of_workers.pop(worker, None)


class _Latest:
    """The latest of many numbers, of which there is one at least when they are asked for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._latest: deque[float] = deque()
        self._ordered: list[float] = []

    def add(self, value: float) -> None:
        if len(self._latest) == self._most:
            del self._ordered[bisect_left(self._ordered, self._latest.popleft())]
        self._latest.append(value)
        insort(self._ordered, value)

    @property
    def median(self) -> float:
        return self._ordered[len(self._ordered) // 2]
