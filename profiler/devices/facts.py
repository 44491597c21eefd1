"""Facts about the devices of this machine, which `iosched devices` shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class DeviceFacts:
    """Facts about one kind of device.

    Attributes:
        kind: "cpu" or "cuda".
        values: the facts for programs; `docs/json.md` lists the keys.
        rows: the facts for people, as pairs of a label and a text; the text says how to install what is missing.
        findings: what is wrong with such devices here, for `iosched doctor`.
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
    """The versions of those of the packages that are installed, by their names."""
    found = ((package, package_version(package)) for package in packages)
    return {package: number for package, number in found if number is not None}


@dataclass(frozen=True)
class Finding:
    """One thing that was found on a machine.

    Attributes:
        what: what was found, in a clause.
        where: what it was found at: a library, a file, a variable.
        way: what to do about it.
        is_broken: whether something does not work until that is done; otherwise it is only a remark.
    """

    what: str
    where: str
    way: str
    is_broken: bool = True
