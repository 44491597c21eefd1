"""Locks between processes, released when the process that holds them ends for any reason."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

from iosched.models.errors import UsageError

Use = Literal["measuring", "scoring"]

_POLL_S = 0.1


def study_lock(path: Path) -> AbstractContextManager[None]:
    """Held by one process at a time to read and change a study."""
    return _locked(f"study-{sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]}", True, None)


def machine(use: Use, waiting: Callable[[], object] = lambda: None) -> AbstractContextManager[None]:
    """Held exclusively by a process that measures on this machine, or shared by processes that score.

    So no score command of any study runs during a measurement of another.

    Args:
        waiting: is called while waiting, and may raise to end it.
    """
    return _locked("machine", use == "measuring", waiting)


@contextmanager
def _locked(name: str, exclusively: bool, waiting: Callable[[], object] | None) -> Iterator[None]:
    """Locks a file of this user in the temporary folder; the file stays, since other processes may wait for it."""
    import fcntl  # not on Windows

    path = Path(tempfile.gettempdir()) / f"iosched-{os.getuid()}-{name}.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}: set TMPDIR to a folder that you own") from None
    kind = fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH
    try:
        while waiting is not None:
            with suppress(BlockingIOError):
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                break
            waiting()
            time.sleep(_POLL_S)
        else:
            fcntl.flock(file, kind)
        yield
    finally:
        os.close(file)
