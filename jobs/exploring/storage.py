"""The SQLite file of a study, which Optuna writes and which is checked before Optuna opens it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import QueuePool

from iosched.models.errors import ExecutionError, UsageError

STUDY_NAME = "iosched"

_MAGIC = b"SQLite format 3\x00"
_BUSY_S = 60.0
_ONE_OF_A_NAME = "ix_studies_study_name"  # the unique index, by Optuna's name
_TABLES = frozenset(
    (
        *("studies", "study_directions", "study_user_attributes", "study_system_attributes", "version_info"),
        *("trials", "trial_user_attributes", "trial_system_attributes", "trial_params", "trial_values"),
        *("trial_intermediate_values", "trial_heartbeats", "alembic_version"),
    )
)


def open_storage(path: Path, *, makes: bool) -> RDBStorage:
    """The storage in a file; creates a missing or empty one if `makes`."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # Optuna would log each trial to stderr
    check_study_file(path, makes=makes)
    try:
        storage = RDBStorage(
            "sqlite://",  # `creator` opens the file, so that no user's text is taken for a URL
            engine_kwargs={"creator": lambda: _connected(path), "poolclass": QueuePool},
        )
    except (optuna.exceptions.OptunaError, RuntimeError, AssertionError, OSError) as error:
        raise UsageError(f"{path}: Optuna cannot open this study: {error}") from None
    with using(path):
        _complete(path)
    return storage


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Reports data that Optuna cannot interpret as a damaged file."""
    with using(path):
        try:
            yield
        except (ValueError, LookupError, TypeError) as error:
            raise UsageError(f"{path} is damaged: {error}") from error


@contextmanager
def using(path: Path) -> Iterator[None]:
    """Reports errors of a study's file, for example on a full disk."""
    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError, sqlite3.Error) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise ExecutionError(f"{path}: the study cannot be read or written: {cause}") from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _complete(path: Path) -> None:
    """Creates the unique index of study names if a process was killed between the table and its index.

    Optuna creates it only with the table, and would create a second study without it.
    """
    with closing(_connected(path)) as connection:
        named = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?", (_ONE_OF_A_NAME,))
        if named.fetchone() is None:
            connection.execute(f"CREATE UNIQUE INDEX IF NOT EXISTS {_ONE_OF_A_NAME} ON studies (study_name)")
            connection.commit()


def check_study_file(path: Path, *, makes: bool) -> None:
    """Checks that an Optuna file has no study but ours; accepts a missing or empty file if `makes`."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except FileNotFoundError:
        head = b""
        if not makes:
            raise UsageError(f"{path}: no such file: use one that 'iosched explore' wrote") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    if not head and makes:
        return
    if head != _MAGIC:
        raise UsageError(f"{path} is not a study: it is not an SQLite database")
    try:
        _check_contents(path)
    except sqlite3.Error as error:
        raise UsageError(f"{path} is not a study, or is damaged: {error}") from None


def _check_contents(path: Path) -> None:
    mode = "rw" if os.access(path, os.W_OK) else "ro"  # only a writer can roll back a killed process's transaction
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode={mode}", uri=True, timeout=_BUSY_S)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF")
        for kind, name in connection.execute("SELECT type, name FROM sqlite_master"):
            # Triggers and views are programs that Optuna's queries would run.
            if kind not in ("table", "index") or (kind == "table" and name not in _TABLES):
                raise UsageError(f"{path} is not a study of iosched: it has the {kind} {str(name)[:80]!r}")
        if next(connection.execute("PRAGMA quick_check(1)"))[0] != "ok":
            raise UsageError(f"{path} is damaged")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if "studies" not in tables:
            return  # its creation was never finished
        names = [name for (name,) in connection.execute("SELECT study_name FROM studies LIMIT 2")]
        if names not in ([], [STUDY_NAME]):
            raise UsageError(f"{path} contains studies of other programs: {', '.join(map(repr, names))[:200]}")
