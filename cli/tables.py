"""Tables for people, on stdout or stderr."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from iosched.cli.errors import printable
from iosched.models.log import logger

if TYPE_CHECKING:
    from rich.table import Table

_log = logger(__name__)


def print_pairs(title: str, rows: Sequence[tuple[str, str]], *, to_stderr: bool) -> None:
    """Prints a title and rows of a name and a value; long values wrap on a terminal and stay on one line in a pipe."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(_plain(f"  {name}"), _plain(value))
    _show(sys.stderr if to_stderr else sys.stdout, title, table)


def print_columns(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None, to_stderr: bool = False
) -> None:
    """Prints a table, its first column aligned to the left as text and the others to the right as numbers."""
    _show(sys.stderr if to_stderr else sys.stdout, title, _columns(headers, rows))


def _show(file: TextIO, title: str | None, table: Table) -> None:
    """Prints the title and the table, without the blanks that rich puts at the end of a row.

    Rich draws into memory: where the reader of `file` has gone, it would end the process with an exit code of its own.
    """
    from rich.console import Console

    # Without a terminal there is no width to keep to: a row stays one line, so that grep and awk work.
    width, is_terminal = (None, True) if file.isatty() else (10_000, None)
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=is_terminal, highlight=False, width=width, emoji=False)
    if title is not None:
        console.print(_plain(title), style="bold", soft_wrap=True)
    console.print(table)
    text = "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())
    _log.info("%s", _without_colours(text))
    file.write(text)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def _columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(_plain(header), justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _plain(text: str) -> str:
    """The text as rich prints it unchanged: what looks like markup or an escape code is part of a name."""
    from rich.markup import escape

    return escape(printable(text))
