"""Locks between processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from iosched.jobs.exploring.locking import machine, study_lock

HOLD = """
import sys, time
from pathlib import Path
from iosched.jobs.exploring.locking import machine, study_lock
with {lock}:
    print("held", flush=True)
    sys.stdin.read()
"""


class _WaitedError(Exception):
    pass


def _waited() -> None:
    raise _WaitedError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def _holder(lock: str) -> subprocess.Popen[str]:
    code = HOLD.format(lock=lock)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_scoring_waits_until_a_measuring_process_ends() -> None:
    with _holder("machine('measuring')") as holder:
        with pytest.raises(_WaitedError), machine("scoring", _waited):
            pass
        holder.kill()
        holder.wait()
        with machine("scoring", _waited), machine("scoring", _waited), pytest.raises(_WaitedError):
            machine("measuring", _waited).__enter__()


def test_a_study_is_held_by_one_process(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    code = "from iosched.jobs.exploring.locking import study_lock\nfrom pathlib import Path\n"
    code += f"with study_lock(Path({str(path)!r})): print('held')"
    with _holder(f"study_lock(Path({str(path)!r}))") as holder:
        with study_lock(tmp_path / "other.db"):
            pass
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(0.7)
            holder.kill()
            assert waiting.communicate(timeout=30)[0] == "held\n"
