"""How wide a terminal is, and text that is wrapped to it between words; anywhere else, text stays as it is."""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TextIO

import click

from iosched.cli.errors import printable

_USUAL = 80


def say(text: str) -> None:
    """Prints text for people on stdout."""
    click.echo(fitted(printable(text), width_of(sys.stdout)))


def width_of(stream: TextIO) -> int | None:
    """How many columns a terminal has: as the environment says, or else the terminal, or else 80.

    None where the stream is no terminal.
    """
    if not stream.isatty():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and 0 < len(given) < 6 and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or _USUAL
    except OSError:  # io.UnsupportedOperation is one
        return _USUAL


def fitted(text: str, width: int | None) -> str:
    """Text whose lines are wrapped between words to so many columns, each as far indented as it is; None is no limit.

    A word that is longer than a line, such as a path, stays in one piece.
    """
    if width is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _wrapped(line, width, _indent(line)))


def fitted_line(line: str, width: int, indent: str) -> str:
    """One line, wrapped likewise, with this before all parts but the first."""
    return "\n".join(_wrapped(line, width, indent))


def _indent(line: str) -> str:
    return " " * (len(line) - len(line.lstrip(" ")))


def _wrapped(line: str, width: int, indent: str) -> list[str]:
    if len(line) <= width:
        return [line]
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=indent,
        expand_tabs=False,
        replace_whitespace=False,
        break_long_words=False,
        break_on_hyphens=False,
    )
