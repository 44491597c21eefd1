"""Checks of the machine: its system and devices, the profile database, variables, settings, and a model's kernels."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.jobs.doctor.diagnosis import DoctorRequest, Section, SettingsFile
from iosched.profiler.devices.facts import Finding
from iosched.profiler.devices.resolve import not_linux
from iosched.runtime.cores import allowed_cpus, cpu_quota
from iosched.runtime.topology import default_threads

if TYPE_CHECKING:
    from iosched.profiler.store.health import Health

_LITTLE_MEMORY = 2**29
_LITTLE_TEMPORARY_SPACE = 2**28


def check_machine(request: DoctorRequest) -> Section:
    """Facts about the machine, None if unknown."""
    del request
    total, available, limit = _meminfo("MemTotal"), _meminfo("MemAvailable"), _group_limit()
    cores, threads, quota, load = len(allowed_cpus()), default_threads(), cpu_quota(), _load()
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
    limited = "" if quota is None else f", quota of {quota:g}"
    rows = (
        ("system", ", ".join(filter(None, (_distribution(), f"{platform.system()} {platform.release()}", libc)))),
        ("architecture", platform.machine()),
        ("cores", f"{cores}{most}{limited}; default threads: {threads}"),
        ("load", "unknown" if load is None else f"{load:.1f} over the last minute"),
        ("memory", f"{_size(total)}, {_size(available)} available{'' if limit is None else f', limit {_size(limit)}'}"),
    )
    return Section(values, rows, tuple(_machine_findings(load, threads, available)))


def _machine_findings(load: float | None, threads: int, available: int | None) -> Iterator[Finding]:
    if (system := not_linux()) is not None:
        what = f"models run only on Linux, and this is {system}"
        yield Finding(
            what, "system", "use Linux in a container, a virtual machine or WSL; simulated GPUs need no Linux"
        )
    if load is not None and load > max(threads, os.cpu_count() or 1):
        way = "stop other programs before measuring; measurements with interference are repeated"
        yield Finding(f"the load of {load:.1f} exceeds the number of cores", "cores", way, is_broken=False)
    if available is not None and available < _LITTLE_MEMORY:
        way = "stop other programs, or use a smaller batch size"
        yield Finding(f"only {_size(available)} of memory is available", "memory", way, is_broken=False)
    try:
        folder = tempfile.gettempdir()
    except FileNotFoundError:
        yield Finding("no folder for temporary files is writable", "TMPDIR", "set TMPDIR to a writable folder")
        return
    if (free := shutil.disk_usage(folder).free) < _LITTLE_TEMPORARY_SPACE:
        yield Finding(
            f"only {_size(free)} of disk space is free",
            folder,
            "free some, or set TMPDIR to another folder",
            is_broken=False,
        )


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _meminfo(name: str) -> int | None:
    """A line of /proc/meminfo, in bytes."""
    found = (line.split()[1] for line in _lines("/proc/meminfo") if line.startswith(f"{name}:"))
    return next((int(kib) * 1024 for kib in found if kib.isdecimal()), None)


def _group_limit() -> int | None:
    """The memory limit of the control group; None without a limit."""
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = "".join(_lines(file)).strip()
        if text.isdecimal() and int(text) < 2**60:  # the older version has a larger number for no limit
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
    return "unknown" if nbytes is None else f"{nbytes / 2**30:.1f} GiB"


def check_devices(request: DoctorRequest) -> Section:
    """Facts about each kind of device on this machine."""
    from iosched.profiler.devices.resolve import device_facts

    del request
    found = device_facts()
    rows = tuple((f"{facts.kind}: {label}", text) for facts in found for label, text in facts.rows)
    findings = tuple(each for facts in found for each in facts.findings)
    return Section({"devices": [dict(facts.values) for facts in found]}, rows, findings)


_LITTLE_DATABASE_SPACE = 2**26


def check_database(request: DoctorRequest) -> Section:
    """The default profile database; it is neither created nor changed."""
    from iosched.profiler.store.database import default_path
    from iosched.profiler.store.errors import IN_MEMORY
    from iosched.profiler.store.health import health

    path = request.profile_db or default_path()
    if path is None or str(path) == IN_MEMORY:
        return Section({"path": None}, (("path", "none: measurements are kept in memory only"),))
    found = health(path)
    values = {
        "path": str(found.path),
        "exists": found.exists,
        "nbytes": found.nbytes,
        "readable": found.readable,
        "writable": found.writable,
        "schema": found.schema,
        "newest_schema": found.newest_schema,
        "intact": found.intact,
    }
    rows = (("path", str(found.path)), ("state", _state(found)))
    return Section(values, rows, tuple(_database_findings(found)))


def _state(found: Health) -> str:
    if not found.exists:
        return "does not exist yet; the first measurement creates it"
    words = ["readable" if found.readable else "not readable", "writable" if found.writable else "not writable"]
    words += [] if found.intact is None else ["intact" if found.intact else "damaged"]
    schema = "" if found.schema is None else f", schema {found.schema} of {found.newest_schema}"
    return f"{found.nbytes / 2**20:.1f} MiB, {', '.join(words)}{schema}"


def _database_findings(found: Health) -> Iterator[Finding]:
    if found.problem is not None:
        what, _, way = found.problem.partition("\n")
        yield Finding(what.rstrip("."), str(found.path), way.replace("\n", " ").rstrip("."))
        return
    folder = next(each for each in (found.path, *found.path.absolute().parents) if Path(each).exists())
    from iosched.profiler.store.errors import WAY_OUT

    if (free := shutil.disk_usage(folder).free) < _LITTLE_DATABASE_SPACE:
        what = f"only {free / 2**20:.0f} MiB of disk space is free for the profile database"
        yield Finding(what, str(found.path), f"free disk space. {WAY_OUT}", is_broken=False)


_OWN = "IOSCHED_"
_SHOWN = (
    *("IOSCHED_PROFILE_DB", "IOSCHED_SHARE_CORES", "IOSCHED_DEVICE", "IOSCHED_THREADS"),
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME"),
    *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX", "LD_PRELOAD", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "PYTHONMALLOC", "XDG_CACHE_HOME", "TMPDIR", "LANG", "LC_ALL", "NO_COLOR"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_PATH", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
)
"""Variables whose values are shown: numbers, words and paths."""

_HIDDEN = ("RAY_ADDRESS",)
_SET = "set, not shown"


def check_environment(request: DoctorRequest) -> Section:
    """Environment variables; values that may be secret are hidden."""
    del request
    found = _variables(os.environ)
    values = {name: value for name, value in found.items() if value != _SET}
    hidden = [name for name, value in found.items() if value == _SET]
    rows = tuple((name, value or "set, empty") for name, value in found.items())
    return Section(
        {"shown": values, "hidden": hidden},
        rows or (("variables", "none that affects iosched is set"),),
        tuple(_variable_findings(os.environ)),
    )


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    shown = {name: environ[name] for name in _SHOWN if name in environ}
    others = sorted(name for name in environ if name.startswith(_OWN) and name not in _SHOWN)
    return {**shown, **{name: _SET for name in (*others, *_HIDDEN) if name in environ}}


def _variable_findings(environ: Mapping[str, str]) -> Iterator[Finding]:
    if environ.get("LD_PRELOAD"):
        what = "a preloaded library may affect measurements"
        yield Finding(what, "LD_PRELOAD", "unset it to compare", is_broken=False)
    if environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        yield Finding("it hides all GPUs", "CUDA_VISIBLE_DEVICES", "unset it to use a GPU", is_broken=False)
    if "IOSCHED_SHARE_CORES" in environ:
        what = "concurrent processes of iosched use the same cores and slow each other down"
        yield Finding(
            what, "IOSCHED_SHARE_CORES", "unset it if several processes run at the same time", is_broken=False
        )


def check_settings(request: DoctorRequest) -> Section:
    """Settings files by precedence, and effective settings."""
    rows = [(f"{each.path}", _settings_text(each)) for each in request.settings]
    rows += [(key, f"{value}, from {place}") for key, (value, place) in request.set_to.items()]
    return Section(
        {
            "files": [
                {"path": each.path, "counts": each.counts, "values": dict(each.values), "problem": each.problem}
                for each in request.settings
            ],
            "set": {key: {"value": value, "from": place} for key, (value, place) in request.set_to.items()},
        },
        tuple(rows) or (("files", "none"),),
        tuple(_settings_findings(request)),
    )


def _settings_text(file: SettingsFile) -> str:
    if file.problem is not None:
        return "cannot be used"
    said = ", ".join(f"{key} = {value}" for key, value in file.values.items()) or "sets nothing"
    return said if file.counts else f"{said}; ignored: a nearer file takes precedence"


def _settings_findings(request: DoctorRequest) -> Iterator[Finding]:
    for each in request.settings:
        if each.problem is not None and each.counts:
            what, _, way = each.problem.partition("\n")
            what = what.removeprefix(f"{each.path}: ")
            yield Finding(f"the file is invalid: {what}", each.path, way or "correct the file")
    if "threads" in request.set_to:
        value, place = request.set_to["threads"]
        if not (str(value).isdecimal() and int(value) > 0):
            yield Finding(f"threads is {value!r}, not a positive integer", place, "fix or unset it")
    if "device" in request.set_to:
        yield from _device_findings(*request.set_to["device"])


def _device_findings(value: str | int, place: str) -> Iterator[Finding]:
    from iosched.models.errors import UsageError
    from iosched.profiler.devices.resolve import check_name

    for name in str(value).split(","):
        try:
            check_name(name)
        except UsageError as error:
            what, _, way = str(error).partition("\n")
            yield Finding(what, place, way or "fix or unset it")


def check_kernels(request: DoctorRequest) -> Section:
    """Counts of the model's kernels by operator; empty without a model."""
    from iosched.profiler.devices.profiled_device import CountsKernelCalls
    from iosched.profiler.devices.resolve import resolve

    if request.model is None:
        return Section()
    device = resolve("cpu")
    if not isinstance(device, CountsKernelCalls):
        return Section()
    calls = device.kernel_calls(request.model)
    rows = (("called without a session", _counts_text(calls["invoked"])), ("sessions", _counts_text(calls["sessions"])))
    return Section(calls, rows)


def _counts_text(counts: Mapping[str, int]) -> str:
    each = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{sum(counts.values())}: {each}" if counts else "none"
