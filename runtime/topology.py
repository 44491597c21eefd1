"""Reads from /sys which processors share a cache or a socket, and which are slow.

Linux kernel documentation: admin-guide/cputopology, ABI/testing/sysfs-devices-system-cpu (`cpu_capacity`). For
Intel processors with two kinds of cores, older kernels list the slow ones under `/sys/devices/cpu_atom`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from iosched.runtime.cores import allowed_cpus, cpu_count, file_text, numbers_in, siblings

_FAST = 0.8
"""Minimum speed of a fast processor, relative to the fastest. Cores of one kind differ by a few percent."""


@dataclass(frozen=True)
class Topology:
    """Sets of processors; empty where Linux does not describe the machine.

    Attributes:
        caches: those that share their last cache.
        sockets: those of one package. Packages on the same memory, such as a virtual machine's, are one socket.
        slow: those that are clearly slower than others.
    """

    caches: tuple[frozenset[int], ...] = ()
    sockets: tuple[frozenset[int], ...] = ()
    slow: frozenset[int] = frozenset()

    def near(self, cpus: Collection[int]) -> tuple[frozenset[int], ...]:
        """The fast ones of `cpus` by cache, then by socket; empty if all are near each other and equally fast."""
        fast = frozenset(cpus) - self.slow or frozenset(cpus)
        found = tuple(own for each in (*self.caches, *self.sockets) if (own := each & fast))
        return () if all(own == frozenset(cpus) for own in found) else found

    def together(self, cpus: Collection[int]) -> frozenset[int]:
        """The fast ones of `cpus` on the socket that has most of them; the first such socket."""
        fast = frozenset(cpus) - self.slow or frozenset(cpus)
        return max((each & fast for each in self.sockets), key=len, default=frozenset()) or fast

    def cache_of(self, cpu: int) -> int:
        """The position of a processor's cache in `caches`, or the number of caches if unknown."""
        return next((place for place, own in enumerate(self.caches) if cpu in own), len(self.caches))


@cache
def read_topology() -> Topology:
    """This machine; read once."""
    return topology_of(Path("/"))


def topology_of(machine: Path) -> Topology:
    """The machine at this root folder."""
    folder = machine / "sys/devices/system/cpu"
    cpus = sorted(numbers_in(file_text(folder / "online")))
    caches = dict.fromkeys(_last_cache(folder / f"cpu{cpu}/cache") for cpu in cpus)
    packages = dict.fromkeys(numbers_in(file_text(folder / f"cpu{cpu}/topology/package_cpus_list")) for cpu in cpus)
    nodes = [numbers_in(file_text(path)) for path in (folder.parent / "node").glob("node*/cpulist")]
    slow = _slow({cpu: file_text(folder / f"cpu{cpu}/cpu_capacity").strip() for cpu in cpus})
    slow = slow or numbers_in(file_text(machine / "sys/devices/cpu_atom/cpus"))
    return Topology(tuple(filter(None, caches)), _sockets(packages, nodes), slow)


def default_threads() -> int:
    """Number of threads that a model runs on by default: one for each fast processor of one socket, within the quota.

    Threads share the work equally and wait for each other: longer on slower processors or over a slower link.
    """
    return min(cpu_count(), len(read_topology().together(allowed_cpus())))


def lanes_in_a_cache() -> int:
    """The largest number of physical cores that share a cache among the fast allowed processors; 0 if unknown."""
    topology = read_topology()
    fast = frozenset(allowed_cpus()) - topology.slow
    return max((len({min(siblings(cpu)) for cpu in own & fast}) for own in topology.caches), default=0)


def _sockets(packages: Iterable[frozenset[int]], nodes: Sequence[frozenset[int]]) -> tuple[frozenset[int], ...]:
    """Packages, joined if they have memory in common; none if that is unknown."""
    found = list(packages) if nodes else []
    for node in nodes:
        disjoint = [each for each in found if each.isdisjoint(node)]
        found = [*disjoint, frozenset[int]().union(*(each for each in found if each not in disjoint))]
    return tuple(sorted(filter(None, found), key=min))


def _last_cache(folder: Path) -> frozenset[int]:
    return max(_caches(folder), default=(0, frozenset[int]()), key=lambda found: found[0])[1]


def _caches(folder: Path) -> Iterator[tuple[int, frozenset[int]]]:
    for index in folder.glob("index*"):
        level = file_text(index / "level").strip()
        if level.isdecimal():
            yield int(level), numbers_in(file_text(index / "shared_cpu_list"))


def _slow(capacities: dict[int, str]) -> frozenset[int]:
    known = {cpu: int(text) for cpu, text in capacities.items() if text.isdecimal()}
    return frozenset(cpu for cpu, each in known.items() if each < _FAST * max(known.values()))
