"""Leaves out of a report what is nobody's business: the user's name, and hosts with what logs in to them.

A path below the user's home begins with `~`, and of an address only its scheme is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from iosched.jobs.doctor.section import Section

_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://[^\s'\",;)]+", re.IGNORECASE)


def home() -> str:
    """The user's home; "" where there is none, or where it is the root of all paths."""
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
