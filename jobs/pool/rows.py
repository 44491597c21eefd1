"""Measured rows: which of them each worker has received, and writing them to the profile database."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from iosched.jobs.pool.messages import Rows
from iosched.models.errors import DeviceError, ExecutionError
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import CalibrationRow, Row

_RETRY_S = 0.5
_LAST_S = 60.0
"""Time that `close` retries while the database is locked or the disk is full."""


def is_of_gpu(row: Row) -> bool:
    """Whether a row was measured on a GPU."""
    return (_fields(row.device) or {}).get("kind") == "cuda"


def _fields(device: str) -> dict[str, Any] | None:
    """Parses a device key; None if it has an unknown format."""
    try:
        fields = json.loads(device)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def family_of(device: str) -> str:
    """Returns a device key without precision and threads, which depend on the search."""
    fields = _fields(device)
    if fields is None:
        return device
    kept = {key: value for key, value in fields.items() if key not in ("precision", "threads")}
    return json.dumps(kept, sort_keys=True)


class RowLog:
    """Rows by device family in order of arrival, with the read position of each worker.

    The first calibration row of a device is kept, since all its latencies are relative to that row.
    """

    def __init__(self) -> None:
        self._logs: dict[str, list[tuple[Row, str | None]]] = {}
        self._calibrated: set[str] = set()
        self._read: dict[tuple[str, str], int] = {}

    def begin(self, family: str, read: Callable[[], Sequence[Row]]) -> None:
        """Adds the rows of a family that the database has, when its first worker starts."""
        if family not in self._logs:
            self._logs[family] = []
            self.add([row for row in read() if family_of(row.device) == family], None)

    def add(self, rows: Sequence[Row], worker: str | None) -> Rows:
        """Adds a worker's rows; returns those to write to the database."""
        kept = tuple(row for row in rows if not (isinstance(row, CalibrationRow) and row.device in self._calibrated))
        self._calibrated.update(row.device for row in kept if isinstance(row, CalibrationRow))
        for row in kept:
            self._logs.setdefault(family_of(row.device), []).append((row, worker))
        return kept

    def unseen(self, worker: str, family: str) -> Rows:
        """Returns the rows since the last call for this worker, except the worker's own."""
        log = self._logs.get(family, [])
        position = self._read.get((worker, family), 0)
        self._read[worker, family] = len(log)
        return tuple(row for row, source in log[position:] if source != worker)


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
            try:
                count = writing.result()
                self._rows = self._rows[count:]
                self.n_written += count
            except (DeviceError, ExecutionError) as error:  # locked or out of space: retry
                self._again_s, problem = time.monotonic() + _RETRY_S, str(error)
        if self._writing is None and self._rows and time.monotonic() >= self._again_s:
            self._writing = self._thread.submit(self._write, self._rows)
        return problem

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
