"""What iosched asks of other packages, as its own metadata says it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import requires

_FORM = re.compile(
    r"^(?P<name>[\w.-]+)\s*(?:\[[^\]]*\])?\s*\(?(?P<wanted>[^;)]*)\)?\s*(?:;\s*extra == [\"'](?P<extra>[^\"']+)[\"'])?"
)
_CLAUSE = re.compile(r"^(>=|<|==)\s*([\d.]+)$")


@dataclass(frozen=True)
class Requirement:
    """A package that iosched needs, or that an extra of it brings.

    Attributes:
        package: the name of the package.
        wanted: which versions, as pip is told (">=1.22,<2").
        extra: the extra that brings it; None for what iosched itself needs.
    """

    package: str
    wanted: str
    extra: str | None


def requirements() -> tuple[Requirement, ...]:
    """All of them; none where the metadata does not tell."""
    found = (_FORM.match(text) for text in requires("iosched") or ())
    return tuple(Requirement(each["name"], each["wanted"].strip(), each["extra"]) for each in found if each)


def meets(version: str, wanted: str) -> bool:
    """Whether a version is one of those wanted; so it is where that cannot be told."""
    return all(_meets(_release(version), clause.strip()) for clause in wanted.split(","))


def is_met(version: str, found: Iterable[Requirement]) -> bool:
    """Whether a version is right for one of these requirements of its package at least."""
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
    """The numbers that a version begins with: 1.32.0rc1 is (1, 32, 0)."""
    return tuple(map(int, re.findall(r"\d+", re.split(r"[^\d.]", version.strip(), maxsplit=1)[0])))
