"""A pool on a real local cluster, parts of which are killed: no measurement is lost or repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import session
from clusters import PATIENCE_S, surroundings
from clusters import soon as soon_at_all
from ray_workers import slept_task
from thread_cluster import KEY, Kept

from iosched.jobs.pool.cluster import ClusterPool
from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.task import Pending
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cores import cpu_count

SLEPT = "ray_workers:Slept"
WORKERS = min(2, cpu_count())
LENGTHS_S = [0.1] * 12

DRIVER = """
import sys, time
from pathlib import Path
from ray_workers import slept_task
from test_kills import LENGTHS_S, pool_on, result
with pool_on(Path(sys.argv[1])) as pool:
    print(result(pool, pool.submit(slept_task("network", LENGTHS_S))), flush=True)
"""


@contextmanager
def pool_on(path: Path) -> Iterator[ClusterPool]:
    def connect() -> RayTransport:
        return RayTransport(LocalCluster(WORKERS), made_by=SLEPT)

    with ClusterPool(connect, path, Kept([], [])) as pool:
        yield pool


def result(pool: ClusterPool, pending: Pending[Any]) -> Any:
    pool.wait([pending], PATIENCE_S)
    return pending.result()


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with surroundings(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile") / "profile.sqlite"


@pytest.fixture(scope="module")
def pool(path: Path) -> Iterator[ClusterPool]:
    with pool_on(path) as pool:
        yield pool


def soon(pool: ClusterPool, condition: Callable[[], object]) -> None:
    """Runs the pool until the condition holds."""
    soon_at_all(lambda: pool.wait([], 0.05) or condition())


def known(path: Path, name: str) -> set[str]:
    with ProfileDatabase(path) as database:
        return {stage for stage in database.stage_medians(KEY) if stage.endswith(f" of {name}")}


def holders(pool: ClusterPool, *names: str) -> list[int]:
    """The processes of the workers that run tasks of these names."""
    return processes(pool, {f"toy {name}" for name in names})


def processes(pool: ClusterPool, doing: Collection[str]) -> list[int]:
    return [int(pool._slots.active[each.name].facts.name) for each in pool.status().workers if each.doing in doing]


def kill(pool: ClusterPool, pid: int | None = None) -> None:
    """Kills a process of the pool's cluster: the one that talks to Ray, or a worker."""
    transport = pool._transport
    assert isinstance(transport, RayTransport)
    session.kill(pid or session.child(transport.pid), transport.pid)


@pytest.mark.slow
def test_a_worker_is_killed_while_it_measures(pool: ClusterPool, path: Path) -> None:
    pending = pool.submit(slept_task("one", LENGTHS_S))
    soon(pool, lambda: len(known(path, "one")) >= 2 and holders(pool, "one"))
    before = known(path, "one")
    kill(pool, holders(pool, "one")[0])
    measured = set(result(pool, pending))
    assert not measured & before
    assert len(known(path, "one")) == len(LENGTHS_S)
    soon(pool, lambda: len(pool.status().lost) == 1)


@pytest.mark.slow
def test_new_workers_replace_all_that_were_killed(pool: ClusterPool, path: Path) -> None:
    # A task is done before a worker is back that an earlier test, if one ran, has killed.
    soon(pool, lambda: len(pool.status().workers) == WORKERS or not pool.status().lost)
    names = ["a", "b"][:WORKERS]
    all_pending = [pool.submit(slept_task(name, LENGTHS_S)) for name in names]
    soon(pool, lambda: len(holders(pool, *names)) == WORKERS and all(len(known(path, name)) >= 2 for name in names))
    before = {name: known(path, name) for name in names}
    for pid in holders(pool, *names):
        kill(pool, pid)
    for name, pending in zip(names, all_pending, strict=True):
        assert not set(result(pool, pending)) & before[name]
        assert len(known(path, name)) == len(LENGTHS_S)


@pytest.mark.slow
@pytest.mark.skipif(WORKERS < 2, reason="needs two cores")
def test_questions_of_a_search_are_shared_while_a_worker_is_killed(pool: ClusterPool, path: Path) -> None:
    def helpers() -> list[int]:
        return processes(pool, {f"{count} stages of search" for count in (1, 2, 3)})

    pending = pool.submit(slept_task("search", 2 * LENGTHS_S, asks=len(LENGTHS_S)))
    soon(pool, helpers)
    kill(pool, helpers()[0])
    assert result(pool, pending) == [], "all were answered by packets"
    assert len(known(path, "search")) == 2 * len(LENGTHS_S)


@pytest.mark.slow
def test_the_process_that_talks_to_ray_is_killed(pool: ClusterPool, path: Path) -> None:
    pending = pool.submit(slept_task("cluster", LENGTHS_S))
    soon(pool, lambda: len(known(path, "cluster")) >= 2)
    before = known(path, "cluster")
    kill(pool)
    assert not set(result(pool, pending)) & before
    assert len(known(path, "cluster")) == len(LENGTHS_S)


@pytest.mark.slow
def test_another_driver_continues_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    search = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": search}
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(path)], env=environment) as driver:
        soon_at_all(lambda: path.exists() and len(known(path, "network")) >= 2)
        driver.kill()
    before = known(path, "network")
    with pool_on(path) as pool:
        measured = result(pool, pool.submit(slept_task("network", LENGTHS_S)))
    assert 2 <= len(before) < len(LENGTHS_S)
    assert not set(measured) & before
    assert len(known(path, "network")) == len(LENGTHS_S)
