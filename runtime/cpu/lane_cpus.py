"""Which processor each lane runs on."""

from __future__ import annotations

import errno
import os
import socket
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from iosched.runtime.cores import allowed_cpus, is_time_shared, siblings

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


PLACES = 4
"""How many processes can be told apart that have taken the same processor; there is a name for each."""

_INODE = 6  # column of /proc/net/unix

Siblings = Callable[[int], frozenset[int]]
"""The processors that share a physical core with one, itself included."""


@dataclass(frozen=True, eq=False)
class Claim:
    """Processors that a process has taken.

    Attributes:
        cpus: their numbers, each once, in the order in which lanes are to use them.
        n_shared: how many of them are on a physical core of which another process has taken a processor too.
        n_free: how many of those that could be chosen are on none of these.
        release: gives them back, as far as no other claim of this process is on them; to be called once.
        pids: the numbers of these other processes, as far as the system shows them.
    """

    cpus: tuple[int, ...]
    n_shared: int
    n_free: int
    release: Callable[[], None]
    pids: tuple[int, ...] = ()


@dataclass(eq=False)
class _Taken:
    """A processor of ours: the place that we have there, none if there was none left, and how many claims are on it."""

    place: int
    bound: socket.socket | None
    uses: int = 0


class Claims:
    """The processors that this process has taken. All claims of a process are on the same ones as far as they go."""

    def __init__(self, name: str = "iosched.core") -> None:
        """Begins without any.

        Args:
            name: what the names of processors begin with; only processes that use the same one see each other.
        """
        self._name = name
        self._taken: dict[int, _Taken] = {}
        self._lock = threading.RLock()  # the garbage collector may give a claim back at any time, also while it is held

    def take(self, lanes: int, cpus: Sequence[int], siblings: Siblings) -> Claim:
        """Takes a processor for each lane, or all there are; O(lanes * processors).

        Those come first that this process already has, then those that the fewest others have, then those that share
        their physical core with the fewest others, then as `cpus` has them.

        Args:
            cpus: the processors to choose from, the best ones first.
        """
        with self._lock:
            load = self.others(cpus)
            chosen: list[int] = []
            while len(chosen) < min(lanes, len(cpus)):
                cpu = min(set(cpus) - set(chosen), key=self._preference(cpus, load, siblings))
                place = self._use(cpu)
                if place > load[cpu]:  # another process has come since we looked, or cannot be seen
                    self._give_back(cpu)
                    load[cpu] = place
                else:
                    chosen.append(cpu)
            crowded = {cpu for cpu in cpus if any(load.get(each, 0) for each in siblings(cpu))}
            release = partial(self._release, os.getpid(), tuple(chosen))
            shared = crowded.intersection(chosen)
            pids = self._pids({each for cpu in shared for each in siblings(cpu)}) if shared else ()
            return Claim(tuple(chosen), len(shared), len(set(cpus) - crowded), release, pids)

    def others(self, cpus: Iterable[int]) -> dict[int, int]:
        """How many other processes have taken each of these processors, up to `PLACES`."""
        if not hasattr(socket, "AF_UNIX"):  # Windows
            return dict.fromkeys(cpus, 0)
        try:
            with self._lock, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                return {cpu: sum(self._is_others(probe, cpu, place) for place in range(PLACES)) for cpu in cpus}
        except OSError:  # no socket can be made here
            return dict.fromkeys(cpus, 0)

    def _pids(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """The other processes that have taken one of these processors; O(open files of all processes)."""
        names = {self._address(cpu, place).replace("\0", "@") for cpu in cpus for place in range(PLACES)}
        with suppress(OSError):  # no Linux, or no /proc
            rows = map(str.split, Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines())
            sockets = {f"socket:[{row[_INODE]}]" for row in rows if len(row) > _INODE and row[-1] in names}
            pids = {int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()} - {os.getpid()}
            return tuple(sorted(pid for pid in pids if not sockets.isdisjoint(_open_files(pid))))
        return ()

    def forget(self) -> None:
        """In a forked child: what the parent has taken is the parent's alone."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        for taken in self._taken.values():
            if taken.bound is not None:
                taken.bound.close()
        self._taken = {}

    def _preference(
        self, cpus: Sequence[int], load: Mapping[int, int], siblings: Siblings
    ) -> Callable[[int], tuple[bool, int, int, int]]:
        order = {cpu: index for index, cpu in enumerate(cpus)}
        crowd = {cpu: sum(load.get(each, 0) for each in siblings(cpu)) for cpu in cpus}
        return lambda cpu: (cpu not in self._taken, load[cpu], crowd[cpu], order[cpu])

    def _use(self, cpu: int) -> int:
        """Takes a processor, once more if it is ours; returns our place there, but 0 if it was ours before."""
        try:
            self._taken[cpu].uses += 1  # in one step, see `_lock`
            return 0
        except KeyError:
            place, bound = self._bound(cpu)
        self._taken[cpu] = _Taken(place, bound, uses=1)
        return place

    def _bound(self, cpu: int) -> tuple[int, socket.socket | None]:
        """The first free place on a processor; `PLACES` if none is, and 0 if this system lets nobody take any."""
        for place in range(PLACES):
            with suppress(OSError):
                bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                try:
                    bound.bind(self._address(cpu, place))
                except OSError as error:
                    bound.close()
                    if error.errno == errno.EADDRINUSE:
                        continue
                    raise
                return place, bound
            return 0, None
        return PLACES, None

    def _release(self, pid: int, cpus: Iterable[int]) -> None:
        if os.getpid() != pid:  # the parent's
            return
        with self._lock:
            for cpu in cpus:
                self._give_back(cpu)

    def _give_back(self, cpu: int) -> None:
        taken = self._taken[cpu]
        taken.uses -= 1
        if taken.uses == 0:
            self._taken.pop(cpu, None)
            if taken.bound is not None:
                taken.bound.close()

    def _is_others(self, probe: socket.socket, cpu: int, place: int) -> bool:
        own = self._taken.get(cpu)
        if own is not None and own.place == place:
            return False
        try:
            probe.connect(self._address(cpu, place))
        except OSError:
            return False
        return True

    def _address(self, cpu: int, place: int) -> str:
        return f"\0{self._name}.{cpu}.{place}"


def _open_files(pid: int) -> Iterator[str]:
    """What the file descriptors of a process are; nothing if they are not ours to see."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                yield str(each.readlink())


PROCESS = Claims()
"""What this process has taken: as its affinity, this belongs to the process, whoever in it asks."""

if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=PROCESS.forget)
