"""Which rows of the profile database each worker has seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from iosched.jobs.pool.messages import Rows
from iosched.profiler.store.tables import Row, YardstickRow


def is_of_gpu(row: Row) -> bool:
    """Whether a row was measured on a GPU."""
    return (_fields(row.device) or {}).get("kind") == "cuda"


def _fields(device: str) -> dict[str, Any] | None:
    """What a device key says; None where it is not of this iosched."""
    try:
        fields = json.loads(device)
    except ValueError:
        return None
    return fields if isinstance(fields, dict) else None


def family_of(device: str) -> str:
    """What device keys share that differ only in how a device is used: in the precision and the threads of a search."""
    fields = _fields(device)
    if fields is None:
        return device
    kept = {key: value for key, value in fields.items() if key not in ("precision", "threads")}
    return json.dumps(kept, sort_keys=True)


class RowLog:
    """Rows in the order in which they came, by families of devices, and how far each worker has read.

    The first yardstick of a device stays: all its latencies are relative to that one.
    """

    def __init__(self) -> None:
        self._logs: dict[str, list[tuple[Row, str | None]]] = {}
        self._yardsticks: set[str] = set()
        self._read: dict[tuple[str, str], int] = {}

    def has(self, family: str) -> bool:
        """Whether the rows that the database had of a family are here."""
        return family in self._logs

    def begin(self, family: str, rows: Sequence[Row]) -> None:
        """Takes the rows that the database had of a family before anything was measured."""
        self._logs[family] = []
        self.add([row for row in rows if family_of(row.device) == family], None)

    def add(self, rows: Sequence[Row], worker: str | None) -> Rows:
        """Takes rows that a worker has measured; returns those that the database is to keep."""
        kept = tuple(row for row in rows if not (isinstance(row, YardstickRow) and row.device in self._yardsticks))
        self._yardsticks.update(row.device for row in kept if isinstance(row, YardstickRow))
        for row in kept:
            self._logs.setdefault(family_of(row.device), []).append((row, worker))
        return kept

    def unseen(self, worker: str, family: str) -> Rows:
        """What others have measured since this was called last for that worker, and what was known before."""
        log = self._logs.get(family, [])
        position = self._read.get((worker, family), 0)
        self._read[worker, family] = len(log)
        return tuple(row for row, source in log[position:] if source != worker)
