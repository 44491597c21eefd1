"""Files of settings and the variables that come before them: which count, what they set, and which are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from iosched.jobs.doctor.section import Asked, Section, SettingsFile
from iosched.profiler.devices.finding import Finding


def look(asked: Asked) -> Section:
    """The files that the caller found, in the order in which they come, and what holds in the end."""
    rows = [(f"{each.path}", _text(each)) for each in asked.settings]
    rows += [(key, f"{value}, from {place}") for key, (value, place) in asked.set_to.items()]
    return Section(
        {
            "files": [
                {"path": each.path, "counts": each.counts, "values": dict(each.values), "problem": each.problem}
                for each in asked.settings
            ],
            "set": {key: {"value": value, "from": place} for key, (value, place) in asked.set_to.items()},
        },
        tuple(rows) or (("files", "none; nothing is set for all calls"),),
        tuple(_findings(asked)),
    )


def _text(file: SettingsFile) -> str:
    if file.problem is not None:
        return "cannot be used"
    said = ", ".join(f"{key} = {value}" for key, value in file.values.items()) or "sets nothing"
    return said if file.counts else f"{said}; not read: a nearer file comes first"


def _findings(asked: Asked) -> Iterator[Finding]:
    for each in asked.settings:
        if each.problem is not None and each.counts:
            what, _, way = each.problem.partition("\n")
            yield Finding(f"commands that need a setting refuse this file: {what}", each.path, way or "mend it")
    if "threads" in asked.set_to:
        value, place = asked.set_to["threads"]
        if not (str(value).isdecimal() and int(value) > 0):
            yield Finding(f"threads is {value!r}, and has to be a whole number from 1", place, "mend it, or unset it")
    if "device" in asked.set_to:
        yield from _device_findings(*asked.set_to["device"])


def _device_findings(value: str | int, place: str) -> Iterator[Finding]:
    from iosched.models.errors import UsageError
    from iosched.profiler.devices.resolve import check_name

    for name in str(value).split(","):
        try:
            check_name(name)
        except UsageError as error:
            what, _, way = str(error).partition("\n")
            yield Finding(what, place, way or "mend it, or unset it")
