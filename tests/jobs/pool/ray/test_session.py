"""Who is killed with a session, and who never is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from iosched.jobs.pool.ray import session

TWO = "import subprocess, sys; subprocess.Popen(['sleep', '600']); print(flush=True); sys.stdin.read()"


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[str]]:
    """A process with a session of its own, in which it has started another."""
    with subprocess.Popen(
        [sys.executable, "-c", TWO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        for pid in session.members(process.pid):
            session.kill(pid, process.pid)


def test_all_of_a_session_are_killed(leader: subprocess.Popen[str]) -> None:
    assert len(session.members(leader.pid)) == 2
    session.end(leader.pid)
    assert session.members(leader.pid) == ()
    assert leader.wait() == -9


def test_one_may_be_spared(leader: subprocess.Popen[str]) -> None:
    session.end(leader.pid, but=leader.pid)
    assert session.members(leader.pid) == (leader.pid,)


@pytest.mark.parametrize("number", [0, -1, os.getsid(0)], ids=["that of the system", "none", "ours"])
def test_a_session_that_nobody_here_began_is_not_ended(number: int) -> None:
    with pytest.raises(ValueError, match="is not one to end"):
        session.end(number)


def test_a_process_of_another_session_is_not_killed(leader: subprocess.Popen[str]) -> None:
    """As one that has the number of a member which has ended."""
    session.kill(leader.pid, leader.pid + 1)
    assert leader.pid in session.members(leader.pid)


@pytest.mark.parametrize("missing", [AttributeError, OSError])
def test_it_works_without_descriptors_of_processes(
    leader: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, missing: type[Exception]
) -> None:
    def refuse(pid: int) -> int:
        raise missing

    monkeypatch.setattr(os, "pidfd_open", refuse)
    session.end(leader.pid)
    assert leader.wait() == -9
