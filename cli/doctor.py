"""`iosched doctor`: report the installation, its problems and their fixes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iosched.cli.common.complete import complete_model
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import PROFILE_DB_VARIABLE, Binding, binding_options, json_option, verbosity_options
from iosched.cli.common.output import emit_result, say
from iosched.cli.common.site_settings import KEYS, candidates, read_site_file, user_file
from iosched.cli.common.tables import print_pairs
from iosched.cli.help import Command
from iosched.jobs.doctor.diagnosis import DoctorRequest, SettingsFile
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.jobs.doctor.diagnosis import Diagnosis, DoctorRequest


@click.command(
    name="doctor", cls=Command, short_help="Report problems of the installation and how to fix them.", basic="json"
)
@click.argument("model", metavar="[MODEL]", required=False, shell_complete=complete_model)
@click.option(
    "--profile-db",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="Profile database to check. Default: the one that commands would use.",
)
@binding_options
@json_option
@verbosity_options
def command(model: str | None, profile_db: Path | None, binding: Binding, as_json: bool) -> None:
    """Report the installation, its problems and how to fix them.

    It imports the packages and reads the profile database and all settings files; nothing is changed. With MODEL, it
    counts the CPU kernels of the model by how they are called. Each finding is a line with a fix. Problems exit with 1,
    notes do not. Paths below your home begin with '~' and addresses are left out, so the output can go into a bug
    report.

    \b
    Examples:
      iosched doctor
      iosched doctor --json > report.json
      iosched doctor model.onnx
    """
    from iosched.cli.common.source import read_model
    from iosched.jobs.doctor.diagnosis import diagnose

    asked = survey()
    opened = None if model is None else read_model(model, binding)
    found = diagnose(replace(asked, model=opened, profile_db=profile_db or _set_in_file(asked)))
    if as_json:
        emit_result(as_object(found))
    else:
        _print(found)
    if found.failure is not None:
        raise found.failure


def _set_in_file(request: DoctorRequest) -> Path | None:
    """The database set in a settings file, else None; the library itself reads the variable."""
    value, place = request.set_to.get("profile-db", (None, ""))
    return None if value is None or place == PROFILE_DB_VARIABLE else Path(str(value))


def as_object(found: Diagnosis) -> dict[str, object]:
    """JSON object of `doctor --json`."""
    findings = [json_object(each, "check broken=is_broken what where way", check=name) for name, each in found.findings]
    sections = {name: section.values for name, section in found.sections.items()}
    return {"healthy": not found.broken, "findings": findings, **sections}


def _print(found: Diagnosis) -> None:
    for name, section in found.sections.items():
        if section.rows:
            print_pairs(name, section.rows, to_stderr=False)
    for _, each in found.findings:
        level = "problem" if each.is_broken else "note"
        end = "" if each.what.endswith("?") else "."
        say(f"{level}: {each.where}: {each.what}{end} Fix: {each.way}.")
    if not found.broken:
        say("No problems found.")


def survey() -> DoctorRequest:
    """Settings in files and the environment, without errors for invalid ones."""
    files = _files()
    counting = [each for each in files if each.counts]
    set_to: dict[str, tuple[str | int, str]] = {}
    for key in KEYS:
        variable = f"IOSCHED_{key.upper().replace('-', '_')}"
        if os.environ.get(variable):
            set_to[key] = os.environ[variable], variable
            continue
        setter = next((each for each in counting if key in each.values), None)
        if setter is not None:
            set_to[key] = setter.values[key], setter.path
    return DoctorRequest(settings=files, set_to=set_to)


def _files() -> tuple[SettingsFile, ...]:
    found: list[SettingsFile] = []
    for path, allowed in candidates():
        counts = not found or path == user_file()
        try:
            file = read_site_file(path, allowed)
        except UsageError as error:
            found.append(SettingsFile(str(path), counts=counts, problem=str(error)))
            continue
        if file is not None:
            found.append(SettingsFile(str(path), file.values, counts))
    return tuple(found)
