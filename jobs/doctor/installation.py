"""Checks of the installation: iosched and Python, and the packages that iosched needs or can use."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from iosched.jobs.doctor.diagnosis import DoctorRequest, Section
from iosched.models.version import iosched_version
from iosched.profiler.devices.facts import Finding, package_version
from iosched.runtime.missing_dependencies import way_to_install

_TRIED = "Programming Language :: Python :: "


def check_software(request: DoctorRequest) -> Section:
    """Versions and locations of iosched and Python."""
    del request
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
            ("iosched", f"{version or 'unknown version'}, in {place}"),
            ("Python", f"{python} ({kind}), {sys.executable}"),
        ),
        tuple(_software_findings(version)),
    )


def _version() -> str | None:
    try:
        return iosched_version()
    except PackageNotFoundError:
        return None


def _software_findings(version: str | None) -> Iterator[Finding]:
    if version is None:
        yield Finding(
            "iosched is not installed, only on Python's path", "iosched", "run 'pip install -e .' in its folder"
        )
        return
    tried = _tried_pythons()
    here = sys.version_info[:2]
    if tried and here < min(tried):
        yield Finding(
            f"Python {_version_text(here)} is too old",
            sys.executable,
            f"use Python {_version_text(min(tried))} or newer",
        )
    elif tried and here > max(tried):
        way = f"use Python {_version_text(max(tried))} if something fails"
        yield Finding(f"iosched is not tested with Python {_version_text(here)}", sys.executable, way, is_broken=False)
    other = shutil.which("iosched")
    if other is not None and Path(other).resolve().parent not in _folders_of_commands():
        way = "run 'python -m iosched', or put this environment first in PATH"
        what = f"the 'iosched' command in PATH is not the one of {sys.executable}"
        yield Finding(what, other, way, is_broken=False)


def _tried_pythons() -> list[tuple[int, ...]]:
    words = [each.removeprefix(_TRIED) for each in metadata("iosched").get_all("Classifier") or ()]
    return [tuple(map(int, each.split("."))) for each in words if each.replace(".", "").isdecimal() and "." in each]


def _version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _folders_of_commands() -> set[Path]:
    folders = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    if "posix_user" in sysconfig.get_scheme_names():
        folders.append(sysconfig.get_path("scripts", "posix_user"))
    return {Path(each).resolve() for each in folders}


_FOR_USERS = (None, "cpu", "cuda", "cuda12", "openvino", "explore", "fleet")
"""Extras for users; None for dependencies of iosched itself."""

_MODULES = {
    "onnxruntime-gpu": "onnxruntime",
    "cupy-cuda13x": "cupy",
    "cupy-cuda12x": "cupy",
    "nvidia-cudnn-frontend": "cudnn",
    "nvidia-ml-py": "pynvml",
}
"""Module names that differ from the package's. NVIDIA's other packages have libraries and no module."""

_ONE_OF = (
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-qnn"),
    ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
    ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
"""Packages that install the same files and overwrite each other."""

_AT_ONCE = 4


@dataclass(frozen=True)
class _Library:
    package: str
    version: str | None
    asked: tuple[Requirement, ...]
    trouble: str | None = None

    @property
    def extras(self) -> tuple[str, ...]:
        return tuple(each.extra for each in self.asked if each.extra is not None)

    @property
    def is_needed(self) -> bool:
        return any(each.extra is None for each in self.asked)

    @property
    def install(self) -> str:
        return way_to_install(None if self.is_needed else self.extras[0], "--upgrade --force-reinstall ")

    @property
    def wanted(self) -> str:
        return " or ".join(dict.fromkeys(each.wanted for each in self.asked))


def check_libraries(request: DoctorRequest) -> Section:
    """Versions of packages; tries to import each installed one in its own process."""
    del request
    found = _libraries()
    values = [
        {
            "package": each.package,
            "version": each.version,
            "extras": list(each.extras),
            "wanted": each.wanted,
            "trouble": each.trouble,
        }
        for each in found
    ]
    return Section({"packages": values}, tuple(_library_rows(found)), tuple(_library_findings(found)))


def _libraries() -> list[_Library]:
    by_package: dict[str, list[Requirement]] = {}
    for each in requirements():
        if each.extra in _FOR_USERS:
            by_package.setdefault(each.package, []).append(each)
    versions = {package: package_version(package) for package in by_package}
    troubles = _troubles([package for package, version in versions.items() if version is not None])
    return [
        _Library(package, versions[package], tuple(asked), troubles.get(package))
        for package, asked in by_package.items()
    ]


def _troubles(packages: Sequence[str]) -> Mapping[str, str | None]:
    modules = {
        name: _MODULES.get(name, name) for name in packages if name in _MODULES or not name.startswith("nvidia-")
    }
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as pool:
        return dict(zip(modules, pool.map(why_not, modules.values()), strict=True))


def _library_rows(found: Sequence[_Library]) -> Iterator[tuple[str, str]]:
    for each in found:
        if each.version is not None:
            trouble = "" if each.trouble is None else f", which fails to load: {each.trouble}"
            yield each.package, f"{each.version}{trouble}"
    for extra in _FOR_USERS[1:]:
        missing = [each.package for each in found if each.version is None and extra in each.extras]
        if missing:
            yield f"[{extra}]", f"not installed: {', '.join(missing)}; {way_to_install(extra)}"


def _library_findings(found: Sequence[_Library]) -> Iterator[Finding]:
    if not found:
        what = "the metadata of iosched lists no dependencies"
        yield Finding(what, "iosched", "install it with pip", is_broken=False)
    for each in found:
        if each.version is None and each.is_needed:
            yield Finding(f"{each.package} is not installed", each.package, way_to_install(None))
        elif each.trouble is not None:
            yield Finding(f"the package fails to load: {each.trouble}", f"{each.package} {each.version}", each.install)
        elif each.version is not None and not is_met(each.version, each.asked):
            yield Finding(f"iosched requires {each.wanted}", f"{each.package} {each.version}", each.install)
    for packages in _ONE_OF:
        installed = [name for name in packages if package_version(name) is not None]
        if len(installed) > 1:
            way = f"run 'pip uninstall {' '.join(installed)}', then install only the extra for this machine"
            yield Finding("these packages overwrite each other's files", ", ".join(installed), way)


_FORM = re.compile(
    r"^(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<wanted>[^;)]*)\)?\s*(?:;\s*extra == [\"'](?P<extra>[^\"']+)[\"'])?"
)
_CLAUSE = re.compile(r"^(>=|<|==)\s*([\d.]+)$")


@dataclass(frozen=True)
class Requirement:
    """A package that iosched needs, or that an extra of it brings.

    Attributes:
        package: the name of the package.
        wanted: versions, as for pip (">=1.22,<2").
        extra: its extra; None for a dependency of iosched itself.
    """

    package: str
    wanted: str
    extra: str | None


def requirements() -> tuple[Requirement, ...]:
    """All requirements in the metadata."""
    found = (_FORM.match(text) for text in requires("iosched") or ())
    return tuple(Requirement(each["name"], each["wanted"].strip(), each["extra"]) for each in found if each)


def meets(version: str, wanted: str) -> bool:
    """Whether a version is wanted, or cannot be compared."""
    return all(_meets(_release(version), clause.strip()) for clause in wanted.split(","))


def is_met(version: str, found: Iterable[Requirement]) -> bool:
    """Whether a version meets at least one of these requirements."""
    return any(meets(version, each.wanted) for each in found)


def _meets(release: tuple[int, ...], clause: str) -> bool:
    parts = _CLAUSE.match(clause)
    if parts is None or not release:
        return True
    bound = _release(parts[2])
    length = max(len(release), len(bound))
    have, limit = (each + (0,) * (length - len(each)) for each in (release, bound))
    return {">=": have >= limit, "<": have < limit, "==": have == limit}[parts[1]]


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 1.32.0rc1 is (1, 32, 0)."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version.strip(), maxsplit=1)[0])))


_IMPORT_SECONDS = 60.0
_MOST_COLUMNS = 200


def why_not(module: str) -> str | None:
    """Why a module cannot be imported, in one line; None if it can."""
    # -P: ignores a file of that name in the working folder.
    command = [sys.executable, "-P", "-c", f"import {module}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_IMPORT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"the import takes more than {_IMPORT_SECONDS:.0f} s"
    if done.returncode < 0:
        return f"the import ends the process with {_signal(-done.returncode)}"
    if done.returncode > 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"exit code {done.returncode}")[:_MOST_COLUMNS]
    return None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
