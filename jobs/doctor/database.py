"""The profile database: where it is, and whether it can be used."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from iosched.jobs.doctor.section import Asked, Section
from iosched.profiler.devices.finding import Finding
from iosched.profiler.store.database import default_path
from iosched.profiler.store.explained import IN_MEMORY, WAY_OUT
from iosched.profiler.store.health import Health, health

_LITTLE_SPACE = 2**26


def look(asked: Asked) -> Section:
    """The file that commands would take here; it is neither made nor changed."""
    path = asked.profile_db or default_path()
    if path is None or str(path) == IN_MEMORY:
        return Section({"path": None}, (("path", "none: measurements are kept in memory alone"),))
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
    return Section(values, rows, tuple(_findings(found)))


def _state(found: Health) -> str:
    if not found.exists:
        return "not there yet; it is made when something is measured"
    words = ["readable" if found.readable else "not readable", "writable" if found.writable else "not writable"]
    words += [] if found.intact is None else ["intact" if found.intact else "damaged"]
    schema = "" if found.schema is None else f", schema {found.schema} of {found.newest_schema}"
    return f"{found.nbytes / 2**20:.1f} MiB, {', '.join(words)}{schema}"


def _findings(found: Health) -> Iterator[Finding]:
    if found.problem is not None:
        what, _, way = found.problem.partition("\n")
        yield Finding(what.rstrip("."), str(found.path), way.replace("\n", " ").rstrip("."))
        return
    folder = next(each for each in (found.path, *found.path.absolute().parents) if Path(each).exists())
    if (free := shutil.disk_usage(folder).free) < _LITTLE_SPACE:
        what = f"only {free / 2**20:.0f} MiB are free beside the profile database"
        yield Finding(what, str(found.path), f"make room. {WAY_OUT}", is_broken=False)
