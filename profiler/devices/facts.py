"""What this machine has to say of a kind of device: shown by `iosched devices`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True)
class DeviceFacts:
    """Of one kind of device.

    Attributes:
        kind: "cpu" or "cuda".
        values: for programs; `docs/json.md` lists the keys.
        rows: the same for people, what is missing with the command that installs it.
    """

    kind: str
    values: Mapping[str, object]
    rows: tuple[tuple[str, str], ...]


def package_version(package: str) -> str | None:
    """Of an installed package; None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
