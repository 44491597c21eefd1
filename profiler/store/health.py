"""Checks whether a profile database is usable, without changing it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from iosched.models.errors import IoschedError
from iosched.profiler.store.database import path_exists
from iosched.profiler.store.errors import WAY_OUT, explained
from iosched.profiler.store.schema import VERSION, version_of

_BUSY_SECONDS = 2.0


@dataclass(frozen=True)
class Health:
    """The state of a profile database's file.

    Attributes:
        exists: if not, it is created on demand.
        nbytes: its size, with its log.
        writable: whether this process may write it and its log, or create them.
        schema: its version; None if unreadable.
        newest_schema: the supported version; earlier files are renamed when opened.
        intact: result of SQLite's integrity check; None if not possible.
        problem: why it cannot be used, with the way out on further lines; None if it can.
    """

    path: Path
    exists: bool
    nbytes: int
    readable: bool
    writable: bool
    schema: int | None = None
    newest_schema: int = VERSION
    intact: bool | None = None
    problem: str | None = None


def health(path: Path) -> Health:
    """Examines the file of a profile database; O(size of the file)."""
    if not path_exists(path):
        return _absent(path)
    found = Health(
        path,
        exists=True,
        nbytes=sum(each.stat().st_size for each in (path, _log(path)) if each.exists()),
        readable=os.access(path, os.R_OK),
        writable=os.access(path, os.W_OK) and os.access(path.parent, os.W_OK),
    )
    try:
        with explained(path), closing(_connected(path)) as connection:
            schema = version_of(connection, path)
            flaws = [text for (text,) in connection.execute("PRAGMA integrity_check(3)") if text != "ok"]
    except IoschedError as error:
        return replace(found, problem=str(error))
    problem = f"{path} is damaged ({flaws[0]}).\nMove or delete it. {WAY_OUT}." if flaws else None
    if problem is None and not found.writable:
        problem = f"{path} is not writable: measurements cannot be stored.\n{WAY_OUT}."
    return replace(found, schema=schema, intact=not flaws, problem=problem)


def _absent(path: Path) -> Health:
    folder = next(each for each in path.absolute().parents if path_exists(each))
    writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    problem = None if writable else f"cannot create {path}: {folder} is not writable.\n{WAY_OUT}."
    return Health(path, exists=False, nbytes=0, readable=True, writable=writable, problem=problem)


def _connected(path: Path) -> sqlite3.Connection:
    """The database for reading.

    Without a log, no process has it open. It is then read as immutable, since SQLite would leave an empty log; also if
    its folder is not writable, which reading a log requires.
    """
    is_still = not _log(path).exists() or not os.access(path.parent, os.W_OK)
    way = "mode=ro&immutable=1" if is_still else "mode=ro"
    return sqlite3.connect(f"{path.absolute().as_uri()}?{way}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")
