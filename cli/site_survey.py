"""All files of settings in reach, those that are wrong among them, and what is set in the end: for `iosched doctor`."""

from __future__ import annotations

import os

from iosched.cli.site_files import KEYS, candidates, read_site_file, user_file
from iosched.jobs.doctor.section import Asked, SettingsFile
from iosched.models.errors import UsageError


def survey() -> Asked:
    """What a command would take from files and the environment, without a word on what is wrong with it."""
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
    return Asked(settings=files, set_to=set_to)


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
