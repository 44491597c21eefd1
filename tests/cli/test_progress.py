"""A bar with time left on a terminal, silence in a pipe."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress

from iosched.cli.progress import bar_columns, description_for

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


@pytest.mark.parametrize("width", [40, 50, 64, 80, 100, 120, 200])
def test_counts_and_times_are_there_on_a_terminal_of_any_width(width: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=width, force_terminal=True, color_system=None)
    bar = Progress(*bar_columns(width), console=console)
    bar.add_task(
        description_for("measuring 模型 stage 12 of a block with a long name " * 3, width), total=99999, completed=12345
    )
    console.print(bar.get_renderable())
    (line,) = shown.getvalue().splitlines()
    assert cell_len(line.rstrip()) <= width
    assert line.startswith("meas")
    assert "12345/99999" in line
    assert "left -:--:--" in line
    assert ("0:00:00" in line) is (width >= 64)
    assert ("━" in line) is (width >= 100)
