"""Tracks which rows of the profile database each worker has received."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from iosched.jobs.pool.messages import Rows
from iosched.profiler.store.tables import CalibrationRow, Row


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
        self._yardsticks: set[str] = set()
        self._read: dict[tuple[str, str], int] = {}

    def has(self, family: str) -> bool:
        """Whether `begin` was called for a family."""
        return family in self._logs

    def begin(self, family: str, rows: Sequence[Row]) -> None:
        """Adds the rows of a family that the database has at the start."""
        self._logs[family] = []
        self.add([row for row in rows if family_of(row.device) == family], None)

    def add(self, rows: Sequence[Row], worker: str | None) -> Rows:
        """Adds a worker's rows; returns those to write to the database."""
        kept = tuple(row for row in rows if not (isinstance(row, CalibrationRow) and row.device in self._yardsticks))
        self._yardsticks.update(row.device for row in kept if isinstance(row, CalibrationRow))
        for row in kept:
            self._logs.setdefault(family_of(row.device), []).append((row, worker))
        return kept

    def unseen(self, worker: str, family: str) -> Rows:
        """Returns the rows since the last call for this worker, except the worker's own."""
        log = self._logs.get(family, [])
        position = self._read.get((worker, family), 0)
        self._read[worker, family] = len(log)
        return tuple(row for row, source in log[position:] if source != worker)
