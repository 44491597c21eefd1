"""Ctrl-C while a search runs: on a terminal it asks whether to write the best that was found so far."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from iosched.cli.output import quiet
from iosched.cli.progress import TerminalObserver


class AskOnce:
    """Holds the first Ctrl-C back until the stage being measured is done, then asks; a second one stops at once.

    Where nobody can be asked, since standard input or stderr is no terminal, Ctrl-C is left as it is.

    Args:
        bar: is taken off the terminal while the question is asked.
        what: what is there to be written.
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
        """A context in which the first Ctrl-C is held back."""
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
        """Asks whether to write the best found so far; any Ctrl-C from then on stops at once.

        Raises:
            KeyboardInterrupt: the answer is no, or Ctrl-C was pressed again.
        """
        self._asked, self.came = True, False
        with self._bar.paused():
            # Not click's own question: it writes to stdout, which is for data.
            click.echo(f"\nWrite {self._what} found so far? [y/N]: ", err=True, nl=False)
            answer = sys.stdin.readline().strip().lower()
        if answer not in ("y", "yes"):
            raise KeyboardInterrupt
        self.accepted = True
