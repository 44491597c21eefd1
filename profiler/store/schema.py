"""The schema of the profile database, and how files of earlier versions are brought to it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from iosched.models.errors import UsageError
from iosched.profiler.store.explained import IN_MEMORY, WAY_OUT
from iosched.profiler.store.legacy import OldMeasurement, named
from iosched.profiler.store.tables import sqlite_value, unpacked

APPLICATION_ID = 0x494F5364  # "IOSd": marks an SQLite file as ours
BUSY_TIMEOUT_SECONDS = 30.0


def _name_measurements(connection: sqlite3.Connection) -> None:
    """Moves every row of `measurement` to the table that it belongs to."""
    names = ("device", "signature", "median", "samples", "measured_at", "clock_mhz", "throttled_by")
    for values in connection.execute(f"SELECT {', '.join(names)} FROM measurement"):
        fields = dict(zip(names, values, strict=True))
        row = named(msgspec.convert({**fields, "samples": unpacked(fields["samples"])}, OldMeasurement))
        table = row.pop("table")
        places = ", ".join("?" * len(row))
        kept = tuple(map(sqlite_value, row.values()))
        connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", kept)


# Entry k brings a file of schema version k to version k + 1: a statement, or a function. Entries are only ever added.
MIGRATIONS: tuple[str | Callable[[sqlite3.Connection], None], ...] = (
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
    # What measurements were taken with, where a device offers several ways to do the same (plans of cuDNN, say).
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
    # From here on each kind of thing that is measured has a table of its own; `tables.py` says what its columns are.
    """
    CREATE TABLE yardstick (
        device TEXT NOT NULL PRIMARY KEY,
        measured_at TEXT NOT NULL,
        samples_us BLOB NOT NULL CHECK (LENGTH(samples_us) % 8 = 0)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE stage (
        device TEXT NOT NULL,
        signature TEXT NOT NULL,
        turn TEXT NOT NULL CHECK (turn IN ('first', 'again', 'rough')),
        measured_at TEXT NOT NULL,
        samples_us BLOB CHECK (LENGTH(samples_us) % 8 = 0),
        clock_mhz INTEGER,
        throttled_by TEXT NOT NULL,
        PRIMARY KEY (device, signature, turn)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE comparison (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        candidate TEXT NOT NULL,
        measured_at TEXT NOT NULL,
        samples_us BLOB NOT NULL CHECK (LENGTH(samples_us) % 8 = 0),
        rested_us BLOB NOT NULL CHECK (LENGTH(rested_us) % 8 = 0),
        setting TEXT,
        clock_mhz INTEGER,
        throttled_by TEXT NOT NULL,
        PRIMARY KEY (device, key, candidate)
    ) STRICT, WITHOUT ROWID
    """,
    """
    CREATE TABLE undivided (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        measured_at TEXT NOT NULL,
        samples_us BLOB NOT NULL CHECK (LENGTH(samples_us) % 8 = 0),
        setting TEXT,
        clock_mhz INTEGER,
        throttled_by TEXT NOT NULL,
        PRIMARY KEY (device, key)
    ) STRICT, WITHOUT ROWID
    """,
    _name_measurements,
    "DROP TABLE measurement",
    "ALTER TABLE plan RENAME TO cudnn_plan",
    # Plans of cuDNN that are being tried now, or were when their process ended; no process stands where that is known.
    """
    CREATE TABLE cudnn_trial (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        process TEXT NOT NULL,
        began_at TEXT NOT NULL,
        PRIMARY KEY (device, key, name, process)
    ) STRICT, WITHOUT ROWID
    """,
    # What else the machine did while a stage was measured; nobody looked until now.
    "ALTER TABLE stage ADD COLUMN disturbed_by TEXT NOT NULL DEFAULT ''",
    # What whole models took, beside the sums of their stages: how well such sums tell what a model takes.
    """
    CREATE TABLE whole (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        measured_at TEXT NOT NULL,
        shipped TEXT NOT NULL,
        samples_us BLOB NOT NULL CHECK (LENGTH(samples_us) % 8 = 0),
        sequential_us BLOB NOT NULL CHECK (LENGTH(sequential_us) % 8 = 0),
        stages INTEGER NOT NULL,
        sum_us REAL NOT NULL,
        sequential_sum_us REAL NOT NULL,
        PRIMARY KEY (device, key)
    ) STRICT, WITHOUT ROWID
    """,
)


def connected(path: Path | None) -> sqlite3.Connection:
    """Opens the database at `path`, or one in memory where it is None; a file is made with its folder where missing.

    Whose file it is is checked before anything is written to it; then it is brought to the newest schema.

    Raises:
        UsageError: the file belongs to another program, or was written by a newer iosched.
        sqlite3.Error: it is damaged, locked or cannot be written.
        OSError: its folder cannot be made.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path or IN_MEMORY, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        _refuse_programs(connection, path)
        _migrate(connection, path)
        _switch_to_wal(connection)
        # Survives a killed process, if not the last moment before a power cut.
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """What is written inside is written as a whole at the end, and not at all if something is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # where the disk is full, SQLite has rolled back itself
            connection.execute("ROLLBACK")
        raise


def _refuse_programs(connection: sqlite3.Connection, path: Path | None) -> None:
    """Refuses what would compute something while a file of somebody else's is read or written: it may never end.

    Raises:
        UsageError: there is a view, a trigger, a virtual table or a generated column.
    """
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')"
        " OR sql LIKE 'CREATE VIRTUAL%' OR (type = 'table' AND sql LIKE '% AS%(%')"
    ).fetchone()
    if found:
        raise UsageError(f"{path} has {found[0]!r}, which no profile database of iosched's has.\n{WAY_OUT}.")


def _migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    if version_of(connection, path) == len(MIGRATIONS):
        return
    with transaction(connection):
        # Another process may have been faster; what counts is the version under the lock.
        for migration in MIGRATIONS[version_of(connection, path) :]:
            if isinstance(migration, str):
                connection.execute(migration)
            else:
                migration(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


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


def version_of(connection: sqlite3.Connection, path: Path | None) -> int:
    """The version of the schema that a database has; 0 where it is empty.

    Raises:
        UsageError: the file belongs to another program, or was written by a newer iosched.
    """
    # In one statement, so that no other process makes the file its own between two of the numbers.
    ((application, version, tables),) = connection.execute(
        "SELECT application_id, user_version, (SELECT COUNT(*) FROM sqlite_master)"
        " FROM pragma_application_id(), pragma_user_version()"
    ).fetchall()
    if (application != APPLICATION_ID and (application, version, tables) != (0, 0, 0)) or version < 0:
        raise UsageError(f"{path} is a database of another program, not a profile database of iosched.\n{WAY_OUT}.")
    if version > len(MIGRATIONS):
        raise UsageError(
            f"{path} was written by a newer iosched (schema {version}, this one knows {len(MIGRATIONS)}).\n"
            f"Update iosched. {WAY_OUT}."
        )
    return int(version)
