"""Finding and checking the address of a cluster."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from iosched.jobs.pool.ray.reach import ClusterUnreachableError, check, known_address, patiently


def test_the_environment_names_the_cluster() -> None:
    assert known_address({"RAY_ADDRESS": "ray://head:10001"}) == "ray://head:10001"


@pytest.mark.parametrize("named", ["", "auto", "local"])
def test_otherwise_the_cluster_of_this_machine_is_used(tmp_path: Path, named: str) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.7:6379\n")
    assert known_address({"RAY_ADDRESS": named, "RAY_TMPDIR": str(tmp_path)}) == "10.0.0.7:6379"


def test_without_a_known_cluster_the_error_names_the_command_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(
        ClusterUnreachableError, match="no Ray cluster is known on this machine: start one with `ray start --head`"
    ):
        known_address({"RAY_TMPDIR": str(tmp_path)})


def test_an_address_where_nothing_listens_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        check(f"127.0.0.1:{port}")
        check(f"ray://127.0.0.1:{port}")
    with pytest.raises(ClusterUnreachableError, match=f"no Ray cluster at ray://127.0.0.1:{port}: connection refused"):
        check(f"ray://127.0.0.1:{port}")


@pytest.mark.parametrize("address", ["nonsense", "local", "head:port"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ClusterUnreachableError, match="is no address of a cluster"):
        check(address)


class Head:
    """Fails with these errors in order, then connects."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)

    def connect(self) -> None:
        if self.failures:
            raise self.failures.pop(0)


ABORTED = ConnectionAbortedError("Initialization failure from server:")


@pytest.mark.parametrize("failures", [[], [ABORTED], [ABORTED] * 2])
def test_connecting_is_retried_if_no_ray_client_server_started(failures: list[Exception]) -> None:
    head = Head(*failures)
    patiently(head.connect)
    assert head.failures == []


def test_connecting_is_retried_at_most_twice() -> None:
    head = Head(*[ABORTED] * 4)
    with pytest.raises(ConnectionAbortedError):
        patiently(head.connect)
    assert head.failures == [ABORTED]


@pytest.mark.parametrize(
    "error", [ConnectionError("ray client connection timeout"), ClusterUnreachableError("none"), OSError()]
)
def test_other_errors_are_not_retried(error: Exception) -> None:
    with pytest.raises(type(error)):
        patiently(Head(error).connect)
