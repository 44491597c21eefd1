"""What `iosched devices --selftest` prints."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import click

from iosched.cli.objects import json_object
from iosched.cli.output import debugging, emit_json, note, quiet
from iosched.cli.terminal import say
from iosched.jobs.selftest import selftest

if TYPE_CHECKING:
    from iosched.jobs.selftest import CheckResult, SelfTest
    from iosched.runtime.selfcheck import SelfCheck

_CHECK = "part name outcome detail seconds"


class _Lines:
    """A line on stderr for each check; its name stands there before the check begins, which may end the process."""

    def began(self, check: SelfCheck) -> None:
        """Writes the name."""
        if not quiet():
            click.echo(f"  {check.part}: {check.name} ... ", nl=False, err=True)

    def ended(self, result: CheckResult) -> None:
        """Writes the outcome behind the name, and the traceback of a failure where that is wanted."""
        if result.outcome == "not tried":
            note(f"  {result.title} ... not tried")
            return
        word = "ok" if result.outcome == "passed" else "FAILED"
        note(f"{word}, {result.seconds:.1f} s: {result.detail}")
        if result.error is not None and debugging():
            click.echo("".join(traceback.format_exception(result.error)), err=True)


def print_selftest(device: str, *, as_json: bool) -> None:
    """Runs all checks of a device and prints a line on stdout that says what works.

    Raises:
        UsageError: there is no such device.
        DeviceError: it is not attached, or what it needs is not installed.
        MismatchError: all that failed are checks whose numbers were wrong.
        ExecutionError: another check failed.
    """
    found = selftest(device, _Lines())
    if as_json:
        emit_json(_as_json(found))
    else:
        say(found.summary)
    if found.failure is not None:
        raise found.failure


def _as_json(found: SelfTest) -> dict[str, object]:
    return json_object(
        found,
        "device name passed summary seconds about checks",
        seconds=round(found.seconds, 3),
        checks=[json_object(each, _CHECK, seconds=round(each.seconds, 3)) for each in found.results],
    )
