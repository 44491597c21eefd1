"""Which processors this process may use, how much of their time, and which of them are one core."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath


def allowed_cpus() -> tuple[int, ...]:
    """The numbers of the processors that the calling thread may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_count() -> int:
    """How many threads this process can keep running: one for each processor that it may use, as far as its quota goes.

    A part of a processor counts for nothing, if there is a whole one: a thread too many uses the quota up before its
    period is over, and then all threads are stopped for the rest of it.
    """
    allowed, quota = len(allowed_cpus()), cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def physical_cores() -> int:
    """How many physical cores the processors are on that this process may use."""
    return len({min(siblings(cpu)) for cpu in allowed_cpus()})


def has_whole_machine() -> bool:
    """Whether this process may use every processor of the machine."""
    return len(allowed_cpus()) >= (os.cpu_count() or 1)


def numbers_in(text: str) -> frozenset[int]:
    """The processors in a list as Linux writes it, such as "0-3,8"; none if it is no such list."""
    try:
        parts = [part.split("-") for part in text.strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1))
    except ValueError:
        return frozenset()


def is_time_shared() -> bool:
    """Whether a quota leaves this process less time than the processors have that it may use.

    Then others run on these processors, whom this process may not see: those of other containers.
    """
    quota = cpu_quota()
    return quota is not None and quota < len(allowed_cpus())


@cache
def siblings(cpu: int) -> frozenset[int]:
    """Processors that share a physical core with `cpu`, itself included; it alone where that is not known."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return numbers_in(path.read_text()) | {cpu}
    except (OSError, ValueError):
        return frozenset((cpu,))


_V1, _V2 = "cgroup", "cgroup2"
"""The two versions, as the types of their file systems."""

_DEFAULT_PERIOD = "100000"


@dataclass(frozen=True)
class _Mount:
    """A hierarchy of control groups: `version`, the group that is mounted, and the folder where it is."""

    version: str
    root: PurePosixPath
    folder: PurePosixPath


def cpu_quota(machine: Path = Path("/")) -> float | None:
    """How many processors' time this process may use, such as 1.5; None if nothing limits it.

    What cannot be read or understood limits nothing. A quota may change while the process runs.

    Args:
        machine: the folder that stands for the root of the file system.
    """
    groups = dict(_groups(_lines(machine / "proc/self/cgroup")))
    mounts = list(_mounts(_lines(machine / "proc/self/mountinfo")))
    folders = {(each.version, folder) for each in mounts for folder in _own_folders(each, mounts, groups)}
    found = (_limit(version, machine / folder.relative_to("/")) for version, folder in folders)
    return min((limit for limit in found if limit is not None), default=None)


def _groups(lines: Iterable[str]) -> Iterator[tuple[str, PurePosixPath]]:
    """The group of this process in each version's hierarchy that limits processor time."""
    for line in lines:
        hierarchy, controllers, path = (*line.split(":", 2), "", "")[:3]
        if hierarchy == "0" and not controllers:
            yield _V2, PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            yield _V1, PurePosixPath(path)


def _mounts(lines: Iterable[str]) -> Iterator[_Mount]:
    """The hierarchies that limit processor time and are mounted here."""
    for line in lines:
        fields, _, filesystem = line.partition(" - ")
        where, what = fields.split(" "), (*filesystem.split(" "), "", "", "")[:3]
        limits = what[0] == _V2 or (what[0] == _V1 and "cpu" in what[2].split(","))
        if limits and len(where) > 4 and where[4].startswith("/"):
            yield _Mount(what[0], PurePosixPath(_unescaped(where[3])), PurePosixPath(_unescaped(where[4])))


def _own_folders(
    mount: _Mount, mounts: Iterable[_Mount], groups: Mapping[str, PurePosixPath]
) -> Iterator[PurePosixPath]:
    """The folders of the process's group and of those that it lies in, the outermost first.

    A group that lies in no mount of its version is one that a container does not see by its own name: what is mounted
    is then all that is known of it.
    """
    group = groups.get(mount.version)
    if group is None:
        return
    if _lies_in(group, mount.root):
        parts = group.relative_to(mount.root).parts
        yield from (mount.folder.joinpath(*parts[:depth]) for depth in range(len(parts) + 1))
    elif not any(_lies_in(group, each.root) for each in mounts if each.version == mount.version):
        yield mount.folder


def _lies_in(group: PurePosixPath, root: PurePosixPath) -> bool:
    # "/../other" is how a group outside of the namespace of control groups is called inside.
    return ".." not in group.parts and group.is_relative_to(root)


def _limit(version: str, folder: Path) -> float | None:
    if version == _V2:
        words = " ".join(_lines(folder / "cpu.max")).split()
        quota, period = (*words, _DEFAULT_PERIOD)[:2] if words else ("max", _DEFAULT_PERIOD)
    else:
        quota, period = (" ".join(_lines(folder / f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period"))
    if not (quota.isdecimal() and period.isdecimal()):  # "max", or -1
        return None
    return int(quota) / int(period) if int(quota) > 0 and int(period) > 0 else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="surrogateescape").split("\n")
    except (OSError, ValueError):
        return []


def _unescaped(path: str) -> str:
    """A path of mountinfo, in which blanks and backslashes stand as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
