"""What one check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.profiler.devices.finding import Finding

if TYPE_CHECKING:
    from iosched.models.model import Model


@dataclass(frozen=True)
class SettingsFile:
    """A file that options are set in for all calls.

    Attributes:
        path: the file.
        values: what it sets, by key; empty where it cannot be used.
        counts: whether it is read; not where a nearer one is.
        problem: why it cannot be used, and in further lines the way out; None if it can.
    """

    path: str
    values: Mapping[str, str | int] = field(default_factory=dict)
    counts: bool = True
    problem: str | None = None


@dataclass(frozen=True)
class Asked:
    """What the user said of the machine to look at.

    Attributes:
        profile_db: the profile database; None stands for the user's own.
        model: whose kernels to count; None leaves that out.
        settings: the files of settings that there are, those first that come first.
        set_to: what settings are set to in the end, and by which file or variable, by their keys in files.
    """

    profile_db: Path | None = None
    model: Model | None = None
    settings: tuple[SettingsFile, ...] = ()
    set_to: Mapping[str, tuple[str | int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """What one check found.

    Attributes:
        values: for programs; `docs/json.md` lists the keys.
        rows: the same for people, as pairs of a label and a text.
        findings: what is wrong, or worth knowing.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    rows: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
