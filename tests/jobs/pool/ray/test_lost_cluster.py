"""Killed processes: the driver notices, none of them is left, and another cluster can start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import session
from clusters import driver, surroundings

from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.transport import Stop, Unreached

LOCAL = LocalCluster(1)
GONE_WITHIN_S = 30.0

DRIVER = """
import sys, time
from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
transport = RayTransport(LocalCluster(1), made_by="ray_workers:Standin")
while not transport.receive(1.0):
    pass
print(transport.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path) -> Iterator[None]:
    with surroundings(tmp_path):
        yield


def is_gone(leader: int) -> bool:
    until = time.monotonic() + GONE_WITHIN_S
    while session.members(leader) and time.monotonic() < until:
        time.sleep(0.1)
    return session.members(leader) == ()


@pytest.mark.slow
def test_another_cluster_starts_after_the_child_is_killed() -> None:
    with driver(LOCAL) as first:
        worker, _ = first.up(first.places()[0])
        session.kill(session.child(first.transport.pid), first.transport.pid)
        told = "the process that talks to Ray was killed by signal 9"
        assert first.next(Unreached) == Unreached(told, has_ended=True)
        assert session.members(first.transport.pid) == ()
        first.transport.send(Stop(worker))
        assert first.transport.receive(0.1) == []
    with driver(LOCAL) as second:
        second.up(second.places()[0])


@pytest.mark.slow
def test_the_child_ends_with_its_supervisor() -> None:
    with driver(LOCAL) as found:
        found.places()
        folder = Path(f"/proc/{found.transport.pid}/cwd").readlink()
        session.kill(found.transport.pid, found.transport.pid)
        told = "the process that talks to Ray was killed by signal 9"
        assert found.next(Unreached) == Unreached(told, has_ended=False)
        assert is_gone(found.transport.pid)
        assert not folder.exists()


@pytest.mark.slow
def test_nothing_is_left_after_the_driver_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        folder = Path(f"/proc/{child}/cwd").readlink()
        process.kill()
    assert is_gone(child)
    assert not folder.exists()
