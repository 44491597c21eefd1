"""Commands of a user: whatever they do, they end and leave no process behind."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from iosched.jobs.exploring import running
from iosched.jobs.exploring.running import run_command

SETSID_SLEEP = "import os, time; os.setsid(); open({path!r}, 'w').write(str(os.getpid())); time.sleep(600)"

INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""Needed by processes started in the background, as their parent, these tests, may ignore SIGINT."""


def _python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _wait_until(condition: object, seconds: float = 20) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_command_ends_with_its_exit_code_and_its_output() -> None:
    ran = run_command(
        _python("import sys; print('a'); print('b'); sys.stderr.write('oh'); sys.exit(3)"), timeout_s=None
    )
    assert (ran.code, ran.out, ran.errors, ran.cut) == (3, "a\nb\n", "oh", None)


def test_a_command_runs_without_a_shell_and_with_empty_stdin() -> None:
    ran = run_command(
        [*_python("import sys; print(sys.argv[1:], repr(sys.stdin.read()))"), "$HOME; ls", "a b"], timeout_s=30
    )
    assert ran.out == "['$HOME; ls', 'a b'] ''\n"


def test_a_signal_is_an_exit_code_as_in_a_shell() -> None:
    ran = run_command(_python("import os; os.kill(os.getpid(), 9)"), timeout_s=30)
    assert (ran.code, ran.cut) == (128 + signal.SIGKILL, None)


def test_a_missing_program_is_reported() -> None:
    ran = run_command(["/no/such/program"], timeout_s=30)
    assert ran.code == 127
    assert "/no/such/program" in ran.errors


@pytest.mark.slow
def test_a_hanging_command_is_ended_in_time_with_all_its_processes(tmp_path: Path) -> None:
    """Including a child in its own session that holds the pipe open, and a process that ignores SIGTERM."""
    written = tmp_path / "pid"
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {SETSID_SLEEP.format(path=str(written))!r}]);"
        "time.sleep(600)"
    )
    ran = run_command(_python(code), timeout_s=1.0)
    assert ran.cut == "time"
    assert not _is_alive(int(written.read_text()))


def test_processes_left_by_a_command_are_ended(tmp_path: Path) -> None:
    written = tmp_path / "pid"
    code = (
        "import os, subprocess, sys, time;"
        f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {SETSID_SLEEP.format(path=str(written))!r}]);\n"
        f"while not os.path.exists({str(written)!r}) or not open({str(written)!r}).read(): time.sleep(0.01)\n"
        "print(0.5)"
    )
    ran = run_command(_python(code), timeout_s=30)
    assert (ran.code, ran.out, ran.cut) == (0, "0.5\n", None)
    assert not _is_alive(int(written.read_text()))


def test_a_command_with_too_much_output_is_ended_and_the_output_cut() -> None:
    ran = run_command(_python("while True: print('x' * 10000)"), timeout_s=60)
    assert ran.cut == "output"
    assert len(ran.out) <= 2**18


def test_a_command_can_be_stopped_by_its_output() -> None:
    lines: list[str] = []
    code = "import time\nfor n in range(10**6): print(n, flush=True); time.sleep(0.05)"
    ran = run_command(_python(code), timeout_s=60, is_stopped=lambda: "2" in lines, on_line=lines.append)
    assert ran.cut == "stopped"
    assert lines[:3] == ["0", "1", "2"]


def test_a_command_that_has_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class OfSomething(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            assert self.get_map() or timeout == 0
            return super().select(timeout)

        def unregister(self, stream: Any) -> selectors.SelectorKey:
            with suppress(ChildProcessError):  # a stream ends a moment before its process does
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            return super().unregister(stream)

    monkeypatch.setattr(selectors, "DefaultSelector", OfSomething)
    assert run_command(["echo", "1"], timeout_s=30).out == "1\n"


def test_invalid_utf_8_is_replaced() -> None:
    ran = run_command(_python(r"import sys; sys.stdout.buffer.write(b'\xff\xfe\n')"), timeout_s=30)
    assert ran.out == "\ufffd\ufffd\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_ends_with_the_process_that_runs_it(tmp_path: Path, number: signal.Signals) -> None:
    written = tmp_path / "pid"
    sleeping = _python(SETSID_SLEEP.format(path=str(written)))
    running = f"from iosched.jobs.exploring.running import run_command\nrun_command({sleeping!r}, timeout_s=None)"
    code = f"{INTERRUPTIBLE}\n{running}"
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ, stderr=subprocess.DEVNULL)
    _wait_until(lambda: written.exists() and written.read_text())
    process.send_signal(number)
    process.wait(30)
    _wait_until(lambda: not _is_alive(int(written.read_text())))


TERMINATED = """
import os, signal, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
import supervisor
started, end_all = subprocess.Popen, supervisor._end_all
def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
def begun(command):
    process = started(command)
    print(process.pid, flush=True)
    if sys.argv[2] == "begun":
        terminated()
    return process
def ended():
    if sys.argv[2] == "ended":
        terminated()
    end_all()
subprocess.Popen, supervisor._end_all = begun, ended
sys.exit(supervisor.main(os.getppid(), sys.argv[3:]))
"""


@pytest.mark.parametrize(("when", "code"), [("begun", 128 + signal.SIGTERM), ("ended", 0)])
def test_a_supervisor_terminated_as_a_command_starts_or_ends_leaves_nothing(
    tmp_path: Path, when: str, code: int
) -> None:
    written = tmp_path / "pid"
    child = f"subprocess.Popen([sys.executable, '-I', '-S', '-c', {SETSID_SLEEP.format(path=str(written))!r}])"
    until_it_runs = f"while not os.path.exists({str(written)!r}): pass"
    end = "time.sleep(600)" if when == "begun" else f"exec({until_it_runs!r})"
    command = _python(f"import os, subprocess, sys, time; {child}; {end}")
    supervisor = [*_python(TERMINATED), str(Path(running.__file__).parents[1]), when, *command]
    done = subprocess.run(supervisor, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, b"")
    assert not _is_alive(int(done.stdout))
    assert not written.exists() or not _is_alive(int(written.read_text()))
