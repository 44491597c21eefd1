"""A bar with time left on a terminal, silence in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

_WORK = """
import click
from iosched.cli.progress import progress_bar
with click.Context(click.Command("x")), progress_bar() as observer:
    for done in range(4):
        observer.progress(done, 3, f"block {done} [red]\\x1b")
print("data")
"""


def _on_terminal() -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", _WORK], stdout=-1, stderr=theirs, env=environment, check=True)
    os.close(theirs)
    shown = b""
    while chunk := _read(ours):
        shown += chunk
    os.close(ours)
    assert done.stdout == b"data\n"
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other side is closed
        return b""


def test_a_terminal_shows_what_is_done_and_what_is_left() -> None:
    shown = _on_terminal()
    assert "3/3" in shown
    assert "left" in shown
    assert "block 3 [red]" in shown


def test_a_pipe_shows_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _WORK], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("data\n", "")
