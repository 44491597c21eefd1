"""Which rows of the profile database each worker has seen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    return json.dumps(
        {key: value for key, value in fields.items() if key not in ("precision", "threads")}, sort_keys=True
    )


@dataclass
class _Reader:
    family: str
    position: int = 0


class RowLog:
    """Rows in the order in which they came, a log for each family of devices, and how far each worker has read.

    The first yardstick of a device stays: all its latencies are relative to that one.
    """

    def __init__(self) -> None:
        self._logs: dict[str, list[tuple[Row, str | None]]] = {}
        self._yardsticks: set[str] = set()
        self._readers: dict[str, _Reader] = {}

    def has(self, family: str) -> bool:
        """Whether the rows that the database had of a family are here."""
        return family in self._logs

    def begin(self, family: str, rows: Sequence[Row]) -> None:
        """The rows that the database had of a family before anything was measured."""
        self._logs.setdefault(family, [])
        self.add(rows, None)

    def open(self, worker: str, family: str) -> None:
        """A worker that has seen nothing."""
        self._readers[worker] = _Reader(family)

    def close(self, worker: str) -> None:
        """The worker has ended."""
        self._readers.pop(worker, None)

    def add(self, rows: Sequence[Row], worker: str | None) -> tuple[Row, ...]:
        """Takes rows that a worker has measured; returns those that the database is to keep."""
        kept = tuple(row for row in rows if not (isinstance(row, YardstickRow) and row.device in self._yardsticks))
        self._yardsticks.update(row.device for row in kept if isinstance(row, YardstickRow))
        for row in kept:
            self._logs.setdefault(family_of(row.device), []).append((row, worker))
        return kept

    def unseen(self, worker: str) -> tuple[Row, ...]:
        """What others have measured since this was called last for that worker, and what was known before."""
        if (reader := self._readers.get(worker)) is None:
            return ()
        log = self._logs.get(reader.family, [])
        found = tuple(row for row, source in log[reader.position :] if source != worker)
        reader.position = len(log)
        return found
