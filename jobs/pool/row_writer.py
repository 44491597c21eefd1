"""Writes what workers measure to the profile database, in the order in which it came, for as long as that takes."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from iosched.jobs.pool.messages import Rows
from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.store.database import ProfileDatabase

_RETRY_S = 0.5
_LAST_S = 60.0
"""For so long a database that is locked, or on a full disk, is tried again once nothing else is left to do."""


class RowWriter:
    """A database on a thread of its own, so that nobody waits where another process keeps it locked.

    Attributes:
        n_added: how many rows were added, and `n_written` how many of them are in the database.
    """

    def __init__(self, path: Path | None) -> None:
        """Opens the database.

        Raises:
            UsageError: the file is no profile database.
            DeviceError: another process keeps it locked.
        """
        self._path = path
        self._thread = ThreadPoolExecutor(1, "profile database")
        self._database = self._thread.submit(ProfileDatabase, path).result()
        self._rows: Rows = ()
        self._writing: Future[int] | None = None
        self._again_s = 0.0
        self._is_closed = False
        self.n_added = self.n_written = 0

    def all_rows(self) -> Rows:
        """All rows that the database has; a file is read by a connection of its own, beside a write that waits."""
        if self._path is None:
            return self._thread.submit(lambda: tuple(self._database.rows())).result()
        with ProfileDatabase(self._path) as database:
            return tuple(database.rows())

    def add(self, rows: Rows) -> None:
        """Has rows written; returns at once."""
        self._rows += rows
        self.n_added += len(rows)

    def step(self) -> str | None:
        """Goes on writing; returns what is in the way of it, which is tried again.

        Raises:
            IoschedError: rows can never be written.
        """
        trouble = None
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            trouble = self._written(writing)
        if self._writing is None and self._rows and time.monotonic() >= self._again_s:
            self._writing = self._thread.submit(self._write, self._rows)
        return trouble

    def _written(self, writing: Future[int]) -> str | None:
        try:
            count = writing.result()
        except (DeviceError, ExecutionError) as error:  # locked, or no space left: either may pass
            self._again_s = time.monotonic() + _RETRY_S
            return str(error)
        self._rows = self._rows[count:]
        self.n_written += count
        return None

    def _write(self, rows: Rows) -> int:
        self._database.merge(rows)
        return len(rows)

    def close(self, last_s: float = _LAST_S) -> None:
        """Waits until all is written; may be called twice.

        Raises:
            IoschedError: what kept it from being written; what is left is lost.
        """
        if self._is_closed:
            return
        self._is_closed = True
        until = time.monotonic() + last_s
        try:
            while self._rows:
                trouble = self.step()
                if trouble is not None and time.monotonic() > until:
                    raise ExecutionError(trouble)
                if self._writing is not None:
                    self._writing.exception()  # waits
                else:
                    time.sleep(_RETRY_S / 5)
        finally:
            self._thread.submit(self._database.close)
            self._thread.shutdown()
