"""A process is identified by more than its number, which the system reuses."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from iosched.profiler.store.process import is_alive, this_process

pytestmark = pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="no Linux")

SAYS = "from iosched.profiler.store.process import this_process; print(this_process(), flush=True); input()"


def test_a_process_lives_until_it_ends() -> None:
    with subprocess.Popen([sys.executable, "-c", SAYS], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        text = other.stdout.readline().strip()
        assert text != this_process()
        assert is_alive(text)
        other.stdin.write("\n")  # it ends, and nobody waits for it yet
        other.stdin.flush()
        other.stdout.read()
        while is_alive(text):
            time.sleep(0.001)
    assert is_alive(text) is False
    assert is_alive(this_process())


def test_a_process_that_reuses_a_number_is_another_one() -> None:
    boot, namespace, number, started = this_process().split()
    assert is_alive(f"{boot} {namespace} {number} {int(started) + 1}") is False
    assert is_alive(f"{boot}0 {namespace} {number} {started}") is False, "before the machine was restarted"
    assert is_alive("") is False


def test_the_state_of_a_process_in_another_container_is_unknown() -> None:
    boot, _, number, started = this_process().split()
    assert is_alive(f"{boot} pid:[1] {number} {started}") is None
