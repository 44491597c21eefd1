"""Which processors each process has taken for its threads, so that processes on one machine take different ones.

A process that takes a processor binds a Unix socket to an abstract name that stands for it, and others see whether that
name is in use. The kernel frees the name however the process ends. There is no file: nothing has to be writable, stays
behind, or can be put there by another user; and no process has a number in it, so it does not matter who sees whose.
Processes of one network namespace share these names, those of different containers mostly do not.

Anybody on the machine may bind such a name. The worst that comes of it is what there would be without: processes that
share processors although others are idle.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

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
