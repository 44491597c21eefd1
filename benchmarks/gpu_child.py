"""Processes that measure one case each: a GPU that is lost there costs one case."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gpu_cases import Case, CommandCase, NetworkCase, key_of

ROOT = Path(__file__).parents[1]
CASE = (sys.executable, str(Path(__file__).with_name("gpu_case.py")))

READY = "ready"
"""The line that a case's process writes when it has prepared all that needs no GPU."""

ERROR = "error"
"""The only key of a line that says why a case's process ends before it is done."""

NO_GPU = 3
"""The exit code of a case's process that finds no GPU to measure on, or another one than it should."""

CLOSING_S = 5.0
"""How long a process may take to end after it has closed its pipe."""

LOOKS_S = 0.5
"""How often it is looked whether a process is still there that says nothing."""

LINES = 15
"""The last lines of what a command prints are kept."""

OnRecord = Callable[[Mapping[str, Any]], None]


class NoGpuError(Exception):
    """There is no GPU to measure on; the case's process told why on stderr."""


@dataclass(frozen=True)
class Children:
    """Starts the processes of cases.

    Attributes:
        gpu: the number of the GPU in CUDA.
        expected: tells what the GPU has to be called; empty as long as that is not known.
        database: the profile database.
        folder: where scripts put results of their own.
        command: the words that start the process of a network.
        lock: a file that is locked by whoever needs the host's cores: for preparing a case, or for comparing.
    """

    gpu: int
    expected: Callable[[], str]
    database: Path
    folder: Path
    command: Sequence[str] = CASE
    lock: IO[bytes] = field(default_factory=tempfile.NamedTemporaryFile)

    def begin(self, case: Case) -> Child:
        """Prepares the case: a network is built by its process, which leaves the GPU alone until it may go on."""
        if isinstance(case, CommandCase):
            return _Command(case, self._filled(case), self.folder)
        assert isinstance(case, NetworkCase)
        reads, writes = os.pipe()
        words = [
            *self.command, key_of(case), "--gpu", str(self.gpu), "--expected", self.expected(), "--pipe", str(writes),
            "--profile-db", str(self.database), "--lock", self.lock.name,
        ]  # fmt: skip
        process = _started(words, writes, stdin=subprocess.PIPE, stdout=sys.stderr.fileno())
        return _Network(process, reads)

    def _filled(self, case: CommandCase) -> list[str]:
        values = {"gpu": self.gpu, "database": self.database, "folder": self.folder}
        return [sys.executable, *(word.format(**values) for word in case.words)]


class _Network:
    """The process of a network: what it prints goes to stderr, what it found comes as lines of JSON."""

    def __init__(self, process: subprocess.Popen[bytes], reads: int) -> None:
        self._process, self._reads = process, reads

    def prepare(self, most_s: float) -> None:
        """Waits until what needs no GPU is done, for at most that number of seconds."""
        _read_lines(self._process, self._reads, most_s, lambda line: None, until=READY)

    def go(self, seconds: float, limit_s: float, on_record: OnRecord) -> str:
        """Lets the case have the GPU, and returns why it did not come to its end; empty if it did.

        Args:
            seconds: how long it should take.
            limit_s: seconds after which it is ended.
            on_record: is given what was found, after every step; "complete" is true if nothing more will come.

        Raises:
            NoGpuError: there is no GPU, or it is another one than before.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is gone, and its exit code tells why
            # The clock is that of the machine, so that both mean the same, however long it still prepares.
            self._process.stdin.write(f"{time.monotonic() + seconds:.1f}\n".encode())
            self._process.stdin.flush()
        told: list[str] = []

        def received(line: str) -> None:
            record = json.loads(line)
            if ERROR in record:
                told.append(record[ERROR])
            else:
                on_record(record)

        if not _read_lines(self._process, self._reads, limit_s, received):
            return f"ended after {limit_s:.0f} s"
        code = _exit_code(self._process)
        if code == NO_GPU:
            raise NoGpuError
        return told[-1] if told else _reason(code)

    def stop(self) -> None:
        _end(self._process)
        os.close(self._reads)


class _Command:
    """The process of a script, which is not started before it has the GPU."""

    def __init__(self, case: CommandCase, words: Sequence[str], folder: Path) -> None:
        self._case, self._words, self._folder = case, words, folder
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self, most_s: float) -> None:
        pass

    def go(self, seconds: float, limit_s: float, on_record: OnRecord) -> str:
        del seconds
        began = time.monotonic()
        printed: list[str] = []

        def received(line: str) -> None:
            print(line, file=sys.stderr, flush=True)
            printed.append(line)

        reads, writes = os.pipe()
        try:
            self._process = _started(self._words, writes, stdin=subprocess.DEVNULL, stdout=writes)
            ended = _read_lines(self._process, reads, limit_s, received)
        finally:
            os.close(reads)
        reason = _reason(_exit_code(self._process)) if ended else f"ended after {limit_s:.0f} s"
        if self._case.printed and not reason:
            (self._folder / self._case.printed).write_text("\n".join(printed) + "\n", encoding="utf-8")
        seconds_s = round(time.monotonic() - began, 1)
        on_record({"complete": not reason, "printed": printed[-LINES:], "seconds": {"all": seconds_s}})
        return reason

    def stop(self) -> None:
        if self._process is not None:
            _end(self._process)


Child = _Network | _Command
"""A case that is going to be measured in a process of its own."""


def _started(words: Sequence[str], pipe: int, *, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    """A process that may write to the pipe, which is closed here.

    It has a process group of its own, so that compilers which it starts end with it; no session of its own, since a
    machine that ends what a call leaves running may spare those.
    """
    try:
        return subprocess.Popen(words, stdin=stdin, stdout=stdout, pass_fds=[pipe], process_group=0, cwd=ROOT)
    finally:
        os.close(pipe)


def _read_lines(
    process: subprocess.Popen[bytes], pipe: int, most_s: float, received: Callable[[str], None], until: str = ""
) -> bool:
    """Hands on the lines that come through the pipe until its end; False if that has not come after `most_s` seconds.

    A process that is gone ends it too: what it started may hold the pipe open. So does the line `until`, behind which
    nothing may come.
    """
    ends, rest, is_gone = time.monotonic() + most_s, b"", False
    while (left_s := ends - time.monotonic()) > 0:
        if not select.select([pipe], [], [], min(left_s, LOOKS_S))[0]:
            if is_gone:
                return True
            is_gone = process.poll() is not None
            continue
        content = os.read(pipe, 1 << 16)
        *lines, rest = (rest + content).split(b"\n")
        texts = [line.decode(errors="replace") for line in lines]
        if not content or (until and until in texts):
            return True
        for text in texts:
            received(text)
    return False


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """The exit code of a process that has closed its pipe; None if it does not end."""
    try:
        return process.wait(CLOSING_S)
    except subprocess.TimeoutExpired:
        return None


def _reason(code: int | None) -> str:
    if code is None:
        return "its process did not end"
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
