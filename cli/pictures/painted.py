"""Colours the operators in a text by their models, for a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import cycle

import click

from iosched.cli.pictures.looks import Look

_COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def has_colours(environment: Mapping[str, str]) -> bool:
    """Whether a terminal is to be given colours: not with NO_COLOR, and not if it knows none."""
    return not environment.get("NO_COLOR") and environment.get("TERM") not in ("dumb", "unknown")


def painted(text: str, looks: Mapping[str, Look]) -> str:
    """The text with the names of operators in the colours of their models; as it is where there is one model.

    Args:
        text: words between blanks; one that is an operator's name is coloured.
        looks: how operators are shown, by their names.
    """
    models = dict.fromkeys(look.models for look in looks.values() if look.models)
    colours = dict(zip(models, cycle(_COLOURS), strict=False))

    def word(match: re.Match[str]) -> str:
        look = looks.get(match[0])
        return match[0] if look is None or not look.models else click.style(match[0], fg=colours[look.models])

    return re.sub(r"\S+", word, text) if models else text
