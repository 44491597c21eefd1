"""Ctrl-C on a real terminal, and in a pipe."""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent.parent / "support"
OPTIMIZE, BATCH = "optimize branches.onnx", "batch a=branches.onnx b=branches.onnx"
_QUESTION = b"Write the best schedule found so far? [y/N]"

# The real command, but the fourth stage takes until $SIGNALS signals have arrived.
_COMMAND = """
import os, select, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with Ctrl-C ignored
from iosched.profiler.devices.cpu import measured_cost as cpu_cost
from iosched.profiler.measuring.statistics import summarize
done = 0
came, wake = os.pipe()
os.set_blocking(wake, False)
def told(run_batch, settings, **_):
    global done
    done += 1
    if done == 4:
        signal.set_wakeup_fd(wake)
    os.write(1, f"measuring {done}\\n".encode())  # the progress bar takes what is printed
    for count in range(int(os.environ["SIGNALS"]) if done == 4 else 0):
        select.select([came], [], [], 60)
        os.read(came, 1)
        os.write(1, f"interrupted {count + 1}\\n".encode())
    return summarize([50.0 + done] * 7)
cpu_cost.measure = told
from iosched.cli.main import main
sys.argv = ["iosched", *os.environ["WORDS"].split(), "--threads", "2"]
main()
"""


class Session:
    """The command on a separate terminal; stdout is a pipe that reports when a stage is being measured."""

    def __init__(self, signals: int = 1, words: str = OPTIMIZE) -> None:
        self._terminal, theirs = pty.openpty()
        self.shown = b""
        paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]  # the child runs the same package
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": os.pathsep.join(paths)}
        environment |= {"SIGNALS": str(signals), "WORDS": words}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND],
            stdin=theirs,
            stderr=theirs,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)

    def wait_for_line(self, what: bytes) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == what:
                return
        raise AssertionError(f"ended before {what!r}: {self.shown!r}")

    def wait_for_text(self, text: bytes, seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self._terminal], [], [], 0.1)[0]:
                self.shown += self._read()

    def press(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def end(self) -> int:
        """Waits for the exit code, and reads the remaining output."""
        end = time.monotonic() + 30
        while self._process.poll() is None:
            assert time.monotonic() < end, self.shown
            if select.select([self._terminal], [], [], 0.05)[0]:
                self.shown += self._read()
            if self._process.stdout is not None and select.select([self._process.stdout], [], [], 0)[0]:
                os.read(self._process.stdout.fileno(), 65536)
        self._process.communicate()
        os.close(self._terminal)
        return self._process.returncode

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:  # how Linux reports that the other side is closed
            return b""


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C on it is a signal to the command


@pytest.fixture
def session(model: Path) -> Session:
    return Session()


def written(workdir: Path) -> set[str]:
    return {path.name for path in workdir.iterdir()} - {"branches.onnx"}


@pytest.mark.slow
def test_answering_yes_writes_the_best_known_schedule(session: Session, workdir: Path) -> None:
    say_yes(session)
    assert written(workdir) == {"branches.iosched.onnx", "branches.schedule.json"}


@pytest.mark.slow
def test_answering_yes_writes_the_model_of_a_batch(model: Path, workdir: Path) -> None:
    say_yes(Session(words=BATCH))
    assert written(workdir) == {"batch.iosched.onnx"}


@pytest.mark.slow
def test_answering_yes_writes_the_best_variants_of_a_study(
    model: Path, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(workdir.parent))  # where no other study on this machine holds locks
    (workdir / "space.py").write_text("from toy_space import SPACE as space\n")
    words = "explore branches.onnx --space space.py --trials 9 --measure stages --top 1 -o ."
    say_yes(Session(words=words), b"Write the best variants found so far? [y/N]")
    assert {path.suffix for path in workdir.iterdir()} == {".py", ".db", ".json", ".onnx"}


def say_yes(session: Session, question: bytes = _QUESTION) -> None:
    session.wait_for_line(b"measuring 4")
    session.press(b"\x03")
    session.wait_for_text(question)
    session.press(b"y\n")
    assert session.end() == 0, session.shown
    assert session.shown.count(question) == 1


@pytest.mark.slow
@pytest.mark.parametrize("keys", [b"n\n", b"\n", b"\x03"], ids=["no", "nothing", "again"])
def test_anything_else_stops_without_files(session: Session, workdir: Path, keys: bytes) -> None:
    session.wait_for_line(b"measuring 4")
    session.press(b"\x03")
    session.wait_for_text(_QUESTION)
    session.press(keys)
    assert session.end() == 130
    assert written(workdir) == set()
    assert b"Interrupted" in session.shown


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_the_question(model: Path, workdir: Path) -> None:
    session = Session(signals=2)
    session.wait_for_line(b"measuring 4")
    session.press(b"\x03")
    session.wait_for_line(b"interrupted 1")
    session.press(b"\x03")
    assert session.end() == 130
    assert _QUESTION not in session.shown
    assert written(workdir) == set()


@pytest.mark.slow
def test_in_a_pipe_the_command_stops_without_asking(model: Path, workdir: Path) -> None:
    code, _, shown = interrupted_in_a_pipe(OPTIMIZE)
    assert code == 130
    assert "Interrupted" in shown
    assert "Write the best" not in shown
    assert written(workdir) == set()


@pytest.mark.slow
def test_ranking_prints_the_rows_that_are_done_without_asking(model: Path, workdir: Path) -> None:
    shutil.copy(model, "second.onnx")
    words = "rank branches.onnx second.onnx --device v100,cpu --measure stages --json"
    code, told, shown = interrupted_in_a_pipe(words)
    assert code == 130
    assert "Interrupted" in shown
    found = json.loads(told.splitlines()[-1])
    assert found["interrupted"]
    assert [(row["model"], row["device"], row["error"]) for row in found["rows"]] == [
        ("branches", "v100", None), ("second", "v100", "interrupted"),
        ("branches", "cpu", "interrupted"), ("second", "cpu", "interrupted"),
    ]  # fmt: skip


def interrupted_in_a_pipe(words: str) -> tuple[int, str, str]:
    """Sends SIGINT to a command; returns its exit code, and its stdout and stderr from then on."""
    environment = {**os.environ, "SIGNALS": "1", "WORDS": words}
    given = [sys.executable, "-c", _COMMAND]
    with subprocess.Popen(given, stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True, env=environment) as child:
        assert child.stdout is not None
        next(line for line in child.stdout if line.split() == ["measuring", "4"])
        child.send_signal(signal.SIGINT)
        try:
            told, shown = child.communicate(timeout=60)
        finally:
            child.kill()
    return child.returncode, told, shown
