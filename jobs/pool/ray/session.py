"""Ends the processes of a Linux session: a child process, its children, and theirs.

Ray's processes end with the one that started them, except two agents, which stay when it is killed.
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
    """The running processes of the session that process `leader` began."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return tuple(pid for pid in pids if _session_of(pid) == leader)


def end(leader: int, but: int | None = None) -> bool:
    """Kills the processes of a session, and those that they start meanwhile, for a second at most.

    Args:
        leader: the process that began it. No other session has its number until it has been waited for.
        but: a process to spare.

    Returns:
        Whether all have ended.

    Raises:
        ValueError: `leader` is no process, or the caller's session would end the caller.
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
    """Kills a process of a session, unless it has ended or its number belongs to another session."""
    held = None
    with suppress(AttributeError, OSError):  # not every Python has it, nor Linux before 5.3
        held = os.pidfd_open(pid)  # goes on meaning this process
    with suppress(ProcessLookupError, PermissionError):
        if _session_of(pid) == leader and held is not None:
            signal.pidfd_send_signal(held, signal.SIGKILL)
        elif _session_of(pid) == leader:
            os.kill(pid, signal.SIGKILL)
    if held is not None:
        os.close(held)


def _session_of(pid: int) -> int | None:
    """The session of a process; None if it has ended, even where its parent has not waited for it."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, _parent, _group, session, *_ = told.rpartition(")")[2].split()  # what it is called may have blanks in it
    return None if state in "ZX" else int(session)
