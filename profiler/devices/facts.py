"""Facts about the devices of this machine, for `iosched devices`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about one kind of device.

    Attributes:
        values: for programs; `docs/json.md` lists the keys.
        rows: for people, as pairs of a label and a text.
        findings: problems, for `iosched doctor`.
    """

    kind: str
    values: Mapping[str, object]
    rows: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...] = ()


def package_version(package: str) -> str | None:
    """The version of a Python package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of the installed ones of the packages, by name."""
    found = ((package, package_version(package)) for package in packages)
    return {package: number for package, number in found if number is not None}


@dataclass(frozen=True)
class Finding:
    """A finding on a machine: the problem, the library, file or variable that has it, and the fix.

    If `is_broken`, something does not work until then; otherwise it is a remark.
    """

    what: str
    where: str
    way: str
    is_broken: bool = True
