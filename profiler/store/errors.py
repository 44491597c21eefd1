"""Converts errors of SQLite and the file system into errors with a way out."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from iosched.models.errors import DeviceError, IoschedError, ResourceError, UsageError

ENVIRONMENT_VARIABLE = "IOSCHED_PROFILE_DB"
IN_MEMORY = ":memory:"

WAY_OUT = (
    f"Choose another file with --profile-db or {ENVIRONMENT_VARIABLE}, or store nothing with --profile-db {IN_MEMORY}"
)


@contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Converts errors of SQLite and the file system raised inside.

    A ValueError or TypeError comes from a row with impossible values, so the file is damaged.

    Raises:
        UsageError: the file is damaged, or it or its folder is not writable.
        ResourceError: the disk is full, or fails.
        DeviceError: another process locks the file.
    """
    try:
        yield
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise _error_for(path, error) from error
    except OSError as error:
        raise UsageError(
            f"cannot create the folder of the profile database {path}: {error.strerror}.\n{WAY_OUT}."
        ) from error


def _error_for(path: Path | None, error: sqlite3.Error | ValueError | TypeError) -> IoschedError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte of an extended code is the primary one
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or not isinstance(error, sqlite3.Error):
        return UsageError(f"{path} is damaged or not a profile database ({error}).\nMove or delete it. {WAY_OUT}.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return DeviceError(f"another process has locked {path}.\nTry again when it has finished. {WAY_OUT}.")
    if code == sqlite3.SQLITE_FULL:
        return ResourceError(f"no space left for the profile database {path}.\nFree some space. {WAY_OUT}.")
    if code == sqlite3.SQLITE_IOERR:  # also raised if there is no space for the log next to it
        return ResourceError(f"disk error or disk full at the profile database {path} ({error}).\n{WAY_OUT}.")
    return UsageError(f"cannot read or write the profile database {path}: {error}.\n{WAY_OUT}.")
