"""Tables for people, on stdout or stderr, from which nothing is ever cut off, however narrow the terminal."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO, TypeVar

from iosched.cli.common.errors import printable
from iosched.cli.common.output import width_of
from iosched.models.log import logger

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_log = logger(__name__)

Rows = Sequence[Sequence[str]]
T = TypeVar("T")
Columns = Sequence[tuple[str, Callable[[T], str]]]
"""The columns of a table of items: each has a header, and a function that returns the cell of an item."""

_GAP = 2  # blanks between columns
_LEAST_VALUE = 24
"""How many columns of a terminal values must have beside their names; where there are fewer, they stand below."""
_LEAST_WRAPPED = 16
"""How many a column must keep that is wrapped."""
_NO_TERMINAL = 10_000
"""Without a terminal there is no width to keep to: a row stays one line, so that grep and awk work."""


def print_pairs(title: str, rows: Sequence[tuple[str, str]], *, to_stderr: bool) -> None:
    """Prints a title and rows of a name and a value; long values wrap on a terminal and stay on one line in a pipe."""
    named = [(f"  {name}", value) for name, value in rows]
    _show(sys.stderr if to_stderr else sys.stdout, title, partial(_pairs, named))


def print_columns(headers: Sequence[str], rows: Rows, *, title: str | None = None, to_stderr: bool = False) -> None:
    """Prints a table, its first column aligned to the left as text and the others to the right as numbers.

    On a terminal that is too narrow, the widest column is wrapped between words; where that is not enough, each row
    becomes a list of names and values.
    """
    _show(sys.stderr if to_stderr else sys.stdout, title, partial(_columns, headers, rows))


def print_items(items: Sequence[T], columns: Columns[T], *, title: str | None = None, to_stderr: bool = False) -> None:
    """Prints a table with a row for each item, see `print_columns`."""
    rows = [[cell(item) for _, cell in columns] for item in items]
    print_columns([header for header, _ in columns], rows, title=title, to_stderr=to_stderr)


def _show(file: TextIO, title: str | None, drawn_on: Callable[[int], Iterator[RenderableType]]) -> None:
    """Prints the title and what is drawn on so many columns, without the blanks that rich puts at the end of a row.

    Rich draws into memory: where the reader of `file` has gone, it would end the process with an exit code of its own.
    """
    from rich.console import Console

    columns = width_of(file)
    width, is_terminal = (_NO_TERMINAL, None) if columns is None else (columns, True)
    drawn = io.StringIO()
    # The height means nothing here, but without one rich takes a terminal that knows no escapes to be 80 columns wide.
    console = Console(file=drawn, force_terminal=is_terminal, highlight=False, width=width, height=25, emoji=False)
    if title is not None:
        console.print(_plain(title), style="bold")
    for each in drawn_on(width):
        console.print(each)
    text = "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())
    _log.info("%s", _without_colours(text))
    file.write(text)


def _without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def _pairs(rows: Sequence[tuple[str, str]], width: int) -> Iterator[RenderableType]:
    """Names and values beside each other, or where there is too little room for that, each value below its name."""
    from rich.padding import Padding
    from rich.table import Table

    names, values = _widths(rows, 2)
    room = width - names - _GAP
    if room < min(_LEAST_VALUE, values):
        for name, value in rows:
            yield f"[bold]{_plain(name)}[/bold]"
            yield Padding(_plain(value), (0, 0, 0, 4))
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(_plain, row))
    yield table


def _columns(headers: Sequence[str], rows: Rows, width: int) -> Iterator[RenderableType]:
    widths = _widths([headers, *rows], len(headers))
    over = sum(widths) + _GAP * (len(widths) - 1) - width
    if over <= 0:
        yield _table(headers, rows)
        return
    widest = max(range(len(widths)), key=widths.__getitem__)
    room = widths[widest] - over
    words = (word for row in (headers, *rows) for word in row[widest].split())
    if room >= max(_LEAST_WRAPPED, *(_width(word) for word in words)):
        yield _table(headers, rows, wrapped=widest, room=room)
        return
    for first, *others in rows:
        yield f"[bold]{_plain(f'{headers[0]} {first}'.strip())}[/bold]"
        yield from _pairs(
            [(f"  {name}", value) for name, value in zip(headers[1:], others, strict=True) if value], width
        )


def _table(headers: Sequence[str], rows: Rows, *, wrapped: int | None = None, room: int | None = None) -> Table:
    """A table; its column `wrapped`, if any, is so wide as `room` and has several lines where it has to."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        is_wrapped = index == wrapped
        is_text = index == 0 or is_wrapped
        table.add_column(
            _plain(header),
            justify="left" if is_text else "right",
            no_wrap=not is_wrapped,
            width=room if is_wrapped else None,
        )
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _widths(rows: Rows, count: int) -> list[int]:
    """For each of so many columns the width of its widest cell."""
    return [max((_width(row[index]) for row in rows), default=0) for index in range(count)]


def _width(text: str) -> int:
    """How many columns of a terminal the longest line of a text takes."""
    from rich.cells import cell_len

    return max(map(cell_len, printable(text).splitlines()), default=0)


def _plain(text: str) -> str:
    """The text as rich prints it unchanged: what looks like markup or an escape code is part of a name."""
    from rich.markup import escape

    return escape(printable(text))
