"""`iosched profile`: the database of stage measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from iosched.cli.common.complete import complete_file
from iosched.cli.common.json_objects import json_object
from iosched.cli.common.options import json_option, profile_db_option, verbosity_options
from iosched.cli.common.output import Destination, check_destinations, destination, emit_json, note, write
from iosched.cli.common.tables import print_columns
from iosched.cli.help import Group
from iosched.models.errors import UsageError

if TYPE_CHECKING:
    from iosched.profiler.store.database import ProfileDatabase

_DEVICE = "device measurements samples stages disturbed oldest newest"


@click.group(name="profile", cls=Group, short_help="Show, clear, export or import the profile database.")
@verbosity_options
def command() -> None:
    """The database of measured stages.

    'optimize' keeps every measurement in it. A second run measures only stages that are not known well enough, and an
    interrupted run resumes.
    """


def _open(profile_db: Path | None) -> ProfileDatabase:
    from iosched.profiler.store.database import ProfileDatabase, default_path

    return ProfileDatabase(default_path() if profile_db is None else profile_db)


@command.command()
@profile_db_option
@json_option
@verbosity_options
def stats(profile_db: Path | None, as_json: bool) -> None:
    """Print the number of measurements of each device."""
    with _open(profile_db) as database:
        found = database.stats()
    if as_json:
        devices = [
            json_object(device, _DEVICE, oldest=device.oldest.isoformat(), newest=device.newest.isoformat())
            for device in found.devices
        ]
        emit_json(json_object(found, "path nbytes measurements stages disturbed devices", devices=devices))
        return
    counted = ("stages", "disturbed", "measurements", "samples")
    rows = [
        [device_text(each.device), *(f"{getattr(each, key):,}" for key in counted), f"{each.newest:%Y-%m-%d}"]
        for each in found.devices
    ]
    title = f"{found.path or 'in memory'}: {found.measurements:,} measurements, {found.nbytes / 2**20:.1f} MiB"
    print_columns(["device", *counted, "newest"], rows, title=title)


def device_text(key: str) -> str:
    """A device key on one line; unparsable keys unchanged."""
    try:
        fields = json.loads(key)
        versions = ", ".join(f"{name} {version}" for name, version in fields["versions"].items())
        return f"{fields['name']}{_design_text(fields)}, {fields['threads']} threads, {fields['precision']}, {versions}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return key


def _design_text(fields: dict[str, Any]) -> str:
    """CPU design in parentheses, to distinguish devices of the same name."""
    if "design" not in fields:
        return " (unknown design: no longer used)" if fields["kind"] == "cpu" else ""
    numbers = [f"{key} {fields['design'][key]}" for key in ("family", "model", "stepping") if fields["design"].get(key)]
    return f" ({', '.join(numbers)})" if numbers else ""


@command.command(basic="yes")
@profile_db_option
@click.option("--device", metavar="KEY", help="Clear this device only, a key of 'stats --json'.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@verbosity_options
def clear(profile_db: Path | None, device: str | None, yes: bool) -> None:
    """Delete all measurements."""
    with _open(profile_db) as database:
        if not yes:
            _confirm(database)
        removed = database.clear(device)
    note(f"Deleted {removed:,} measurements.")


def _confirm(database: ProfileDatabase) -> None:
    if not sys.stdin.isatty():
        raise UsageError("deleting measurements needs confirmation on a terminal: add --yes")
    count = database.stats().measurements
    if not click.confirm(f"Delete up to {count:,} measurements in {database.path}?", err=True):
        raise UsageError("nothing was deleted")


@command.command()
@click.argument("file", metavar="FILE", callback=destination, shell_complete=complete_file)
@profile_db_option
@verbosity_options
def export(file: Destination, profile_db: Path | None) -> None:
    """Write all measurements to FILE as JSON lines; '-' is stdout.

    'iosched profile import' reads them on another machine.
    """
    from iosched.profiler.store.database import export_lines

    check_destinations([file], inputs=[profile_db])
    with _open(profile_db) as database:
        lines = list(export_lines(database))
    write(file, "".join(f"{line}\n" for line in lines).encode())
    note(f"Exported {len(lines):,} measurements.")


@command.command(name="import")
@click.argument("file", metavar="FILE", shell_complete=complete_file)
@profile_db_option
@verbosity_options
def import_(file: str, profile_db: Path | None) -> None:
    """Add the measurements in FILE, an output of 'profile export'; '-' is stdin.

    All lines are added, or none. Of two measurements of one stage, the newer stays.
    """
    from iosched.profiler.store.database import import_lines

    with _open(profile_db) as database:
        added = import_lines(database, _lines(file))
    note(f"Imported {added:,} measurements.")


def _lines(file: str) -> Iterator[str]:
    """Lines of a file, one at a time, so that a wrong file is refused at its first line.

    A line that is too long is cut, and therefore refused.
    """
    from iosched.profiler.store.database import LONGEST_LINE

    try:
        with _text(file) as text:
            yield from iter(lambda: text.readline(LONGEST_LINE + 1), "")
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}: give a file written by 'iosched profile export'") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: not UTF-8: give a file written by 'iosched profile export'") from None


@contextmanager
def _text(file: str) -> Iterator[TextIO]:
    """The file or standard input as text, with lines ending only at line feeds: names may contain U+2028."""
    if file != "-":
        with Path(file).open(encoding="utf-8", newline="\n") as opened:
            yield opened
        return
    wrapper = TextIOWrapper(sys.stdin.buffer, encoding="utf-8", newline="\n")
    try:
        yield wrapper
    finally:
        wrapper.detach()  # leaves standard input open
