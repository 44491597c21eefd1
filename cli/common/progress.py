"""Progress on a terminal, and Ctrl-C during a search."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from types import FrameType
from typing import TYPE_CHECKING, Protocol

import click

from iosched.cli.common.errors import printable
from iosched.cli.common.output import quiet
from iosched.jobs.observer import Observer
from iosched.models.log import logger

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID

_log = logger(__name__)


class Phases:
    """Log each phase of the work once."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        """Log the phase if it is new."""
        if text != self._last:
            self._last = text
            _log.debug("%s", text)


class TerminalObserver(Observer, Protocol):
    """Observer of progress that can pause drawing."""

    def paused(self) -> AbstractContextManager[None]:
        """A context without drawing, for a question on the terminal."""
        ...


class _SilentProgress:
    def __init__(self) -> None:
        self._phases = Phases()

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Log the phase only."""
        self._phases.say(text)

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task
        self._phases = Phases()

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Update the bar."""
        self._phases.say(text)
        description = description_for(text, self._bar.console.width)
        self._bar.update(self._task, completed=done, total=total, description=description)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar in a context."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


_COUNTS = 32
"""Width of the counts and the time left, up to 99999/99999."""
_WIDE, _MIDDLE = 100, 64
"""Least width of a terminal for a bar, and for the elapsed time."""


def bar_columns(width: int) -> tuple[ProgressColumn, ...]:
    """Columns of the progress display for a terminal of this width."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    return (
        TextColumn("{task.description}", markup=False),
        *([BarColumn(_bar_width(width))] if width >= _WIDE else []),
        MofNCompleteColumn(),
        *([TimeElapsedColumn()] if width >= _MIDDLE else []),
        _time_left(),
    )


def _time_left() -> ProgressColumn:
    """Time until the field `ends` of a task (`time.monotonic`), else an estimate if there is one."""
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
    """End of a budget that starts now (`time.monotonic`); None without a budget."""
    return None if budget_s is None else time.monotonic() + budget_s


def description_for(text: str, width: int) -> str:
    """Cut the description to the space next to `bar_columns`."""
    from rich.cells import cell_len, set_cell_size

    room = width - _COUNTS - (8 if width >= _MIDDLE else 0) - (_bar_width(width) + 1 if width >= _WIDE else 0)
    shown = printable(text)
    return shown if cell_len(shown) <= room else f"{set_cell_size(shown, room - 1).rstrip()}…"


def _bar_width(width: int) -> int:
    return min(width // 5, 40)


@contextmanager
def progress_bar(budget_s: float | None = None) -> Iterator[TerminalObserver]:
    """Observer that draws a bar on stderr; silent with `-q` or without a terminal.

    Args:
        budget_s: time limit of the work in seconds, or None.
    """
    if quiet() or not sys.stderr.isatty():
        yield _SilentProgress()
        return
    from rich.console import Console
    from rich.progress import Progress

    # Rare redraws take no core from measurements.
    console = Console(stderr=True)
    columns = bar_columns(console.width)
    with Progress(*columns, console=console, transient=True, refresh_per_second=2) as bar:
        yield _Bar(bar, bar.add_task("starting", total=None, ends=end_of(budget_s)))


class AskOnce:
    """On the first Ctrl-C, finish the current stage and ask whether to write the best result; the second one stops.

    Without a terminal to ask on, Ctrl-C is not handled.

    Args:
        bar: is hidden during the question.
        what: the result that can be written.
    """

    def __init__(self, bar: TerminalObserver, what: str = "the best schedule") -> None:
        self._bar = bar
        self._what = what
        self._asked = False
        self.can_come = sys.stdin.isatty() and sys.stderr.isatty() and not quiet()
        self.came = False
        self.accepted = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A context in which the first Ctrl-C is deferred."""
        if not self.can_come:
            yield
            return
        before = signal.signal(signal.SIGINT, self._hold)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.came or self._asked:
            raise KeyboardInterrupt
        self.came = True

    def ask(self) -> None:
        """Ask whether to write the best result so far; a further Ctrl-C stops at once.

        Raises:
            KeyboardInterrupt: the answer is no, or Ctrl-C was pressed again.
        """
        self._asked, self.came = True, False
        with self._bar.paused():
            # click's own prompt writes to stdout, which is for data
            click.echo(f"\nWrite {self._what} found so far? [y/N]: ", err=True, nl=False)
            answer = sys.stdin.readline().strip().lower()
        if answer not in ("y", "yes"):
            raise KeyboardInterrupt
        self.accepted = True
