"""Ends the processes of a Linux session: a child process and its descendants.

Two of Ray's agents survive when their parent is killed.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_ROUNDS = 20
_ROUND_S = 0.05


def members(leader: int) -> tuple[int, ...]:
    """Returns the running processes of the session with this leader."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return tuple(pid for pid in pids if _session_of(pid) == leader)


def end(leader: int, but: int | None = None) -> bool:
    """Kills the processes of a session, including new ones, for up to one second.

    Args:
        leader: the session's first process. Its number is not reused until it has been waited for.
        but: a process to spare.

    Returns:
        Whether all have ended.

    Raises:
        ValueError: `leader` is invalid, or the call would end the caller.
    """
    if leader <= 0 or (leader == os.getsid(0) and but != os.getpid()):
        raise ValueError(f"session {leader} is not one to end")
    for _ in range(_ROUNDS):
        left = [pid for pid in members(leader) if pid != but]
        if not left:
            return True
        for pid in left:
            kill(pid, leader)
        time.sleep(_ROUND_S)
    return False


def kill(pid: int, leader: int) -> None:
    """Kills a process unless it has ended or its number belongs to another session."""
    held = None
    with suppress(AttributeError, OSError):  # not in every Python build; needs Linux 5.3
        held = os.pidfd_open(pid)  # keeps referring to this process
    with suppress(ProcessLookupError, PermissionError):
        if _session_of(pid) == leader and held is not None:
            signal.pidfd_send_signal(held, signal.SIGKILL)
        elif _session_of(pid) == leader:
            os.kill(pid, signal.SIGKILL)
    if held is not None:
        os.close(held)


def _session_of(pid: int) -> int | None:
    """Returns the session of a process; None if it has ended, including zombies."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, _parent, _group, session, *_ = told.rpartition(")")[2].split()  # the process name may contain blanks
    return None if state in "ZX" else int(session)
