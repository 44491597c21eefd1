"""The profile database: what was measured on which device, kept between runs and shared by processes.

SQLite in WAL mode; one transaction for each measurement, so a killed search loses at most the one it was writing.
A file that is not ours, is damaged or was written by a newer iosched is refused and left as it is.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol

from iosched.models.errors import DeviceError, IoschedError, UsageError
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.rows import (
    CHOICE_COLUMNS,
    COLUMNS,
    choice_line,
    measurement_line,
    measurement_of,
    measurement_row,
    parsed_line,
)

ENVIRONMENT_VARIABLE = "IOSCHED_PROFILE_DB"
IN_MEMORY = ":memory:"
APPLICATION_ID = 0x494F5364  # "IOSd": marks an SQLite file as ours
BUSY_TIMEOUT_SECONDS = 30.0

# Entry k brings a file of schema version k to version k + 1. Entries are only ever added.
MIGRATIONS: tuple[str, ...] = (
    # No samples and no latency: the device cannot run the thing.
    """
    CREATE TABLE measurement (
        device TEXT NOT NULL,
        signature TEXT NOT NULL,
        median REAL,
        low REAL,
        high REAL,
        samples BLOB NOT NULL CHECK (LENGTH(samples) % 8 = 0),
        unit TEXT NOT NULL,
        measured_at TEXT NOT NULL,
        PRIMARY KEY (device, signature)
    ) STRICT, WITHOUT ROWID
    """,
    # What measurements were taken with, where a device offers several ways to do the same (cuDNN's plans).
    """
    CREATE TABLE choice (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (device, key)
    ) STRICT, WITHOUT ROWID
    """,
    # How fast a GPU was allowed to run: NULL where nobody looked.
    "ALTER TABLE measurement ADD COLUMN clock_mhz INTEGER",
    "ALTER TABLE measurement ADD COLUMN throttled_by TEXT",
    # Plans of cuDNN as it serializes them, so that they need not be built again.
    """
    CREATE TABLE plan (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (device, key, name)
    ) STRICT
    """,
)

_WAY_OUT = (
    f"Name another file with --profile-db or {ENVIRONMENT_VARIABLE}, or keep nothing with --profile-db {IN_MEMORY}"
)
_PLACES = ", ".join("?" * len(COLUMNS.split(",")))


@dataclass(frozen=True)
class DeviceStats:
    """What is known about one device."""

    device: str
    measurements: int
    samples: int
    oldest: datetime
    newest: datetime


@dataclass(frozen=True)
class DatabaseStats:
    """What a database holds. `path` is None for one in memory; `nbytes` is its size."""

    path: Path | None
    nbytes: int
    devices: tuple[DeviceStats, ...]

    @property
    def measurements(self) -> int:
        """Measurements of all devices."""
        return sum(device.measurements for device in self.devices)


def default_path(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where the database lives unless a path is given; None where the environment asks for one in memory."""
    chosen = (os.environ if environ is None else environ).get(ENVIRONMENT_VARIABLE)
    if chosen == IN_MEMORY:
        return None
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("iosched", appauthor=False)) / "profile.sqlite"


def device_key(kind: str, name: str, *, precision: str, threads: int, versions: Mapping[str, str]) -> str:
    """Canonical text of everything beside the stage that changes a latency.

    Args:
        kind: "cpu" or "cuda".
        name: the device's own name ("NVIDIA H100").
        precision: numpy name of the arithmetic ("float32").
        threads: worker threads or streams that stages may use.
        versions: runtime and libraries ("onnxruntime": "1.31.1").
    """
    fields = {"kind": kind, "name": name, "precision": precision, "threads": threads, "versions": dict(versions)}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class MeasurementStore(Protocol):
    """What a cost model asks of a profile database."""

    def get(self, signature: str, device: str) -> Measurement | None:
        """The newest measurement of `signature` on `device`, or None."""
        ...

    def put(self, signature: str, device: str, measurement: Measurement) -> None:
        """Keeps `measurement` in place of an earlier one."""
        ...


class ProfileDatabase:
    """Measurements by (signature, device).

    One object belongs to one thread and one process; open another on the same path for each further one.
    """

    def __init__(self, path: Path | str | None, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Opens the database at `path`, made with its folder where missing; None or ":memory:" keeps it in memory.

        Raises:
            UsageError: where the file is damaged, foreign or newer than this iosched, or its folder cannot be written.
            DeviceError: where the disk is full or another process keeps the file locked.
        """
        self.path = None if path is None or str(path) == IN_MEMORY else Path(path).expanduser()
        self._clock = clock
        with _explained(self.path):
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                IN_MEMORY if self.path is None else self.path, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None
            )
            try:
                _prepare(self._connection, self.path)
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> ProfileDatabase:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; nothing is lost without it."""
        self._connection.close()

    def get(self, signature: str, device: str) -> Measurement | None:
        """The newest measurement of `signature` on `device`, or None.

        Raises:
            UsageError: where the file is damaged.
        """
        with _explained(self.path):
            row = self._connection.execute(
                "SELECT median, low, high, samples, clock_mhz, throttled_by FROM measurement"
                " WHERE device = ? AND signature = ?",
                (device, signature),
            ).fetchone()
        return None if row is None else measurement_of(*row)

    def put(self, signature: str, device: str, measurement: Measurement) -> None:
        """Keeps `measurement` in place of an earlier one; on disk (short of a power cut) when this returns.

        Raises:
            UsageError: where the file is damaged or cannot be written.
            DeviceError: where the disk is full or another process keeps the file locked.
        """
        with _explained(self.path):
            self._connection.execute(
                f"INSERT OR REPLACE INTO measurement ({COLUMNS}) VALUES ({_PLACES})",
                measurement_row(signature, device, measurement, self._clock()),
            )

    def choice(self, key: str, device: str) -> str | None:
        """What was chosen under `key` on `device`: measurements that are known were taken with it.

        Raises:
            UsageError: where the file is damaged.
        """
        with _explained(self.path):
            row = self._connection.execute(
                "SELECT value FROM choice WHERE device = ? AND key = ?", (device, key)
            ).fetchone()
        return None if row is None else str(row[0])

    def choose(self, key: str, device: str, value: str) -> str:
        """Keeps `value` unless something is chosen already (another process may have been faster); returns what holds.

        Raises:
            UsageError: where the file is damaged or cannot be written.
            DeviceError: where the disk is full or another process keeps the file locked.
        """
        with _explained(self.path):
            self._connection.execute(
                "INSERT INTO choice (device, key, value) VALUES (?, ?, ?) ON CONFLICT (device, key) DO NOTHING",
                (device, key, value),
            )
        held = self.choice(key, device)
        return value if held is None else held

    def plan(self, key: str, name: str, device: str) -> bytes | None:
        """The serialized plan `name` for `key` on `device`, or None.

        Raises:
            UsageError: where the file is damaged.
        """
        with _explained(self.path):
            row = self._connection.execute(
                "SELECT content FROM plan WHERE device = ? AND key = ? AND name = ?", (device, key, name)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def keep_plan(self, key: str, name: str, device: str, content: bytes) -> None:
        """Keeps a serialized plan; `export_lines` leaves it out, since it can be built again.

        Raises:
            UsageError: where the file is damaged or cannot be written.
            DeviceError: where the disk is full or another process keeps the file locked.
        """
        with _explained(self.path):
            self._connection.execute("INSERT OR REPLACE INTO plan VALUES (?, ?, ?, ?)", (device, key, name, content))

    def stats(self) -> DatabaseStats:
        """Counts for each device, sorted by device; O(rows)."""
        with _explained(self.path):
            rows = self._connection.execute(
                "SELECT device, COUNT(*), SUM(LENGTH(samples)) / 8, MIN(measured_at), MAX(measured_at)"
                " FROM measurement GROUP BY device ORDER BY device"
            ).fetchall()
            ((nbytes,),) = self._connection.execute(
                "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            ).fetchall()
        devices = tuple(
            DeviceStats(device, count, samples, datetime.fromisoformat(oldest), datetime.fromisoformat(newest))
            for device, count, samples, oldest, newest in rows
        )
        return DatabaseStats(self.path, nbytes, devices)

    def clear(self, device: str | None = None) -> int:
        """Forgets the measurements of `device`, or all; returns how many, and gives their space back."""
        with _explained(self.path):
            where, values = ("", ()) if device is None else (" WHERE device = ?", (device,))
            removed = self._connection.execute(f"DELETE FROM measurement{where}", values).rowcount
            self._connection.execute(f"DELETE FROM choice{where}", values)
            self._connection.execute(f"DELETE FROM plan{where}", values)
            self._connection.execute("VACUUM")
        return removed

    def export_lines(self) -> Iterator[str]:
        """Every choice, then every measurement, as one line of JSON without the newline, sorted by device and key."""
        with _explained(self.path):
            for row in self._connection.execute("SELECT device, key, value FROM choice ORDER BY device, key"):
                yield choice_line(*row)
            for row in self._connection.execute(f"SELECT {COLUMNS} FROM measurement ORDER BY device, signature"):
                yield measurement_line(row)

    def import_lines(self, lines: Iterable[str]) -> int:
        """Takes over lines of `export_lines`, all or none; of two for one key the newer stays. Returns how many came.

        Of choices the one that is there stays: the measurements beside it were taken with it.

        Raises:
            UsageError: naming the first line that is no measurement; nothing was imported then.
        """
        parsed = [parsed_line(number, line) for number, line in enumerate(lines, 1) if line.strip()]
        rows = [row for row in parsed if len(row) > CHOICE_COLUMNS]
        with _explained(self.path), _transaction(self._connection):
            before = self._connection.total_changes
            self._connection.executemany(
                "INSERT INTO choice (device, key, value) VALUES (?, ?, ?) ON CONFLICT (device, key) DO NOTHING",
                [row for row in parsed if len(row) == CHOICE_COLUMNS],
            )
            self._connection.executemany(
                f"INSERT INTO measurement ({COLUMNS}) VALUES ({_PLACES})"
                " ON CONFLICT (device, signature) DO UPDATE SET median = excluded.median, low = excluded.low,"
                " high = excluded.high, samples = excluded.samples, unit = excluded.unit,"
                " measured_at = excluded.measured_at, clock_mhz = excluded.clock_mhz,"
                " throttled_by = excluded.throttled_by WHERE excluded.measured_at > measured_at",
                rows,
            )
            return self._connection.total_changes - before


def _prepare(connection: sqlite3.Connection, path: Path | None) -> None:
    """Checks whose file it is before anything is written to it, then brings it to the newest schema."""
    if _version(connection, path) < len(MIGRATIONS):
        with _transaction(connection):
            # Another process may have been faster; what counts is the version under the lock.
            for index in range(_version(connection, path), len(MIGRATIONS)):
                connection.execute(MIGRATIONS[index])
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    _switch_to_wal(connection)
    # Survives a killed process, if not the last moment before a power cut.
    connection.execute("PRAGMA synchronous = NORMAL")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Makes the file, once and for all connections, one with a write-ahead log.

    The switch needs the file for itself and fails at once where it does not have it, whatever the connection's timeout.
    """
    give_up = time.monotonic() + BUSY_TIMEOUT_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _version(connection: sqlite3.Connection, path: Path | None) -> int:
    # In one statement, so that no other process makes the file its own between two of the numbers.
    ((application, version, tables),) = connection.execute(
        "SELECT application_id, user_version, (SELECT COUNT(*) FROM sqlite_master)"
        " FROM pragma_application_id(), pragma_user_version()"
    ).fetchall()
    if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
        raise UsageError(f"{path} is a database of another program, not a profile database of iosched.\n{_WAY_OUT}.")
    if version > len(MIGRATIONS):
        raise UsageError(
            f"{path} was written by a newer iosched (schema {version}, this one knows {len(MIGRATIONS)}).\n"
            f"Update iosched. {_WAY_OUT}."
        )
    return int(version)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _explained(path: Path | None) -> Iterator[None]:
    """Turns what SQLite and the file system say into errors for people."""
    try:
        yield
    except sqlite3.Error as error:
        raise _error_for(path, error) from error
    except OSError as error:
        raise UsageError(
            f"cannot make the folder of the profile database {path}: {error.strerror}.\n{_WAY_OUT}."
        ) from error


def _error_for(path: Path | None, error: sqlite3.Error) -> IoschedError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte of an extended code is the primary one
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return UsageError(
            f"{path} is damaged or no profile database ({error}).\nMove it away or delete it yourself. {_WAY_OUT}."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DeviceError(f"another process keeps {path} locked.\nTry again when it is done. {_WAY_OUT}.")
    if code == sqlite3.SQLITE_FULL:
        return DeviceError(f"no space left for the profile database {path}.\nMake room. {_WAY_OUT}.")
    return UsageError(f"cannot read and write the profile database {path}: {error}.\n{_WAY_OUT}.")
