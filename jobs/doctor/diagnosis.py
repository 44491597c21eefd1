"""Runs all checks; one that fails is itself a finding, and keeps no other from being run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from iosched.jobs.doctor.discreet import discreet
from iosched.jobs.doctor.section import Asked, Section
from iosched.models.errors import ExecutionError, IoschedError
from iosched.profiler.devices.finding import Finding

CHECKS = ("software", "machine", "libraries", "devices", "database", "environment", "settings", "kernels")
"""The modules of this folder that look at something, in the order in which a report has them.

They are imported when they are run, since what they need may be what is broken.
"""

NOTHING_ASKED = Asked()
_REPORT = "report it with all of this text, as a bug of iosched"
_MOST_COLUMNS = 300


@dataclass(frozen=True)
class Diagnosis:
    """What all checks found, by the names of the checks."""

    sections: Mapping[str, Section]

    @property
    def findings(self) -> tuple[tuple[str, Finding], ...]:
        """Each finding with the name of its check; what is broken comes first."""
        found = [(name, each) for name, section in self.sections.items() for each in section.findings]
        return tuple(sorted(found, key=lambda pair: not pair[1].is_broken))

    @property
    def broken(self) -> tuple[Finding, ...]:
        """What does not work."""
        return tuple(each for _, each in self.findings if each.is_broken)

    @property
    def failure(self) -> IoschedError | None:
        """The error to end with; None if nothing is broken."""
        count = len(self.broken)
        if count == 0:
            return None
        return ExecutionError(f"{count} {'thing is' if count == 1 else 'things are'} broken here; see what was found")


def diagnose(asked: Asked = NOTHING_ASKED, *, checks: Sequence[str] = CHECKS) -> Diagnosis:
    """Looks at this machine, and changes nothing on it. Raises no error of its own.

    Args:
        asked: what the user said of it.
        checks: the names of the checks to run.
    """
    return Diagnosis({name: _looked(name, asked) for name in checks})


def _looked(name: str, asked: Asked) -> Section:
    try:
        section = import_module(f"{__package__}.{name}").look(asked)
        assert isinstance(section, Section)
        return discreet(section)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with this machine, the report must be made
        return discreet(Section(findings=(_failed(name, error),)))


def _failed(name: str, error: Exception) -> Finding:
    """The finding that a check itself did not get through."""
    text = next(iter(str(error).splitlines()), "")[:_MOST_COLUMNS]
    if isinstance(error, ImportError):
        library = error.name or "a library"
        what = f"what it needs cannot be imported: {type(error).__name__}: {text}"
        return Finding(what, f"check of {name}", f"install {library} anew, or iosched with all that it needs")
    return Finding(f"it failed: {type(error).__name__}: {text}", f"check of {name}", _REPORT)
