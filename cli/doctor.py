"""`iosched doctor`: what a report of a bug needs, what is wrong here, and the way out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.errors import printable
from iosched.cli.options import json_option, profile_db_option, verbosity_options
from iosched.cli.output import emit_result
from iosched.cli.tables import print_pairs

if TYPE_CHECKING:
    from iosched.jobs.doctor.diagnosis import Diagnosis


@click.command(name="doctor", short_help="What a bug report needs, what is wrong here, and the way out.")
@profile_db_option
@json_option
@verbosity_options
def command(profile_db: Path | None, as_json: bool) -> None:
    """Say what is installed here, what is wrong with it, and how to mend it.

    Packages are imported, and the profile database is read through; nothing is measured and nothing is changed. Each
    finding is a line: what, where, and the way out. What is broken makes exit code 1; remarks do not. Paths below your
    home begin with '~' and addresses are left out, so that all of it can go into a report.

    \b
    Examples:
      iosched doctor
      iosched doctor --json > report.json
    """
    from iosched.jobs.doctor.diagnosis import diagnose

    found = diagnose(profile_db)
    if as_json:
        emit_result(as_object(found))
    else:
        _print(found)
    if found.failure is not None:
        raise found.failure


def as_object(found: Diagnosis) -> dict[str, object]:
    """The object that `doctor --json` prints; scripts rely on its keys."""
    findings = [
        {"check": name, "broken": each.is_broken, "what": each.what, "where": each.where, "way": each.way}
        for name, each in found.findings
    ]
    sections = {name: dict(section.values) for name, section in found.sections.items()}
    return {"healthy": not found.broken, "findings": findings, **sections}


def _print(found: Diagnosis) -> None:
    for name, section in found.sections.items():
        if section.rows:
            print_pairs(name, section.rows, to_stderr=False)
    for _, each in found.findings:
        level = "broken" if each.is_broken else "remark"
        click.echo(printable(f"{level}: {each.where}: {each.what}. Way out: {each.way}."))
    if not found.broken:
        click.echo("Nothing is broken here.")
