"""What calls of a worker say, kept until the child process has it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class Outbox:
    """Numbered lines, which any thread adds and one event loop takes.

    Whoever takes says how far it has come, so that an answer which gets lost on its way is given again.
    """

    def __init__(self) -> None:
        """Begins with nothing, in the event loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._failure: Exception | None = None

    def add(self, line: bytes) -> None:
        """Adds a line; from any thread."""
        self._loop.call_soon_threadsafe(self._add, line)

    def fail(self, failure: Exception) -> None:
        """Has `after` raise this once all lines are taken; from any thread."""
        self._loop.call_soon_threadsafe(self._fail, failure)

    async def after(self, number: int, most_s: float) -> list[bytes]:
        """The lines after the first `number` ones; waits until there are some, at most so long.

        Raises:
            Exception: what `fail` was given; there are no lines.
        """
        while self._lines and self._dropped < number:
            self._lines.popleft()
            self._dropped += 1
        if not self._lines and self._failure is None:
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), most_s)
        if not self._lines and self._failure is not None:
            raise self._failure
        return list(self._lines)

    def _add(self, line: bytes) -> None:
        self._lines.append(line)
        self._arrived.set()

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._arrived.set()
