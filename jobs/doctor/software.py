"""iosched and the Python that runs it."""

from __future__ import annotations

import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from iosched.jobs.doctor.section import Asked, Section
from iosched.models.version import iosched_version
from iosched.profiler.devices.finding import Finding

_TRIED = "Programming Language :: Python :: "


def look(asked: Asked) -> Section:
    """The versions of both, where they are, and whether they go together."""
    del asked
    version, place = _version(), str(Path(__file__).parents[2])
    python, kind = platform.python_version(), platform.python_implementation()
    return Section(
        {
            "iosched": version,
            "place": place,
            "python": python,
            "implementation": kind,
            "executable": sys.executable,
            "virtual_environment": sys.prefix != sys.base_prefix,
        },
        (
            ("iosched", f"{version or 'of no known version'}, in {place}"),
            ("Python", f"{python} ({kind}), {sys.executable}"),
        ),
        tuple(_findings(version)),
    )


def _version() -> str | None:
    try:
        return iosched_version()
    except PackageNotFoundError:
        return None


def _findings(version: str | None) -> Iterator[Finding]:
    if version is None:
        yield Finding("it is not installed, only on Python's path", "iosched", "run pip install -e . in its folder")
        return
    tried = _tried_pythons()
    here = sys.version_info[:2]
    if tried and here < min(tried):
        yield Finding(f"Python {_text(here)} is too old", sys.executable, f"take Python {_text(min(tried))} or newer")
    elif tried and here > max(tried):
        way = f"take Python {_text(max(tried))} if something fails"
        yield Finding(f"iosched was not tried on Python {_text(here)}", sys.executable, way, is_broken=False)
    other = shutil.which("iosched")
    if other is not None and Path(other).resolve().parent not in _folders_of_commands():
        way = "call python -m iosched, or put this environment first in PATH"
        what = f"the command iosched in PATH is not that of {sys.executable}"
        yield Finding(what, other, way, is_broken=False)


def _tried_pythons() -> list[tuple[int, ...]]:
    """The versions of Python that the package names."""
    words = [each.removeprefix(_TRIED) for each in metadata("iosched").get_all("Classifier") or ()]
    return [tuple(map(int, each.split("."))) for each in words if each.replace(".", "").isdecimal() and "." in each]


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _folders_of_commands() -> set[Path]:
    """Where pip puts the commands of packages of this Python."""
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    if "posix_user" in sysconfig.get_scheme_names():
        folders.append(sysconfig.get_path("scripts", "posix_user"))
    return {Path(each).resolve() for each in folders}
