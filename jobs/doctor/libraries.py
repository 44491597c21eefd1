"""The packages that iosched needs or can use: which are here, whether they load, and which extra brings the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from iosched.jobs.doctor.importing import why_not
from iosched.jobs.doctor.requirements import Requirement, is_met, requirements
from iosched.jobs.doctor.section import Asked, Section
from iosched.profiler.devices.facts import package_version
from iosched.profiler.devices.finding import Finding
from iosched.runtime.lacking import way_to_install

_FOR_USERS = (None, "cpu", "cuda", "cuda12", "openvino", "explore", "fleet")
"""The extras that people install, and what iosched itself needs."""

_MODULES = {
    "onnxruntime-gpu": "onnxruntime",
    "cupy-cuda13x": "cupy",
    "cupy-cuda12x": "cupy",
    "nvidia-cudnn-frontend": "cudnn",
    "nvidia-ml-py": "pynvml",
}
"""The modules of packages that are called otherwise. NVIDIA's other packages have libraries and no module."""

_ONE_OF = (
    ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml", "onnxruntime-qnn"),
    ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x"),
    ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)
"""Packages that own the same files, so that of two the later one has overwritten the earlier one."""

_AT_ONCE = 4


@dataclass(frozen=True)
class _Library:
    """A package, what iosched asks of it, and what became of importing it."""

    package: str
    version: str | None
    asked: tuple[Requirement, ...]
    trouble: str | None = None

    @property
    def extras(self) -> tuple[str, ...]:
        """The extras that bring it; none for what iosched itself needs."""
        return tuple(each.extra for each in self.asked if each.extra is not None)

    @property
    def is_needed(self) -> bool:
        """Whether nothing works without it."""
        return any(each.extra is None for each in self.asked)

    @property
    def install(self) -> str:
        """The clause that tells people how to install it again, in the version that is wanted."""
        return way_to_install(None if self.is_needed else self.extras[0], "--upgrade --force-reinstall ")

    @property
    def wanted(self) -> str:
        """Which versions, in words."""
        return " or ".join(dict.fromkeys(each.wanted for each in self.asked))


def look(asked: Asked) -> Section:
    """Each package with its version; those that are here are imported, each in a process of its own."""
    del asked
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
    return Section({"packages": values}, tuple(_rows(found)), tuple(_findings(found)))


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
    """For each package why it cannot be imported; None where it can, or has nothing to import."""
    modules = {
        name: _MODULES.get(name, name) for name in packages if name in _MODULES or not name.startswith("nvidia-")
    }
    with ThreadPoolExecutor(min(_AT_ONCE, os.cpu_count() or 1)) as pool:
        return dict(zip(modules, pool.map(why_not, modules.values()), strict=True))


def _rows(found: Sequence[_Library]) -> Iterator[tuple[str, str]]:
    for each in found:
        if each.version is not None:
            trouble = "" if each.trouble is None else f", which does not load: {each.trouble}"
            yield each.package, f"{each.version}{trouble}"
    for extra in _FOR_USERS[1:]:
        missing = [each.package for each in found if each.version is None and extra in each.extras]
        if missing:
            yield f"[{extra}]", f"not installed: {', '.join(missing)}; {way_to_install(extra)}"


def _findings(found: Sequence[_Library]) -> Iterator[Finding]:
    if not found:
        what = "the installed iosched does not say which packages it needs"
        yield Finding(what, "iosched", "install it with pip", is_broken=False)
    for each in found:
        if each.version is None and each.is_needed:
            yield Finding(f"{each.package} is not installed", each.package, way_to_install(None))
        elif each.trouble is not None:
            yield Finding(f"it does not load: {each.trouble}", f"{each.package} {each.version}", each.install)
        elif each.version is not None and not is_met(each.version, each.asked):
            yield Finding(f"iosched asks for {each.wanted}", f"{each.package} {each.version}", each.install)
    for rivals in _ONE_OF:
        here = [name for name in rivals if package_version(name) is not None]
        if len(here) > 1:
            way = f"pip uninstall {' '.join(here)}, then install the extra for this machine alone"
            yield Finding("they overwrite each other's files", ", ".join(here), way)
