"""Progress for people: a bar with time left on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from iosched.cli.errors import printable
from iosched.cli.output import quiet
from iosched.jobs.observer import Observer
from iosched.models.log import logger

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID

_log = logger(__name__)


class Phases:
    """Logs what is being done, once for as long as it stays the same."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        """Takes what is being done."""
        if text != self._last:
            self._last = text
            _log.debug("%s", text)


class TerminalObserver(Observer, Protocol):
    """What long work reports its progress to, and what leaves the terminal free for a while."""

    def paused(self) -> AbstractContextManager[None]:
        """A context in which nothing is drawn, so that a question can be asked on the terminal."""
        ...


class _Silence:
    def __init__(self) -> None:
        self._phases = Phases()

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says nothing, but to the log."""
        self._phases.say(text)

    def paused(self) -> AbstractContextManager[None]:
        """Does nothing: nothing is drawn at any time."""
        return nullcontext()


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._phases = Phases()

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Moves the bar."""
        self._phases.say(text)
        description = description_for(text, self._bar.console.width)
        self._bar.update(self._task, completed=done, total=total, description=description)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Takes the bar off the terminal until the context is left."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


_COUNTS = 32
"""How many columns the counts and the time left take, with blanks around them, up to 99999 of 99999."""
_WIDE, _MIDDLE = 100, 64
"""From so many columns of a terminal on there is room for a bar, and for how long the work has gone on."""


def bar_columns(width: int) -> tuple[ProgressColumn, ...]:
    """What stands beside each other on a terminal of so many columns; numbers are there on each."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    return (
        TextColumn("{task.description}", markup=False),
        *([BarColumn(_bar_width(width))] if width >= _WIDE else []),
        MofNCompleteColumn(),
        *([TimeElapsedColumn()] if width >= _MIDDLE else []),
        _time_left(),
    )


def _time_left() -> ProgressColumn:
    """The time until the field `ends` of a task, by `time.monotonic`; without it an estimate, if there is one."""
    from rich.progress import ProgressColumn
    from rich.text import Text

    class TimeLeft(ProgressColumn):
        def render(self, task: Task) -> Text:
            ends = task.fields.get("ends")
            estimate_s = None if task.finished else task.time_remaining  # other work may follow
            left_s = estimate_s if ends is None else max(ends - time.monotonic(), 0.0)
            return Text("" if left_s is None else f"left {timedelta(seconds=int(left_s))}")

    return TimeLeft()


def end_of(budget_s: float | None) -> float | None:
    """The end of a budget that starts now, by `time.monotonic`; None without a budget."""
    return None if budget_s is None else time.monotonic() + budget_s


def description_for(text: str, width: int) -> str:
    """As much of the words before the bar as there is room for beside `bar_columns`."""
    from rich.cells import cell_len, set_cell_size

    room = width - _COUNTS - (8 if width >= _MIDDLE else 0) - (_bar_width(width) + 1 if width >= _WIDE else 0)
    shown = printable(text)
    return shown if cell_len(shown) <= room else f"{set_cell_size(shown, room - 1).rstrip()}…"


def _bar_width(width: int) -> int:
    return min(width // 5, 40)


@contextmanager
def progress_bar(budget_s: float | None = None) -> Iterator[TerminalObserver]:
    """An observer that draws a bar on stderr until the context is left, or nothing with `-q` or without a terminal.

    Args:
        budget_s: how many seconds the work may take; None for no limit.
    """
    if quiet() or not sys.stderr.isatty():
        yield _Silence()
        return
    from rich.console import Console
    from rich.progress import Progress

    # The bar is drawn anew seldom, so that it takes no core from what is being measured.
    console = Console(stderr=True)
    columns = bar_columns(console.width)
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bar:
        yield _Bar(bar, bar.add_task("starting", total=None, ends=end_of(budget_s)))
