"""All processes of a session, as Linux has them: what a child process started, and what was started by that in turn.

Ray's own processes end with the one that started them, but for two agents, which were seen to stay when it was killed.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_ROUNDS = 20
_ROUND_S = 0.05


def members(session: int) -> tuple[int, ...]:
    """The processes of a session that have not ended."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return tuple(pid for pid in pids if _session_of(pid) == session)


def end(session: int, but: int | None = None) -> None:
    """Kills the processes of a session, `but` one, and those that they start meanwhile; waits a second at most."""
    for _ in range(_ROUNDS):
        left = [pid for pid in members(session) if pid != but]
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_S)


def _session_of(pid: int) -> int | None:
    """The session of a process; None where it has ended, if only its parent does not know yet."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, _parent, _group, session, *_ = told.rpartition(")")[2].split()  # what it is called may have blanks in it
    return None if state in "ZX" else int(session)
