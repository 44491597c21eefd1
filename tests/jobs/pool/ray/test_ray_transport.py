"""The driver's end of a connection without a cluster, or without one at first."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from iosched.jobs.pool.ray import ray_transport
from iosched.jobs.pool.ray.address import LocalCluster, RunningCluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.ray.reach import ClusterUnreachableError, reason, unreached
from iosched.jobs.pool.transport import Places, Stop, Unreached
from iosched.models.errors import DeviceError, UsageError

NOWHERE = RunningCluster("127.0.0.1:9")


def test_without_ray_the_error_names_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_transport, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"Ray, .*: pip install '\.\[fleet\]'"):
        RayTransport(NOWHERE)


def test_too_many_local_workers_are_refused_before_anything_is_started() -> None:
    with pytest.raises(UsageError, match="needs 1024 cores"):
        RayTransport(LocalCluster(1024))


@pytest.mark.slow
def test_a_missing_cluster_is_reported_as_an_event() -> None:
    there = RayTransport(NOWHERE)
    (event,) = there.receive(60)
    assert event == Unreached("no Ray cluster at 127.0.0.1:9: connection refused", has_ended=False)
    there.send(Stop("w"))
    assert there.receive(0.05) == []
    there.close()
    there.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            Exception("The actor died.\nThe actor is dead because its worker process has died. Exit type: X"),
            "its process ended",
        ),
        (Exception("... because its node has died."), "its machine left the cluster"),
        (
            Exception("Traceback\n  ...\nModuleNotFoundError: No module named 'iosched'"),
            "iosched is not installed on its machine",
        ),
        (Exception("Traceback\nValueError: odd\n\n"), "ValueError: odd"),
        (Exception(), "Exception"),
        (
            Exception("Traceback\n  ...\niosched.models.errors.DeviceError: no V100 here:\nsee `iosched devices`"),
            "no V100 here: see `iosched devices`",
        ),
    ],
)
def test_the_reason_for_a_lost_worker_is_one_sentence(error: Exception, words: str) -> None:
    assert reason(error) == words


ABORTED = "Initialization failure from server:\n"
TRACEBACK = """Traceback (most recent call last):
  File "proxier.py", line 772, in Datapath
    raise RuntimeError(
RuntimeError: Starting Ray client server failed. See ray_client_server_23002.err for detailed logs.
"""
NO_SERVER = "the Ray cluster cannot be used: its head could not start a server for Ray Client: "


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ClusterUnreachableError("no Ray cluster at head:6379"), "no Ray cluster at head:6379"),
        (
            ConnectionAbortedError(ABORTED + TRACEBACK),
            f"{NO_SERVER}RuntimeError: Starting Ray client server failed. See ray_client_server_23002.err for detailed"
            " logs.",
        ),
        (ConnectionAbortedError(ABORTED + "Call failed with:\nmore"), f"{NO_SERVER}Call failed with:"),
        (ConnectionAbortedError("Odd"), f"{NO_SERVER}Odd"),
        (RuntimeError("\nVersion mismatch: ...\n  Ray: 2.60"), "the Ray cluster cannot be used: Version mismatch: ..."),
        (ValueError(), "the Ray cluster cannot be used: ValueError()"),
    ],
)
def test_the_reason_for_an_unreached_cluster_is_one_sentence(error: Exception, words: str) -> None:
    assert unreached(error) == words


def test_a_failed_connection_without_a_reason_names_tokens() -> None:
    told = unreached(ConnectionError("Failed to connect to Ray cluster at 127.0.0.1:1\nand more"))
    assert told.startswith("the Ray cluster does not let this machine in: Failed to connect to Ray cluster at")
    assert "set RAY_AUTH_MODE=token" in told


RAY = """
import os
failures = int(os.environ["FAILURES"])

def init(address, **_):
    global failures
    failures -= 1
    if failures >= 0:
        raise ConnectionAbortedError("Initialization failure from server:\\n" + os.environ["FAILURE"])

def nodes():
    return []

def shutdown():
    pass
"""
MODULES = {
    "__init__": RAY,
    "exceptions": "class ActorDiedError(Exception): pass",
    "util/__init__": "",
    "util/scheduling_strategies": "class NodeAffinitySchedulingStrategy: pass",
}


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningCluster]:
    """A cluster for a child process whose `ray` is a fake module that fails a given number of times."""
    for path, text in MODULES.items():
        module = tmp_path / "ray" / f"{path}.py"
        module.parent.mkdir(exist_ok=True)
        module.write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("FAILURE", TRACEBACK)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield RunningCluster(f"ray://127.0.0.1:{server.getsockname()[1]}")


def test_a_server_of_ray_client_that_could_not_be_started_is_asked_for_again(
    address: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILURES", "2")
    with closing(RayTransport(address)) as there:
        assert there.receive(60) == [Places(())]


def test_after_three_failures_the_reason_is_reported(address: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILURES", "3")
    there = RayTransport(address)
    assert there.receive(60) == [Unreached(NO_SERVER + TRACEBACK.splitlines()[-1], has_ended=False)]
    there.close()
