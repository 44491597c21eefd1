"""Runs a command of the user: with an end in time, little of its output kept, and nothing of it left behind."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_POLL_S = 0.1
_KEPT_NBYTES = 2**18
_MOST_NBYTES = 2**26
_PATIENCE_S = 10.0

Cut = Literal["time", "output", "stopped"]


@dataclass(frozen=True)
class Ran:
    """What came of a command.

    Attributes:
        code: its exit code.
        out: the end of what it printed.
        errors: the end of what it printed to stderr.
        cut: why it was ended from here; None where it ended by itself.
    """

    code: int
    out: str
    errors: str
    cut: Cut | None = None


class _Kept:
    """The end of a stream, and its lines as they come."""

    def __init__(self, on_line: Callable[[str], object]) -> None:
        self.data = b""
        self.nbytes = 0
        self._line = b""
        self._on_line = on_line

    def add(self, data: bytes) -> None:
        self.nbytes += len(data)
        self.data = (self.data + data)[-_KEPT_NBYTES:]
        *lines, self._line = (self._line + data)[-_KEPT_NBYTES:].split(b"\n")
        for line in lines:
            self._on_line(line.decode("utf-8", "replace"))

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


def run_command(
    words: Sequence[str],
    *,
    timeout_s: float | None,
    folder: Path | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    on_line: Callable[[str], object] = lambda line: None,
) -> Ran:
    """Runs a command without a shell, and ends it and all that it has started.

    Args:
        words: the program and its arguments.
        timeout_s: the seconds that it may take; None for any number.
        folder: where it is run; by default where this process runs.
        is_stopped: is asked now and then whether the command is to be ended.
        on_line: is called with each line that the command prints.

    Raises:
        KeyboardInterrupt: Ctrl-C, as where nobody holds it back; the command has been ended.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    arguments = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), *words]
    with subprocess.Popen(
        arguments,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C on the terminal is for this process alone
    ) as process:
        try:
            out, errors, cut = _watched(process, deadline, is_stopped, on_line)
        finally:
            _end(process)
    return Ran(process.returncode, out.text, errors.text, cut)


def _watched(
    process: subprocess.Popen[bytes],
    deadline: float | None,
    is_stopped: Callable[[], bool],
    on_line: Callable[[str], object],
) -> tuple[_Kept, _Kept, Cut | None]:
    out, errors = _Kept(on_line), _Kept(lambda line: None)
    with selectors.DefaultSelector() as selector:
        for stream, kept in ((process.stdout, out), (process.stderr, errors)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, kept)
        while selector.get_map():
            _read(selector, _POLL_S)
            if cut := _cut(out.nbytes + errors.nbytes, deadline, is_stopped):
                return out, errors, cut
            if process.poll() is not None:  # nothing of it is left that could print
                _read(selector, 0.0)
                break
    return out, errors, None


def _read(selector: selectors.BaseSelector, wait_s: float) -> None:
    """Takes what the streams have to give, after waiting for it so long at most."""
    for key, _ in selector.select(wait_s):
        stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
        with suppress(BlockingIOError):
            while data := os.read(stream.fileno(), 2**16):
                key.data.add(data)
                if key.data.nbytes > _MOST_NBYTES:
                    return
            selector.unregister(stream)


def _cut(nbytes: int, deadline: float | None, is_stopped: Callable[[], bool]) -> Cut | None:
    if nbytes > _MOST_NBYTES:
        return "output"
    if deadline is not None and time.monotonic() >= deadline:
        return "time"
    return "stopped" if is_stopped() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the supervisor, which ends all else before itself."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
