"""The machine: its system, how many cores and how much memory there are for this process, and what else uses them."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from iosched.jobs.doctor.section import Asked, Section
from iosched.profiler.devices.finding import Finding
from iosched.profiler.devices.system import not_linux
from iosched.runtime.cores import allowed_cpus, cpu_count
from iosched.runtime.quota import cpu_quota

_LITTLE_MEMORY = 2**29
_LITTLE_SPACE = 2**28


def look(asked: Asked) -> Section:
    """What Linux tells of it; what is not told is None."""
    del asked
    total, available, limit = _meminfo("MemTotal"), _meminfo("MemAvailable"), _group_limit()
    cores, threads, quota, load = len(allowed_cpus()), cpu_count(), cpu_quota(), _load()
    libc = " ".join(platform.libc_ver()).strip()
    values = {
        "system": platform.system(),
        "release": platform.release(),
        "distribution": _distribution(),
        "libc": libc or None,
        "architecture": platform.machine(),
        "cores": cores,
        "processors": os.cpu_count(),
        "quota": quota,
        "threads": threads,
        "load": load,
        "memory_nbytes": total,
        "memory_available_nbytes": available,
        "memory_limit_nbytes": limit,
    }
    most = f" of {os.cpu_count()}" if os.cpu_count() != cores else ""
    limited = "" if quota is None else f", the time of {quota:g}"
    rows = (
        ("system", ", ".join(filter(None, (_distribution(), f"{platform.system()} {platform.release()}", libc)))),
        ("architecture", platform.machine()),
        ("cores", f"{cores}{most}{limited}; threads by default: {threads}"),
        ("load", "not known" if load is None else f"{load:.1f} over the last minute"),
        ("memory", f"{_size(total)}, {_size(available)} available{'' if limit is None else f', limit {_size(limit)}'}"),
    )
    return Section(values, rows, tuple(_findings(load, threads, available)))


def _findings(load: float | None, threads: int, available: int | None) -> Iterator[Finding]:
    if (system := not_linux()) is not None:
        what = f"models run and are measured on Linux, and this is {system}"
        yield Finding(what, "system", "use a container, a virtual machine or WSL with Linux; plans for GPUs work here")
    if load is not None and load > max(threads, os.cpu_count() or 1):
        way = "end other programs before measuring; what was disturbed is measured again"
        yield Finding(f"more programs run than there are cores (load {load:.1f})", "cores", way, is_broken=False)
    if available is not None and available < _LITTLE_MEMORY:
        way = "close other programs, or take a smaller batch size"
        yield Finding(f"only {_size(available)} of memory are available", "memory", way, is_broken=False)
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        yield Finding("no folder for temporary files can be written", "TMPDIR", "set TMPDIR to one that can")
        return
    if (free := shutil.disk_usage(folder).free) < _LITTLE_SPACE:
        yield Finding(
            f"only {_size(free)} are free", folder, "make room, or set TMPDIR to another folder", is_broken=False
        )


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _meminfo(name: str) -> int | None:
    """A line of /proc/meminfo in bytes, which has it in units of 1024."""
    found = (line.split()[1] for line in _lines("/proc/meminfo") if line.startswith(f"{name}:"))
    return next((int(kib) * 1024 for kib in found if kib.isdecimal()), None)


def _group_limit() -> int | None:
    """What the control group that a container shows as its own may use; None without a limit."""
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = "".join(_lines(file)).strip()
        if text.isdecimal() and int(text) < 2**60:  # which is how the older version says that there is none
            return int(text)
    return None


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


def _distribution() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _size(nbytes: int | None) -> str:
    return "not known" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"
