"""Progress for people: a bar with time left on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from iosched.cli.errors import printable
from iosched.cli.output import quiet
from iosched.jobs.progress import Observer
from iosched.models.log import logger

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

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
        self._bar.update(self._task, completed=done, total=total, description=printable(text)[:60])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Takes the bar off the terminal until the context is left."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


def bar_columns() -> tuple[ProgressColumn, ...]:
    """What stands beside each other in a bar."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )


@contextmanager
def progress_bar() -> Iterator[TerminalObserver]:
    """An observer that draws a bar on stderr until the context is left, or nothing with `-q` or without a terminal."""
    if quiet() or not sys.stderr.isatty():
        yield _Silence()
        return
    from rich.console import Console
    from rich.progress import Progress

    # The bar is drawn anew seldom, so that it takes no core from what is being measured.
    with Progress(*bar_columns(), console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        yield _Bar(bar, bar.add_task("starting", total=None))
