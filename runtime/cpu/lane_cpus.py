"""Which processor each lane runs on."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence

from iosched.runtime.cores import allowed_cpus, is_time_shared, siblings
from iosched.runtime.cpu.claims import PROCESS, Claim, Claims

SHARE_VARIABLE = "IOSCHED_SHARE_CORES"
"""If this environment variable is set to anything, processes take the same processors, as if each were alone."""


class LaneCpus:
    """The processors of the lanes of one backend, which are taken when they are first needed, and kept until `close`.

    Lanes have no processor of their own where a quota limits the process: the machine then serves others whom it
    cannot see, each of whom would choose the same processors as well as it does, and only the system knows which are
    idle. Neither has a single lane, which the system places better than any fixed choice.

    Attributes:
        lanes: how many lanes there are at most.
        is_pinned: whether lanes have processors of their own.
    """

    def __init__(self, lanes: int, claims: Claims | None = None) -> None:
        """Takes nothing yet.

        Args:
            claims: what this process has taken; by default `PROCESS`.
        """
        self.lanes = lanes
        self.is_pinned = lanes > 1 and not is_time_shared()
        self._claims = claims or PROCESS
        self._lock = threading.Lock()
        self._taken: Claim | None = None
        self._release: weakref.finalize[..., LaneCpus] | None = None

    @property
    def taken(self) -> Claim | None:
        """What was taken; None if nothing was needed so far, or nothing is to be taken."""
        return self._taken

    def of(self, lanes: int) -> tuple[int, ...]:
        """The processors of a plan of so many lanes; numbers below 0 stand for no processor of their own."""
        if lanes == 1 or not self.is_pinned:
            return unpinned(lanes)
        if SHARE_VARIABLE in os.environ:
            return lane_cpus(lanes)
        with self._lock:
            if self._taken is None:
                self._taken = self._claims.take(self.lanes, by_core(allowed_cpus()), siblings)
                self._release = weakref.finalize(self, self._taken.release)
            return lane_cpus(lanes, self._taken.cpus)

    def close(self) -> None:
        """Gives back what was taken. May be called again."""
        with self._lock:
            if self._release is not None:
                self._release()


def lane_cpus(lanes: int, cpus: Sequence[int] | None = None) -> tuple[int, ...]:
    """The processor of each lane; numbers below 0 stand for no processor of their own.

    Args:
        lanes: how many there are.
        cpus: processors to take, in turn; by default those that the process may use, whoever else uses them, and none
            for a single lane.
    """
    if cpus is None and lanes == 1:
        return unpinned(1)
    chosen = by_core(allowed_cpus()) if cpus is None else cpus
    return tuple(chosen[lane % len(chosen)] for lane in range(lanes))


def unpinned(lanes: int) -> tuple[int, ...]:
    """No processor for any lane: numbers below 0, which differ unless lanes have to share processors."""
    return tuple(-1 - lane if lanes <= len(allowed_cpus()) else -1 for lane in range(lanes))


def by_core(cpus: Sequence[int]) -> tuple[int, ...]:
    """These processors, in the order in which lanes are to use them: one of every physical core first."""
    allowed = frozenset(cpus)
    first = [cpu for cpu in cpus if cpu == min(siblings(cpu) & allowed, default=cpu)]
    return (*first, *(cpu for cpu in cpus if cpu not in first))
