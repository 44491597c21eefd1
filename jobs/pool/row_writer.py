"""Writes measured rows to the profile database, in order of arrival."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from iosched.jobs.pool.messages import Rows
from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.store.database import ProfileDatabase

_RETRY_S = 0.5
_LAST_S = 60.0
"""How long `close` retries while the database is locked or the disk is full."""


class RowWriter:
    """Writes on its own thread, so that a locked database does not block the driver.

    Attributes:
        n_added: number of added rows.
        n_written: number of rows in the database.
    """

    def __init__(self, path: Path | None) -> None:
        """Opens the database.

        Raises:
            UsageError: the file is not a profile database.
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
        """Returns all rows. A file is read over a separate connection, so that pending writes do not block."""
        if self._path is None:
            return self._thread.submit(lambda: tuple(self._database.rows())).result()
        with ProfileDatabase(self._path) as database:
            return tuple(database.rows())

    def add(self, rows: Rows) -> None:
        """Queues rows; returns at once."""
        self._rows += rows
        self.n_added += len(rows)

    def step(self) -> str | None:
        """Continues writing; returns the text of a temporary error, after which the write is retried.

        Raises:
            IoschedError: the rows can never be written.
        """
        problem = None
        if self._writing is not None and self._writing.done():
            writing, self._writing = self._writing, None
            problem = self._finish_write(writing)
        if self._writing is None and self._rows and time.monotonic() >= self._again_s:
            self._writing = self._thread.submit(self._write, self._rows)
        return problem

    def _finish_write(self, writing: Future[int]) -> str | None:
        try:
            count = writing.result()
        except (DeviceError, ExecutionError) as error:  # locked or out of space: retry
            self._again_s = time.monotonic() + _RETRY_S
            return str(error)
        self._rows = self._rows[count:]
        self.n_written += count
        return None

    def _write(self, rows: Rows) -> int:
        self._database.merge(rows)
        return len(rows)

    def close(self, last_s: float = _LAST_S) -> None:
        """Waits until all rows are written. Idempotent.

        Raises:
            IoschedError: some rows could not be written and are lost.
        """
        if self._is_closed:
            return
        self._is_closed = True
        until = time.monotonic() + last_s
        try:
            while self._rows:
                problem = self.step()
                if problem is not None and time.monotonic() > until:
                    raise ExecutionError(problem)
                if self._writing is not None:
                    self._writing.exception()  # waits
                else:
                    time.sleep(_RETRY_S / 5)
        finally:
            self._thread.submit(self._database.close)
            self._thread.shutdown()
