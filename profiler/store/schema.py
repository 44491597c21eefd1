"""The schema of the profile database, and the handling of files with another one."""

from __future__ import annotations

import os
import sqlite3
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain, count
from pathlib import Path

from iosched.models.errors import SetAsideWarning, UsageError
from iosched.profiler.store.errors import IN_MEMORY, WAY_OUT

APPLICATION_ID = 0x494F5364  # "IOSd": marks an SQLite file as ours
BUSY_TIMEOUT_SECONDS = 30.0
_IS_OLD = "was written by an earlier iosched"


VERSION = 17
"""Of the schema below. Earlier files are renamed, since no release wrote one."""

# `tables.py` documents the columns of measurements.
_SCHEMA = (
    # The choices that measurements used where a device has several equivalent ways, such as cuDNN plans.
    """
    CREATE TABLE choice (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (device, key)
    ) STRICT, WITHOUT ROWID
    """,
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
        disturbed_by TEXT NOT NULL,
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
        others BLOB NOT NULL CHECK (LENGTH(others) % 8 = 0),
        stolen BLOB NOT NULL CHECK (LENGTH(stolen) % 8 = 0),
        slowness BLOB NOT NULL CHECK (LENGTH(slowness) % 8 = 0),
        PRIMARY KEY (device, key, candidate, measured_at)
    ) STRICT, WITHOUT ROWID
    """,
    # Latencies of whole models and the sums of their stages, to show how well sums predict latencies.
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
    # cuDNN plans as cuDNN serializes them, to avoid building them again.
    """
    CREATE TABLE cudnn_plan (
        device TEXT NOT NULL,
        key TEXT NOT NULL,
        name TEXT NOT NULL,
        content BLOB NOT NULL,
        PRIMARY KEY (device, key, name)
    ) STRICT
    """,
    # cuDNN plans that a process is trying, or tried when it ended; plans known to be fatal have no process.
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
)


def connected(path: Path | None) -> sqlite3.Connection:
    """Opens or creates the database at `path`, or one in memory if it is None.

    The owner is checked before anything is written. A file of an earlier schema is renamed, with a warning.

    Raises:
        UsageError: the file is foreign, newer, or earlier and open in another process.
        sqlite3.Error: it is damaged, locked or not writable.
        OSError: its folder cannot be created.
    """
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    connection = _opened_and_read(path)
    try:
        if path is not None and 0 < version_of(connection, path) < VERSION:
            connection.close()
            set_aside(path)
            connection = _opened_and_read(path)
        _refuse_programs(connection, path)
        _create(connection, path)
        _switch_to_wal(connection)
        # Survives a killed process, if not the last moment before a power cut.
        connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


def _opened(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(path or IN_MEMORY, timeout=BUSY_TIMEOUT_SECONDS, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _opened_and_read(path: Path | None) -> sqlite3.Connection:
    """A connection that has read the file once: SQLite then holds a lock on this very file."""
    with _folder_locked(path, exclusively=False):
        connection = _opened(path)
        try:
            version_of(connection, path)
        except BaseException:
            connection.close()
            raise
    return connection


def set_aside(path: Path) -> None:
    """Renames a database of an earlier schema to NAME.schema-N, with a warning.

    Processes take turns in a folder and check the file again, so that none renames what another has created. Raises a
    UsageError if another process has the file open, or it cannot be renamed.
    """
    real = path.resolve()
    try:
        with _folder_locked(path, exclusively=True), closing(_opened(path)) as connection:
            version = version_of(connection, path)
            if not 0 < version < VERSION:
                return
            _lock(connection, path)
            ends = chain(("",), (f".{number}" for number in count(2)))
            names = (real.with_name(f"{real.name}.schema-{version}{end}") for end in ends)
            target = next(each for each in names if not each.exists())
            real.rename(target)
    except OSError as error:
        raise UsageError(f"{path} {_IS_OLD} but cannot be renamed: {error.strerror}.\n{WAY_OUT}.") from error
    warnings.warn(
        f"{path} {_IS_OLD}: it is renamed to {target}, and stages are measured again.", SetAsideWarning, stacklevel=2
    )


@contextmanager
def _folder_locked(path: Path | None, *, exclusively: bool) -> Iterator[None]:
    """Prevents renames while files of the folder are opened and first read; exclusively, prevents opening them.

    Has no effect in an unreadable folder, where nothing is renamed.
    """
    if path is None or sys.platform == "win32":
        yield
        return
    import fcntl

    try:
        folder = os.open(path.resolve().parent, os.O_RDONLY)
    except PermissionError:
        if exclusively:
            raise
        yield
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH)
        yield
    finally:
        os.close(folder)


def _lock(connection: sqlite3.Connection, path: Path) -> None:
    """Locks a file exclusively and merges its log: both fail while another has it open."""
    try:
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        raise UsageError(f"{path} {_IS_OLD}, but another process has it open.\nEnd that process. {WAY_OUT}.") from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commits everything written inside, or nothing if something is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # on a full disk, SQLite has already rolled back
            connection.execute("ROLLBACK")
        raise


def _refuse_programs(connection: sqlite3.Connection, path: Path | None) -> None:
    """Raises a UsageError for views, triggers, virtual tables and generated columns, which could run forever."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('view', 'trigger')"
        " OR sql LIKE 'CREATE VIRTUAL%' OR (type = 'table' AND sql LIKE '% AS%(%')"
    ).fetchone()
    if found:
        raise UsageError(f"{path} contains {found[0]!r}, which does not belong in a profile database.\n{WAY_OUT}.")


def _create(connection: sqlite3.Connection, path: Path | None) -> None:
    if version_of(connection, path) == VERSION:
        return
    with transaction(connection):
        if version_of(connection, path) == VERSION:  # another process was faster
            return
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Enables the write-ahead log, once for all connections.

    The switch needs exclusive access and fails at once without it, whatever the connection's timeout.
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
    """The version of a database's schema, 0 if it is empty; raises a UsageError if the file is foreign or newer."""
    # In one statement, so that no other process makes the file its own between two of the numbers.
    ((application, version, tables),) = connection.execute(
        "SELECT application_id, user_version, (SELECT COUNT(*) FROM sqlite_master)"
        " FROM pragma_application_id(), pragma_user_version()"
    ).fetchall()
    if (application != APPLICATION_ID and (application, version, tables) != (0, 0, 0)) or version < 0:
        raise UsageError(f"{path} is a database of another program, not an iosched profile database.\n{WAY_OUT}.")
    if version > VERSION:
        raise UsageError(
            f"{path} was written by a newer iosched (schema {version}, this version supports {VERSION}).\n"
            f"Upgrade iosched. {WAY_OUT}."
        )
    return int(version)
