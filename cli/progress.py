"""Progress for people: a bar with time left on a terminal, silence in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

from iosched.cli.errors import printable
from iosched.cli.output import quiet

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Observer(Protocol):
    """What long work reports to."""

    def progress(self, done: int, total: int | None, text: str) -> None:
        """`done` steps of `total` (None: not known yet) are behind us; `text` says what is going on."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """While inside, the terminal is free for a question."""
        ...


class _Silence:
    def progress(self, done: int, total: int | None, text: str) -> None:
        """Says nothing."""

    def paused(self) -> AbstractContextManager[None]:
        """Nothing is in the way."""
        return nullcontext()


class _Bar:
    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def progress(self, done: int, total: int | None, text: str) -> None:
        """Moves the bar."""
        self._bar.update(self._task, completed=done, total=total, description=printable(text)[:60])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Takes the bar off the terminal meanwhile."""
        self._bar.stop()
        try:
            yield
        finally:
            self._bar.start()


@contextmanager
def progress_bar() -> Iterator[Observer]:
    """An observer that draws on stderr while the work inside the `with` lasts."""
    if quiet() or not sys.stderr.isatty():
        yield _Silence()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    # Few redraws: the bar must not take a core from what is being measured.
    with Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        yield _Bar(bar, bar.add_task("starting", total=None))
