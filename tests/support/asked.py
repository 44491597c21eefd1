"""A user who interrupts a job, and is asked what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Asked:
    """Comes when a test says so, and gives the answer of the test."""

    can_come = True

    def __init__(self, answer: bool) -> None:
        self.came = self.accepted = False
        self.times_asked = 0
        self._answer = answer

    @contextmanager
    def holding(self) -> Iterator[None]:
        yield

    def ask(self) -> None:
        self.times_asked += 1
        self.came, self.accepted = False, self._answer
        if not self._answer:
            raise KeyboardInterrupt
