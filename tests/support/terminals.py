"""Terminals of any width for what commands print, and a check that nothing is lost on them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import pytest
from rich.cells import cell_len

from iosched.cli.common.errors import printable

WIDTHS = (40, 60, 80, 120, 200)
_SHORT = 24  # a word of up to this many columns stays in one piece


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(print_table: Callable[[Terminal], None], width: int, patch: pytest.MonkeyPatch, term: str) -> str:
    """The text on a terminal of `width` columns."""
    patch.setenv("COLUMNS", str(width))
    patch.setenv("TERM", term)
    patch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    print_table(terminal)
    return terminal.getvalue()


def assert_nothing_is_lost(text: str, cells: Iterable[str], width: int) -> None:
    """Every word of every cell is there, short ones in one piece, and no line is longer than the terminal is wide."""
    wide = [line for line in text.splitlines() if cell_len(line) > width]
    assert not wide, f"{width} columns: {wide[0]!r}"
    words = {word for cell in cells for word in printable(cell).split()}
    squeezed = "".join(text.split())
    lost = sorted(word for word in words if word not in squeezed)
    assert not lost, f"{width} columns, {lost[0]!r} is lost in:\n{text}"
    broken = sorted(word for word in words if cell_len(word) <= _SHORT and word not in text)
    assert not broken, f"{width} columns, {broken[0]!r} is broken in:\n{text}"
