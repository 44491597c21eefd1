"""Whether a module can be imported, tried in another process: a broken library may end the one that loads it."""

from __future__ import annotations

import signal
import subprocess
import sys

_SECONDS = 60.0
_MOST_COLUMNS = 200


def why_not(module: str) -> str | None:
    """Why a module cannot be imported, in one line; None where it can."""
    # -P: a file of that name in the working folder is not meant.
    command = [sys.executable, "-P", "-c", f"import {module}"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"it takes longer than {_SECONDS:.0f} seconds"
    if done.returncode < 0:
        return f"the process that imports it ends by {_signal(-done.returncode)}"
    if done.returncode > 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return (lines[-1] if lines else f"exit code {done.returncode}")[:_MOST_COLUMNS]
    return None


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
