"""Tables that fit into a terminal of any width without losing text."""

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
"""Headers of a table, each with the function that makes an item's cell."""

_GAP = 2  # blanks between columns
_LEAST_VALUE = 24
"""Least width of values next to their names; below that they are on separate lines."""
_LEAST_WRAPPED = 16
"""Least width of a wrapped column."""
_NO_TERMINAL = 10_000
"""Width without a terminal: a row stays one line, for grep and awk."""


def print_pairs(title: str, rows: Sequence[tuple[str, str]], *, to_stderr: bool) -> None:
    """Print a title and rows of a name and a value; values wrap on a terminal and stay on one line in a pipe."""
    named = [(f"  {name}", value) for name, value in rows]
    _show(sys.stderr if to_stderr else sys.stdout, title, partial(_pairs, named))


def print_columns(headers: Sequence[str], rows: Rows, *, title: str | None = None, to_stderr: bool = False) -> None:
    """Print a table with its first column left-aligned and the others right-aligned.

    On a narrow terminal, the widest column wraps; if that is not enough, each row becomes a list of names and values.
    """
    _show(sys.stderr if to_stderr else sys.stdout, title, partial(_columns, headers, rows))


def print_items(items: Sequence[T], columns: Columns[T], *, title: str | None = None, to_stderr: bool = False) -> None:
    """Print a table with a row for each item; see `print_columns`."""
    rows = [[cell(item) for _, cell in columns] for item in items]
    print_columns([header for header, _ in columns], rows, title=title, to_stderr=to_stderr)


def _show(file: TextIO, title: str | None, drawn_on: Callable[[int], Iterator[RenderableType]]) -> None:
    """Print the title and what is drawn, without trailing blanks.

    Rich draws into memory: on a closed pipe it would end the process with its own exit code.
    """
    from rich.console import Console

    columns = width_of(file)
    width, is_terminal = (_NO_TERMINAL, None) if columns is None else (columns, True)
    drawn = io.StringIO()
    # Without a height, rich assumes 80 columns for a terminal without escape codes.
    console = Console(file=drawn, force_terminal=is_terminal, highlight=False, width=width, height=25, emoji=False)
    if title is not None:
        console.print(_plain(title), style="bold")
    for each in drawn_on(width):
        console.print(each)
    text = "".join(f"{line.rstrip()}\n" for line in drawn.getvalue().splitlines())
    _log.info("%s", re.sub(r"\x1b\[[\d;]*m", "", text))  # without colours
    file.write(text)


def _pairs(rows: Sequence[tuple[str, str]], width: int) -> Iterator[RenderableType]:
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
    return [max((_width(row[index]) for row in rows), default=0) for index in range(count)]


def _width(text: str) -> int:
    """Terminal columns of the longest line."""
    from rich.cells import cell_len

    return max(map(cell_len, printable(text).splitlines()), default=0)


def _plain(text: str) -> str:
    """Escape rich's markup and control characters."""
    from rich.markup import escape

    return escape(printable(text))
