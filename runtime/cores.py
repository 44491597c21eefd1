"""The processors that this process may use: affinity, physical cores, and the CPU quota of its control group.

Linux has two versions of control groups, which may be in use together. A group's ancestors limit it too.
Linux kernel documentation: admin-guide/cgroup-v2 (`cpu.max`), scheduler/sched-bwc (`cpu.cfs_quota_us`), and proc(5).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath


def allowed_cpus() -> tuple[int, ...]:
    """The processors that the calling thread may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def cpu_count() -> int:
    """Number of threads that this process can keep running, given its processors and its quota.

    The quota is rounded down: one thread too many exhausts it before its period ends, and then all threads stop.
    """
    allowed, quota = len(allowed_cpus()), cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.floor(quota)))


def physical_cores() -> int:
    """Number of physical cores among the allowed processors."""
    return len({min(siblings(cpu)) for cpu in allowed_cpus()})


def has_whole_machine() -> bool:
    """Whether this process may use every processor of the machine."""
    return len(allowed_cpus()) >= (os.cpu_count() or 1)


def numbers_in(text: str) -> frozenset[int]:
    """Parse a processor list of Linux such as "0-3,8"; empty if it is malformed."""
    try:
        parts = [part.split("-") for part in text.strip().split(",")]
        return frozenset(number for part in parts for number in range(int(part[0]), int(part[-1]) + 1))
    except ValueError:
        return frozenset()


def is_time_shared() -> bool:
    """Whether the quota is below the number of allowed processors, so other containers run on them too."""
    quota = cpu_quota()
    return quota is not None and quota < len(allowed_cpus())


@cache
def siblings(cpu: int) -> frozenset[int]:
    """Processors on the same physical core as `cpu`, including it; only `cpu` if unknown."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return numbers_in(file_text(path)) | {cpu}


_V1, _V2 = "cgroup", "cgroup2"
"""File system types of the two versions."""

_DEFAULT_PERIOD = "100000"


@dataclass(frozen=True)
class _Mount:
    """A mounted hierarchy of control groups."""

    version: str
    root: PurePosixPath
    folder: PurePosixPath


def cpu_quota(machine: Path = Path("/")) -> float | None:
    """The CPU quota of this process in processors, such as 1.5; None if unlimited or unreadable.

    The quota may change while the process runs. `machine` is the root of the file system.
    """
    groups = dict(_groups(_lines(machine / "proc/self/cgroup")))
    mounts = list(_mounts(_lines(machine / "proc/self/mountinfo")))
    folders = {(each.version, folder) for each in mounts for folder in _own_folders(each, mounts, groups)}
    found = (_limit(version, machine / folder.relative_to("/")) for version, folder in folders)
    return min((limit for limit in found if limit is not None), default=None)


def _groups(lines: Iterable[str]) -> Iterator[tuple[str, PurePosixPath]]:
    for line in lines:
        hierarchy, controllers, path = (*line.split(":", 2), "", "")[:3]
        if hierarchy == "0" and not controllers:
            yield _V2, PurePosixPath(path)
        elif "cpu" in controllers.split(","):
            yield _V1, PurePosixPath(path)


def _mounts(lines: Iterable[str]) -> Iterator[_Mount]:
    for line in lines:
        fields, _, filesystem = line.partition(" - ")
        mount, kind = fields.split(" "), (*filesystem.split(" "), "", "", "")[:3]
        limits = kind[0] == _V2 or (kind[0] == _V1 and "cpu" in kind[2].split(","))
        if limits and len(mount) > 4 and mount[4].startswith("/"):
            yield _Mount(kind[0], PurePosixPath(_unescaped(mount[3])), PurePosixPath(_unescaped(mount[4])))


def _own_folders(
    mount: _Mount, mounts: Iterable[_Mount], groups: Mapping[str, PurePosixPath]
) -> Iterator[PurePosixPath]:
    """The folders of the process's group and of its ancestors, outermost first.

    If a container cannot see its group by name, the mounted group is used.
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
    # A group outside the namespace is named "/../other" inside it.
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
    return file_text(file, "surrogateescape").split("\n")


def file_text(file: Path, errors: str = "replace") -> str:
    """The content of a system file; empty if it is unreadable."""
    try:
        return file.read_text(encoding="utf-8", errors=errors)
    except (OSError, ValueError):
        return ""


def _unescaped(path: str) -> str:
    """A path of mountinfo, which escapes blanks and backslashes in octal."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
