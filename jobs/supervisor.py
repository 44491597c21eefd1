"""Runs a command and leaves none of its processes behind: `python supervisor.py PARENT COMMAND...`.

A separate script without imports of this package, started for each command. It ends all descendants of the command, in
any process group or session, when the command ends, when it is terminated, or when process PARENT ends, even if killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_COULD_NOT_START = 127
_TIMEOUT_S = 2.0
"""Seconds from the termination of a command until it is killed."""


def main(parent: int, command: list[str]) -> int:
    """Runs the command until it ends or this process is terminated; returns its exit code as shells do."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children of this process
    signal.signal(signal.SIGTERM, _terminate)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the call above
        return _COULD_NOT_START
    try:
        code = _ran(command)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing may interrupt `_end_all`
    except _Terminated:  # as the command started, or just after it ended
        code = -signal.SIGTERM
    _end_all()
    return code if code >= 0 else 128 - code


def _ran(command: list[str]) -> int:
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _COULD_NOT_START
    try:
        return process.wait()
    except _Terminated:
        return _ended_soon(process)


class _Terminated(BaseException):
    """This process was terminated."""


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def _ended_soon(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        return process.wait(_TIMEOUT_S)
    process.kill()
    return process.wait()


def _end_all() -> None:
    """Kills all children, and their children as these become children of this process, until none is left.

    Only children: no other process can get their IDs before this process has waited for them.
    """
    while True:
        for process in _children():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return


def _children() -> Iterator[int]:
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                yield int(folder.name)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
