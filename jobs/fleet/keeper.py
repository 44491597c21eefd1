"""Writes what workers measure to the profile database, in the order in which it came, for as long as that takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Thread

from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.store.database import ProfileDatabase

Action = Callable[[ProfileDatabase], None]

RETRY_S = 0.5
LAST_S = 60.0
"""For so long a database that is locked, or on a full disk, is tried again once nothing else is left to do."""


class Keeper:
    """A thread that has the database, so that nobody else waits where another process keeps it locked.

    Args:
        opened: opens the database; is called on that thread.
        troubled: is called on that thread, each time that something could not be done, with why, and whether it will be
            tried again.
    """

    def __init__(
        self,
        opened: Callable[[], ProfileDatabase],
        troubled: Callable[[Exception, bool], None],
        retry_s: float = RETRY_S,
        last_s: float = LAST_S,
    ) -> None:
        self._opened, self._troubled = opened, troubled
        self._retry_s, self._last_s = retry_s, last_s
        self._actions: SimpleQueue[Action | None] = SimpleQueue()
        self._until_s: float | None = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._run, name="profile database of the fleet", daemon=True)
        self._thread.start()

    def do(self, action: Action) -> None:
        """Has the thread call `action` with the database, after all that was asked before; returns at once."""
        self._actions.put(action)

    def close(self) -> None:
        """Waits until all is done.

        Raises:
            Exception: what kept it from being done; what is left is lost.
        """
        self._until_s = time.monotonic() + self._last_s
        self._actions.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        database: list[ProfileDatabase] = []
        self._tried(lambda: database.append(self._opened()))
        while (action := self._actions.get()) is not None:
            if self._error is None:
                self._tried(partial(action, database[0]))
        for each in database:
            each.close()

    def _tried(self, do: Callable[[], None]) -> None:
        """Does something until it succeeds, or never will."""
        while True:
            try:
                do()
            except (DeviceError, ExecutionError) as error:  # locked, or no space left: either may pass
                if self._until_s is not None and time.monotonic() > self._until_s:
                    self._give_up(error)
                    return
                self._troubled(error, True)
                time.sleep(self._retry_s)
            except Exception as error:  # noqa: BLE001 - whoever waits for what this thread does has to hear of it
                self._give_up(error)
                return
            else:
                return

    def _give_up(self, error: Exception) -> None:
        self._error = error
        self._troubled(error, False)
