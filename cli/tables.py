"""Tables for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iosched.cli.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def milliseconds(latency_us: float) -> str:
    """A latency in the unit that keeps it readable."""
    if latency_us < 1000:
        return f"{latency_us:.1f} µs"
    return f"{latency_us / 1000:.3f} ms"


def percent_more(ratio: float) -> str:
    """How much more than once something is: 1.25 is "+25.0%"."""
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f}%"  # no "-0.0"


def print_pairs(title: str, rows: Sequence[tuple[str, str]], *, to_stderr: bool) -> None:
    """Prints names and values, one row each; long values wrap on a terminal and stay whole in a pipe."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(_plain(f"  {name}"), _plain(value))
    console = _console(to_stderr)
    _show(console, title, table)


def print_columns(headers: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Prints a table on stdout; the first column is text, the others are numbers."""
    console = _console(to_stderr=False)
    _show(console, title, _columns(headers, rows))


def _show(console: Console, title: str | None, table: Table) -> None:
    """Prints without the blanks that rich fills a row's end with."""
    with console.capture() as captured:
        if title is not None:
            console.print(_plain(title), style="bold", soft_wrap=True)
        console.print(table)
    lines = captured.get().splitlines()
    console.file.write("".join(f"{line.rstrip()}\n" for line in lines))


def _columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for index, header in enumerate(headers):
        table.add_column(_plain(header), justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _plain(text: str) -> str:
    """Names are data: no markup, no escape codes."""
    from rich.markup import escape

    return escape(printable(text))


def _console(to_stderr: bool) -> Console:
    from rich.console import Console

    file = sys.stderr if to_stderr else sys.stdout
    # Without a terminal there is no width to keep to: a row stays one line, so that grep and awk work.
    width = None if file.isatty() else 10_000
    return Console(file=file, highlight=False, width=width, emoji=False)
