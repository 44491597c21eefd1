"""The processes of a Linux session: a process that leads it, and what that has started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path


def members(leader: int) -> tuple[int, ...]:
    """The running processes of the session with this leader."""
    return tuple(pid for pid, (state, _, session) in _processes().items() if session == leader and state not in "ZX")


def child(leader: int) -> int:
    """The one process that the leader of a session has started itself."""
    (found,) = (pid for pid, (_, parent, _) in _processes().items() if parent == leader)
    return found


def end(leader: int) -> None:
    """Kills the processes of a session, also those that come meanwhile."""
    for _ in range(20):
        for pid in members(leader):
            kill(pid, leader)
        time.sleep(0.05)


def kill(pid: int, leader: int) -> None:
    """Kills a process of a session, if it has not ended."""
    if pid in members(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _processes() -> dict[int, tuple[str, int, int]]:
    """The state, the parent and the session of each process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            told = (folder / "stat").read_text(errors="replace")
            state, parent, _, session, *_ = told.rpartition(")")[2].split()  # the name may contain blanks
            found[int(folder.name)] = state, int(parent), int(session)
    return found
