"""What one check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from iosched.profiler.devices.finding import Finding


@dataclass(frozen=True)
class Asked:
    """What the user said of the machine to look at.

    Attributes:
        profile_db: the profile database; None stands for the user's own.
    """

    profile_db: Path | None = None


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
