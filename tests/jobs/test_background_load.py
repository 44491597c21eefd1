"""Busy processes run as long as their context, and never longer than their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from iosched.jobs.bench import busy_processes
from iosched.models.errors import ExecutionError

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")

_PARENT = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with Ctrl+C ignored
from iosched.jobs.bench import busy_processes
with busy_processes(2) as pids:
    print(*pids, flush=True)
    time.sleep(600)
"""


def state_of(pid: int) -> list[str]:
    """The fields in /proc/PID/stat after the name, the state first; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_running(pid: int) -> bool:
    return state_of(pid)[:1] not in ([], ["Z"])  # a zombie waits for its new parent to reap it


def wait_until(reached: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.01)
    return reached()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_given_number_of_processes_computes_until_the_context_ends(count: int) -> None:
    with busy_processes(count) as pids:
        assert len(set(pids)) == count
        for pid in pids:
            assert wait_until(lambda pid=pid: int(state_of(pid)[11]) >= 5)  # ticks of user time
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_processes_end_if_the_context_raises(error: type[BaseException]) -> None:
    with pytest.raises(error), busy_processes(2) as pids:  # noqa: PT012 - the context is the subject
        assert all(map(is_running, pids))
        raise error
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_processes_end_if_one_of_them_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Limited(subprocess.Popen[bytes]):
        def __init__(self, *arguments: object, **more: object) -> None:
            if len(started) == 2:
                raise BlockingIOError("no more processes")
            super().__init__(*arguments, **more)  # type: ignore[call-overload]
            started.append(self.pid)

    monkeypatch.setattr(subprocess, "Popen", Limited)
    with pytest.raises(BlockingIOError), busy_processes(3):
        pytest.fail("it began")
    assert len(started) == 2
    assert not any(map(is_running, started))


def test_a_load_that_ends_early_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="ended early"), busy_processes(2) as pids:  # noqa: PT012
        os.kill(pids[1], signal.SIGKILL)
        os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_processes_end_if_their_parent_is_killed(sent: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        parent.send_signal(sent)
    for pid in pids:
        assert wait_until(lambda pid=pid: not is_running(pid))
