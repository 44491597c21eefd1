"""A bar with time left on a terminal, silence in a pipe."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress
from scripted import LATENCIES_US, script_models, script_stages
from small_models import branches

from iosched.cli import optimize_batches
from iosched.cli.common.progress import _Bar, bar_columns, description_for, end_of
from iosched.cli.main import cli

_WORK = """
import click
from iosched.cli.common.progress import progress_bar
with click.Context(click.Command("x")), progress_bar() as observer:
    for done in range(4):
        observer.progress(done, 3, f"block {done} [red]\\x1b")
print("data")
"""


def _on_terminal(work: str = _WORK) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", work], stdout=-1, stderr=theirs, env=environment, check=True)
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
    except OSError:  # how Linux reports that the other side is closed
        return b""


def test_a_terminal_shows_the_progress() -> None:
    shown = _on_terminal()
    assert "3/3" in shown
    assert "block 3 [red]" in shown


def test_a_pipe_shows_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", _WORK], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("data\n", "")


@pytest.mark.parametrize("width", [40, 50, 64, 80, 100, 120, 200])
def test_counts_and_times_are_shown_on_a_terminal_of_any_width(width: int) -> None:
    shown = io.StringIO()
    console = Console(file=shown, width=width, force_terminal=True, color_system=None)
    bar = Progress(*bar_columns(width), console=console)
    words = description_for("measuring 模型 stage 12 of a block with a long name " * 3, width)
    bar.add_task(words, total=99999, completed=12345, ends=time.monotonic() + 36000)
    console.print(bar.get_renderable())
    (line,) = shown.getvalue().splitlines()
    assert cell_len(line.rstrip()) <= width
    assert line.startswith("meas")
    assert "12345/99999" in line
    assert "left 9:" in line
    assert ("0:00:00" in line) is (width >= 64)
    assert ("━" in line) is (width >= 100)


def test_without_a_budget_time_left_is_shown_only_where_it_is_known() -> None:
    now = [0.0]
    shown = io.StringIO()
    bar = Progress(*bar_columns(120), console=Console(file=shown, width=120), get_time=lambda: now[0])
    task = bar.add_task("searching", total=10, ends=None)

    def line() -> str:
        shown.seek(shown.truncate(0))
        bar.console.print(bar.get_renderable())
        return shown.getvalue()

    assert "left" not in line()
    for done in (1, 2, 3):
        now[0] += 20
        bar.update(task, completed=done)
    assert "left 0:02:20" in line()
    bar.update(task, completed=10)
    assert "left" not in line()


def test_with_a_budget_a_terminal_shows_the_time_until_it_is_used_up() -> None:
    assert "left 9:" in _on_terminal(_WORK.replace("progress_bar()", "progress_bar(36000)"))


@pytest.mark.parametrize("words", [("--budget", 36000), ()])
def test_a_search_shows_the_time_left_of_its_budget_and_the_best_latency(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    """The real command, whose bar is drawn into memory after each step."""
    shown: list[str] = []

    @contextmanager
    def drawn(budget_s: float | None = None) -> Iterator[SimpleNamespace]:
        bar = Progress(*bar_columns(120), console=Console(file=(file := io.StringIO()), width=120), auto_refresh=False)
        observer = _Bar(bar, bar.add_task("starting", total=None, ends=end_of(budget_s)))

        def progress(*step: Any) -> None:
            observer.progress(*step)
            file.seek(file.truncate(0))
            bar.console.print(bar.get_renderable())
            shown.append(file.getvalue())

        yield SimpleNamespace(progress=progress, paused=observer.paused)

    monkeypatch.setattr(optimize_batches, "progress_bar", drawn)
    script_stages(monkeypatch)
    script_models(monkeypatch, LATENCIES_US)
    onnx.save(branches(), workdir / "m.onnx")
    result = CliRunner().invoke(cli, ["optimize", "m.onnx", "--threads", "2", "--json", *map(str, words)])
    assert result.exit_code == 0, result.stderr
    predicted_us = json.loads(result.stdout)["latency_us"]["predicted"]
    assert any(line.startswith(f"best {predicted_us / 1000:.3f} ms, block 1 of 1 done") for line in shown)
    assert ("left 9:" in shown[0]) is bool(words)
    assert any("left" in line for line in shown) is bool(words)
