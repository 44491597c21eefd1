"""Runs a user's command with a timeout, keeps only the end of its output, and leaves none of its processes behind."""

from __future__ import annotations

import math
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_SUPERVISOR = Path(__file__).parents[1] / "supervisor.py"
_POLL_S = 0.1
_KEPT_NBYTES = 2**18
_MOST_NBYTES = 2**26
_END_TIMEOUT_S = 10.0

Cut = Literal["time", "output", "stopped"]


@dataclass(frozen=True)
class CommandResult:
    """The result of a command.

    Attributes:
        out: the last part of stdout.
        errors: the last part of stderr.
        cut: why this module ended it; None if it ended by itself.
    """

    code: int
    out: str
    errors: str
    cut: Cut | None = None


class _Kept:
    """The last part of a stream, and its lines as they arrive."""

    def __init__(self, on_line: Callable[[str], object] | None = None) -> None:
        self.data = self._line = b""
        self.nbytes = 0
        self._on_line = on_line

    def read(self, stream: int) -> bool:
        with suppress(BlockingIOError):
            while self.nbytes <= _MOST_NBYTES:
                data = os.read(stream, 2**16)
                if not data:
                    return False
                self.nbytes += len(data)
                self.data = (self.data + data)[-_KEPT_NBYTES:]
                *lines, self._line = (self._line + data)[-_KEPT_NBYTES:].split(b"\n")
                if self._on_line is not None:
                    for line in lines:
                        self._on_line(line.decode("utf-8", "replace"))
        return True

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def run_command(
    words: Sequence[str],
    *,
    timeout_s: float | None,
    folder: Path | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_line: Callable[[str], object] | None = None,
) -> CommandResult:
    """Runs a command without a shell, then ends it and all processes that it has started.

    Args:
        words: the program and its arguments.
        folder: its working folder; by default that of this process.
        is_stopped: is polled to end the command.
        on_line: is called with each line that the command prints.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s

    def is_over() -> Cut | None:
        return "time" if time.monotonic() >= deadline else "stopped" if is_stopped() else None

    arguments = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), *words]
    with subprocess.Popen(
        arguments,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # only this process receives Ctrl-C from the terminal
    ) as process:
        out, errors = _Kept(on_line), _Kept()
        try:
            cut = _watched(process, (out, errors), is_over)
        finally:
            _end(process)
    return CommandResult(process.returncode, out.text, errors.text, cut)


def _watched(
    process: subprocess.Popen[bytes], both: tuple[_Kept, _Kept], is_over: Callable[[], Cut | None]
) -> Cut | None:
    with selectors.DefaultSelector() as selector:
        for stream, kept in zip((process.stdout, process.stderr), both, strict=True):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, kept)
        has_ended = False
        while selector.get_map() and not has_ended:
            has_ended = process.poll() is not None  # no process is left that could print more
            for key, _ in selector.select(0 if has_ended else _POLL_S):
                if not key.data.read(key.fd):
                    selector.unregister(key.fileobj)
            cut = "output" if sum(kept.nbytes for kept in both) > _MOST_NBYTES else is_over()
            if cut is not None:
                return cut
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the supervisor, which ends its children first."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
