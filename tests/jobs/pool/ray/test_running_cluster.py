"""A running cluster, reached from one of its machines and from outside; its head dies."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
import session
from clusters import Driver, driver, kill, surroundings

from iosched.jobs.pool.ray.address import RunningCluster
from iosched.jobs.pool.transport import Lost, Place, Places, Unreached

pytestmark = pytest.mark.slow

TWO_MACHINES = """
from ray.cluster_utils import Cluster
offers = {"resources": {"iosched_cpu": 1}, "object_store_memory": 80_000_000, "include_dashboard": False}
cluster = Cluster(True, head_node_args=offers)
machine = cluster.add_node(**offers)
print(cluster.address, flush=True)
input()
cluster.remove_node(machine, allow_graceful=False)
input()
"""
SEEN_WITHIN_S = 30.0  # 10 s by the child's own clock; this machine may be busy


@dataclass
class Head:
    """The head of a cluster on the loopback interface, which also is its only node; a context manager."""

    port: int
    client_port: int

    def __enter__(self) -> Head:
        ports = [f"--port={self.port}", f"--ray-client-server-port={self.client_port}"]
        offers = ["--num-cpus=1", "--num-gpus=0", '--resources={"iosched_cpu": 5}', "--object-store-memory=80000000"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--node-ip-address=127.0.0.1"]
        told = subprocess.PIPE
        with subprocess.Popen(
            [*command, *ports, *offers, "--include-dashboard=false"],
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            self.session = process.pid
            try:
                out, _ = process.communicate(timeout=60)
                assert process.returncode == 0, out.decode()
            except BaseException:
                session.end(self.session)
                raise
        return self

    def __exit__(self, *_: object) -> None:
        session.end(self.session)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """A head that is not started yet."""
    folder = Path(tempfile.mkdtemp(prefix="head-", dir="/tmp"))  # Ray's sockets below need a short path
    (folder / "token").write_text("0" * 64)
    settings = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folder / "token"),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        "RAY_health_check_period_ms": "300",  # otherwise a lost machine is noticed after 30 s
        "RAY_health_check_initial_delay_ms": "300",
        "GRPC_ENABLE_FORK_SUPPORT": "0",  # as in docs/fleet.md
    }
    with surroundings(tmp_path, **settings):
        yield Head(free_port(), free_port())
    shutil.rmtree(folder, ignore_errors=True)


def works(found: Driver, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Three workers start, and one receives the model unchanged; returns them and their descriptions."""
    (place,) = found.places()
    assert place == Place(socket.gethostname(), "127.0.0.1", "cpu", 1, 1)
    workers = [found.up(place) for _ in range(3)]
    worker, _ = workers[0]
    model = os.urandom(300_000)
    digest = hashlib.sha256(model).hexdigest()
    (tmp_path / "model").write_bytes(model)
    found.ask(worker, str(tmp_path / "model"), digest=True)
    assert found.said(worker) == digest
    return workers


def test_drivers_with_the_token_use_it_until_its_head_dies_and_again_after_a_restart(
    head: Head, tmp_path: Path
) -> None:
    direct = RunningCluster(f"127.0.0.1:{head.port}")
    client = RunningCluster(f"ray://127.0.0.1:{head.client_port}")
    with head, ExitStack() as stack:
        with surroundings(tmp_path, RAY_AUTH_TOKEN="1" * 64, RAY_NUM_REDIS_GET_RETRIES="2"):  # Ray's attempts
            stranger = stack.enter_context(driver(direct))
        drivers = [stack.enter_context(driver(cluster)) for cluster in (RunningCluster(None), direct, client)]
        for found in drivers:
            (killed, facts), (failing, _), _ = works(found, tmp_path)
            os.kill(facts["pid"], signal.SIGKILL)
            assert found.next(Lost) == Lost(killed, "its process ended", has_ended=True)
            found.ask(failing, fail="broken")
            assert found.next(Lost) == Lost(failing, "RuntimeError: broken", has_ended=True)
        assert "If it has a token, set RAY_AUTH_MODE=token and" in stranger.next(Unreached).reason
        kill(head.session, "gcs_server")
        began = time.monotonic()
        for found in drivers:
            assert not found.next(Unreached).has_ended
            assert time.monotonic() - began < SEEN_WITHIN_S
    with head, driver(direct) as another:
        works(another, tmp_path)


@contextmanager
def two_machines() -> Iterator[tuple[RunningCluster, IO[str]]]:
    """A cluster of a head and a second machine, which dies once a line is written."""
    with subprocess.Popen(
        [sys.executable, "-c", TWO_MACHINES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            yield RunningCluster(process.stdout.readline().strip()), process.stdin
        finally:
            session.end(process.pid)


@pytest.mark.usefixtures("head")
def test_a_machine_that_dies_takes_its_workers_with_it() -> None:
    with two_machines() as (cluster, killer), driver(cluster) as found:
        places = found.places()
        workers = {place: found.up(place)[0] for place in places}
        print(file=killer, flush=True)
        lost = found.next(Lost)
        (left,) = found.next(Places).places
        (gone,) = set(places) - {left}
        assert lost == Lost(workers[gone], "its machine left the cluster", has_ended=True)
