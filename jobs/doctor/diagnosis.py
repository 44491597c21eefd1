"""Runs the checks of `iosched doctor`; a check that fails is a finding, and the others still run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from iosched.models.errors import ExecutionError, IoschedError
from iosched.profiler.devices.facts import Finding

if TYPE_CHECKING:
    from iosched.models.model import Model


@dataclass(frozen=True)
class SettingsFile:
    """A file that sets options for all calls.

    Attributes:
        values: its settings by key; empty if invalid.
        counts: whether it is read, because no nearer file exists.
        problem: why it cannot be used, followed by the fix in further lines; None if it can.
    """

    path: str
    values: Mapping[str, str | int] = field(default_factory=dict)
    counts: bool = True
    problem: str | None = None


@dataclass(frozen=True)
class DoctorRequest:
    """The options of `doctor`.

    Attributes:
        profile_db: the profile database; None means the user's own.
        model: the model whose kernels to count; None to count none.
        settings: the settings files, by precedence.
        set_to: effective settings and their sources, by key.
    """

    profile_db: Path | None = None
    model: Model | None = None
    settings: tuple[SettingsFile, ...] = ()
    set_to: Mapping[str, tuple[str | int, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """The result of a check.

    Attributes:
        values: for programs; `docs/json.md` lists the keys.
        rows: the same for display, as pairs of a label and a text.
        findings: problems and remarks.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    rows: tuple[tuple[str, str], ...] = ()
    findings: tuple[Finding, ...] = ()


CHECKS = {
    "software": "installation",
    "machine": "machine",
    "libraries": "installation",
    "devices": "machine",
    "database": "machine",
    "environment": "machine",
    "settings": "machine",
    "kernels": "machine",
}
"""The checks in the order of a report, each with the module of this folder that has its function `check_NAME`.

Modules are imported when a check runs: a broken dependency fails that check alone.
"""

EMPTY_REQUEST = DoctorRequest()
_REPORT = "report this as a bug of iosched, with the whole report"
_MOST_COLUMNS = 300


@dataclass(frozen=True)
class Diagnosis:
    """The results of all checks by name."""

    sections: Mapping[str, Section]

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Findings with the names of their checks, broken ones first."""
        found = [(name, each) for name, section in self.sections.items() for each in section.findings]
        return tuple(sorted(found, key=lambda pair: not pair[1].is_broken))

    @property
    def broken(self) -> tuple[Finding, ...]:
        """The broken findings."""
        return tuple(each for _, each in self.findings if each.is_broken)

    @property
    def failure(self) -> IoschedError | None:
        """The error to end with; None if nothing is broken."""
        count = len(self.broken)
        if count == 0:
            return None
        return ExecutionError(f"{count} {'problem' if count == 1 else 'problems'} found: see the report")


def diagnose(request: DoctorRequest = EMPTY_REQUEST, *, checks: Iterable[str] = CHECKS) -> Diagnosis:
    """Runs the checks; changes nothing and raises nothing.

    Args:
        request: the options.
        checks: the names of the checks to run.
    """
    return Diagnosis({name: _looked(name, request) for name in checks})


def _looked(name: str, request: DoctorRequest) -> Section:
    try:
        section = getattr(import_module(f"{__package__}.{CHECKS[name]}"), f"check_{name}")(request)
        assert isinstance(section, Section)
        return discreet(section)
    except Exception as error:  # noqa: BLE001 - the report must be written whatever is wrong with this machine
        return discreet(Section(findings=(_failed(name, error),)))


def _failed(name: str, error: Exception) -> Finding:
    text = next(iter(str(error).splitlines()), "")[:_MOST_COLUMNS]
    if isinstance(error, ImportError):
        library = error.name or "a library"
        what = f"a dependency cannot be imported: {type(error).__name__}: {text}"
        return Finding(what, f"check of {name}", f"reinstall {library}, or iosched with its dependencies")
    return Finding(f"the check failed: {type(error).__name__}: {text}", f"check of {name}", _REPORT)


_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://[^\s'\",;)]+", re.IGNORECASE)


def home() -> str:
    """The user's home; "" if there is none or it is the root."""
    try:
        found = str(Path.home())
    except RuntimeError:
        return ""
    return "" if found == "/" else found


def discreet_text(text: str, at_home: str) -> str:
    """The text without the home `at_home` and without hosts."""
    text = _ADDRESS.sub(r"\1://...", text)
    return re.sub(rf"{re.escape(at_home)}(?![\w.-])", "~", text) if at_home else text


def discreet(section: Section) -> Section:
    """The section without the user's home and without hosts."""
    at_home = home()
    return Section(
        {name: _discreet(value, at_home) for name, value in section.values.items()},
        tuple((label, discreet_text(text, at_home)) for label, text in section.rows),
        tuple(
            replace(
                each,
                what=discreet_text(each.what, at_home),
                where=discreet_text(each.where, at_home),
                way=discreet_text(each.way, at_home),
            )
            for each in section.findings
        ),
    )


def _discreet(value: object, at_home: str) -> object:
    if isinstance(value, str):
        return discreet_text(value, at_home)
    if isinstance(value, Mapping):
        return {key: _discreet(each, at_home) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_discreet(each, at_home) for each in value]
    return value
