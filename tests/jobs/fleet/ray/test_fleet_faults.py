"""A fleet on a real local cluster, of which parts are killed: nothing that was measured is lost or measured again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from clusters import PATIENCE_S, soon, surroundings
from fleet_threads import KEY
from slept_worker import slept_errand

from iosched.jobs.fleet.fleet import Fleet
from iosched.jobs.fleet.ray import session
from iosched.jobs.fleet.ray.address import LocalCluster
from iosched.jobs.fleet.ray.transport import RayTransport
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cores import cpu_count

SLEPT = "slept_worker:Slept"
WORKERS = min(2, cpu_count())
LENGTHS_S = [0.1] * 12

DRIVER = """
import sys, time
from pathlib import Path
from slept_worker import slept_errand
from test_fleet_faults import LENGTHS_S, fleet_on
with fleet_on(Path(sys.argv[1])) as fleet:
    print(fleet.submit(slept_errand("network", LENGTHS_S)).result(), flush=True)
"""


@contextmanager
def fleet_on(path: Path) -> Iterator[Fleet]:
    def connect() -> RayTransport:
        return RayTransport(LocalCluster(WORKERS), made_by=SLEPT)

    with Fleet(connect, lambda: ProfileDatabase(path)) as fleet:
        yield fleet


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with surroundings(tmp_path_factory.mktemp("home")):
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("profile") / "profile.sqlite"


@pytest.fixture(scope="module")
def fleet(path: Path) -> Iterator[Fleet]:
    with fleet_on(path) as fleet:
        yield fleet


def known(path: Path, name: str) -> set[str]:
    with ProfileDatabase(path) as database:
        return {stage for stage in database.stage_medians(KEY) if stage.endswith(f" of {name}")}


def holders(fleet: Fleet, *names: str) -> list[int]:
    """The processes of the workers that do errands of these names."""
    return [int(each.product) for each in fleet.status().workers if each.doing in {f"toy {name}" for name in names}]


def kill(fleet: Fleet, pid: int | None = None) -> None:
    """Kills a process of the fleet's cluster: the one that talks to Ray, or a worker."""
    transport = fleet._transport
    assert isinstance(transport, RayTransport)
    session.kill(pid or transport.pid, transport.pid)


@pytest.mark.slow
def test_a_worker_is_killed_while_it_measures(fleet: Fleet, path: Path) -> None:
    future = fleet.submit(slept_errand("one", LENGTHS_S))
    soon(lambda: len(known(path, "one")) >= 2 and holders(fleet, "one"))
    before = known(path, "one")
    kill(fleet, holders(fleet, "one")[0])
    measured = set(future.result(PATIENCE_S))
    assert not measured & before
    assert len(known(path, "one")) == len(LENGTHS_S)
    soon(lambda: len(fleet.status().lost) == 1)


@pytest.mark.slow
def test_all_workers_are_killed_and_new_ones_come(fleet: Fleet, path: Path) -> None:
    # An errand is done before a worker is back that an earlier test, if one ran, has killed.
    soon(lambda: len(fleet.status().workers) == WORKERS or not fleet.status().lost)
    names = ["a", "b"][:WORKERS]
    futures = [fleet.submit(slept_errand(name, LENGTHS_S)) for name in names]
    soon(lambda: len(holders(fleet, *names)) == WORKERS and all(len(known(path, name)) >= 2 for name in names))
    before = {name: known(path, name) for name in names}
    for pid in holders(fleet, *names):
        kill(fleet, pid)
    for name, future in zip(names, futures, strict=True):
        assert not set(future.result(PATIENCE_S)) & before[name]
        assert len(known(path, name)) == len(LENGTHS_S)


@pytest.mark.slow
@pytest.mark.skipif(WORKERS < 2, reason="needs two cores")
def test_questions_of_a_search_are_shared_while_a_worker_is_killed(fleet: Fleet, path: Path) -> None:
    def helpers() -> list[int]:
        packets = {f"{count} stages of search" for count in (1, 2, 3)}
        return [int(each.product) for each in fleet.status().workers if each.doing in packets]

    future = fleet.submit(slept_errand("search", 2 * LENGTHS_S, asks=len(LENGTHS_S)))
    soon(helpers)
    kill(fleet, helpers()[0])
    assert future.result(PATIENCE_S) == [], "all were answered by packets"
    assert len(known(path, "search")) == 2 * len(LENGTHS_S)


@pytest.mark.slow
def test_the_process_that_talks_to_ray_is_killed(fleet: Fleet, path: Path) -> None:
    future = fleet.submit(slept_errand("cluster", LENGTHS_S))
    soon(lambda: len(known(path, "cluster")) >= 2)
    before = known(path, "cluster")
    kill(fleet)
    assert not set(future.result(PATIENCE_S)) & before
    assert len(known(path, "cluster")) == len(LENGTHS_S)


@pytest.mark.slow
def test_the_driver_is_killed_and_another_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "profile.sqlite"
    search = os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": search}
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(path)], env=environment) as driver:
        soon(lambda: path.exists() and len(known(path, "network")) >= 2)
        driver.kill()
    before = known(path, "network")
    with fleet_on(path) as fleet:
        measured = fleet.submit(slept_errand("network", LENGTHS_S)).result(PATIENCE_S)
    assert 2 <= len(before) < len(LENGTHS_S)
    assert not set(measured) & before
    assert len(known(path, "network")) == len(LENGTHS_S)
