"""Assigns a processor to each lane, so that processes on one machine use different ones.

A process claims a processor by binding a Unix socket to an abstract name; other processes check whether the name is in
use. The kernel frees it however the process ends. No file needs to be writable, is left over, or can be planted by
another user, and no process numbers are involved, so it works across PID namespaces. Processes of one network namespace
share these names; different containers mostly do not.

Anyone on the machine may bind such a name. The worst effect is that processes share processors although others are
idle.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from iosched.runtime.cores import allowed_cpus, is_time_shared, siblings
from iosched.runtime.topology import read_topology

SHARE_VARIABLE = "IOSCHED_SHARE_CORES"
"""If this environment variable is set, processes ignore each other's claims and use the same processors."""


class LaneCpus:
    """The processors of the lanes of one backend, claimed when first needed, until `close`.

    Lanes are not pinned under a quota: other containers, which this process cannot see, would choose the same
    processors, and only the system knows which are idle. Nor is a single lane pinned: the system places it better.

    Attributes:
        lanes: maximum number of lanes.
        is_pinned: whether each lane is pinned to a processor.
    """

    def __init__(self, lanes: int, claims: Claims | None = None) -> None:
        self.lanes = lanes
        self.is_pinned = lanes > 1 and not is_time_shared()
        self._claims = claims or PROCESS
        self._lock = threading.Lock()
        self._taken: Claim | None = None
        self._release: weakref.finalize[..., LaneCpus] | None = None

    @property
    def taken(self) -> Claim | None:
        """The claim; None if there is none yet."""
        return self._taken

    def of(self, lanes: int) -> tuple[int, ...]:
        """The processors of a plan of `lanes` lanes; negative numbers mean unpinned."""
        if lanes == 1 or not self.is_pinned:
            return unpinned(lanes)
        if SHARE_VARIABLE in os.environ:
            return lane_cpus(lanes)
        with self._lock:
            if self._taken is None:
                near = read_topology().near(allowed_cpus())
                self._taken = self._claims.take(self.lanes, by_core(allowed_cpus()), siblings, near)
                self._release = weakref.finalize(self, self._taken.release)
            return lane_cpus(lanes, self._taken.cpus)

    @contextmanager
    def nearby(self) -> Iterator[None]:
        """Run the calling thread on the lanes' socket: memory is allocated near the thread that first writes it."""
        if len(read_topology().sockets) < 2:
            yield
            return
        with on_cpus(self.of(self.lanes)):
            yield

    def close(self) -> None:
        """Release the claim. May be called again."""
        with self._lock:
            if self._release is not None:
                self._release()


@contextmanager
def on_cpus(cpus: Sequence[int]) -> Iterator[None]:
    """Run the calling thread on these processors; negative numbers mean unpinned."""
    if min(cpus) < 0:
        yield
        return
    before = os.sched_getaffinity(0)
    with suppress(OSError):  # the process may no longer use them
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def lane_cpus(lanes: int, cpus: Sequence[int] | None = None) -> tuple[int, ...]:
    """The processor of each lane; negative numbers mean unpinned.

    Args:
        cpus: processors to use in turn; default: all allowed ones, ignoring other processes, and none for one lane.
    """
    if cpus is None and lanes == 1:
        return unpinned(1)
    chosen = by_core(allowed_cpus()) if cpus is None else cpus
    return tuple(chosen[lane % len(chosen)] for lane in range(lanes))


def unpinned(lanes: int) -> tuple[int, ...]:
    """Negative numbers for all lanes, distinct unless lanes must share processors."""
    return tuple(-1 - lane if lanes <= len(allowed_cpus()) else -1 for lane in range(lanes))


def by_core(cpus: Sequence[int]) -> tuple[int, ...]:
    """These processors, sorted: fast ones first, then one of each physical core before its siblings, then by cache."""
    allowed, topology = frozenset(cpus), read_topology()
    first = {cpu for cpu in cpus if cpu == min(siblings(cpu) & allowed, default=cpu)}
    return tuple(sorted(cpus, key=lambda cpu: (cpu in topology.slow, cpu not in first, topology.cache_of(cpu))))


MAX_CLAIMS = 4
"""Number of processes that can claim the same processor; each has a name."""

_INODE = 6  # column of /proc/net/unix

Siblings = Callable[[int], frozenset[int]]
"""The processors on the same physical core as a given one, including it."""


@dataclass(frozen=True, eq=False)
class Claim:
    """Processors that a process has claimed.

    Attributes:
        cpus: their numbers, in the order in which lanes use them.
        n_shared: number of them on a physical core that another process has claimed too.
        n_free: number of candidates on no such core.
        release: releases those that this process has no other claim on; call it once.
        pids: the other processes, as far as visible.
    """

    cpus: tuple[int, ...]
    n_shared: int
    n_free: int
    release: Callable[[], None]
    pids: tuple[int, ...] = ()


@dataclass(eq=False)
class _Taken:
    """A processor of ours: our slot there, its socket if bound, and the number of our claims."""

    slot: int
    bound: socket.socket | None
    uses: int = 0


class Claims:
    """The claims of this process. All of them use the same processors as far as possible.

    Only processes that use the same name prefix see each other's claims.
    """

    def __init__(self, name: str = "iosched.core") -> None:
        self._name = name
        self._taken: dict[int, _Taken] = {}
        self._lock = threading.RLock()  # the garbage collector may release a claim while it is held

    def take(self, lanes: int, cpus: Sequence[int], siblings: Siblings, near: Sequence[Collection[int]] = ()) -> Claim:
        """Claim a processor for each lane, or all there are; O(lanes * processors * log processors).

        Prefers processors of this process, then those with the fewest claims, then those with the fewest claims on the
        physical core, then the order of `cpus`.

        Args:
            near: sets of processors, best first. All lanes go to the first one without a disadvantage, if any.
        """
        with self._lock:
            load = self.others(cpus)
            wanted = self._ranked(lanes, cpus, load, siblings, near)
            chosen: list[int] = []
            while len(chosen) < min(lanes, len(cpus)):
                cpu = next(cpu for cpu in wanted if cpu not in chosen)
                slot = self._use(cpu)
                if slot > load[cpu]:  # claimed since the check, or by an invisible process
                    self._release_one(cpu)
                    load[cpu] = slot
                    wanted = self._ranked(lanes, cpus, load, siblings, near)
                else:
                    chosen.append(cpu)
            crowded = {cpu for cpu in cpus if any(load.get(each, 0) for each in siblings(cpu))}
            release = partial(self._release, os.getpid(), tuple(chosen))
            shared = crowded.intersection(chosen)
            pids = self._pids({each for cpu in shared for each in siblings(cpu)}) if shared else ()
            return Claim(tuple(chosen), len(shared), len(set(cpus) - crowded), release, pids)

    def others(self, cpus: Iterable[int]) -> dict[int, int]:
        """Number of other processes that have claimed each of these processors, up to `MAX_CLAIMS`."""
        if not hasattr(socket, "AF_UNIX"):  # Windows
            return dict.fromkeys(cpus, 0)
        try:
            with self._lock, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
                return {cpu: sum(self._is_others(probe, cpu, slot) for slot in range(MAX_CLAIMS)) for cpu in cpus}
        except OSError:  # sockets are unavailable
            return dict.fromkeys(cpus, 0)

    def _pids(self, cpus: Iterable[int]) -> tuple[int, ...]:
        """The other processes that have claimed one of these processors; O(open files of all processes)."""
        names = {self._address(cpu, slot).replace("\0", "@") for cpu in cpus for slot in range(MAX_CLAIMS)}
        with suppress(OSError):  # no Linux, or no /proc
            rows = map(str.split, Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines())
            sockets = {f"socket:[{row[_INODE]}]" for row in rows if len(row) > _INODE and row[-1] in names}
            pids = {int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()} - {os.getpid()}
            return tuple(sorted(pid for pid in pids if not sockets.isdisjoint(_open_files(pid))))
        return ()

    def forget(self) -> None:
        """In a forked child: drop the claims, which are the parent's."""
        self._lock = threading.RLock()  # a thread of the parent may hold it
        for taken in self._taken.values():
            if taken.bound is not None:
                taken.bound.close()
        self._taken = {}

    def _ranked(
        self,
        lanes: int,
        cpus: Sequence[int],
        load: Mapping[int, int],
        siblings: Siblings,
        near: Sequence[Collection[int]],
    ) -> Sequence[int]:
        """The processors in the order of preference; see `take`."""
        crowd = {cpu: sum(load.get(each, 0) for each in siblings(cpu)) for cpu in cpus}
        costs = {cpu: (cpu not in self._taken, load[cpu], crowd[cpu]) for cpu in cpus}
        ranked = sorted(cpus, key=costs.__getitem__)  # otherwise in their order

        def cost(some: Sequence[int]) -> tuple[int, ...]:
            sums = map(sum, zip(*(costs[cpu] for cpu in some[:lanes]), strict=True))
            return (*sums, -len({min(siblings(cpu)) for cpu in some[:lanes]}))

        inside = ([cpu for cpu in ranked if cpu in own] for own in near)
        return next((each for each in inside if len(each) >= lanes and cost(each) <= cost(ranked)), ranked)

    def _use(self, cpu: int) -> int:
        """Claim a processor, perhaps again; returns our slot there, 0 if it was already ours."""
        try:
            self._taken[cpu].uses += 1  # in one step, see `_lock`
            return 0
        except KeyError:
            slot, bound = self._bound(cpu)
        self._taken[cpu] = _Taken(slot, bound, uses=1)
        return slot

    def _bound(self, cpu: int) -> tuple[int, socket.socket | None]:
        """The first free slot of a processor: `MAX_CLAIMS` if none is, and 0 if the system refuses."""
        for slot in range(MAX_CLAIMS):
            with suppress(OSError):
                bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                try:
                    bound.bind(self._address(cpu, slot))
                except OSError as error:
                    bound.close()
                    if error.errno == errno.EADDRINUSE:
                        continue
                    raise
                return slot, bound
            return 0, None
        return MAX_CLAIMS, None

    def _release(self, pid: int, cpus: Iterable[int]) -> None:
        if os.getpid() != pid:  # the parent's
            return
        with self._lock:
            for cpu in cpus:
                self._release_one(cpu)

    def _release_one(self, cpu: int) -> None:
        taken = self._taken[cpu]
        taken.uses -= 1
        if taken.uses == 0:
            self._taken.pop(cpu, None)
            if taken.bound is not None:
                taken.bound.close()

    def _is_others(self, probe: socket.socket, cpu: int, slot: int) -> bool:
        own = self._taken.get(cpu)
        if own is not None and own.slot == slot:
            return False
        try:
            probe.connect(self._address(cpu, slot))
        except OSError:
            return False
        return True

    def _address(self, cpu: int, slot: int) -> str:
        return f"\0{self._name}.{cpu}.{slot}"


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield str(each.readlink())


PROCESS = Claims()
"""Claims belong to the whole process, like affinity."""

if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(after_in_child=PROCESS.forget)
