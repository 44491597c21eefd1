"""Searches on a real local cluster whose processes are killed: they continue, and no measurement is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
import session
from clusters import WORKER, kill, named, soon, surroundings
from small_models import branches

from iosched.jobs.optimize import OptimizeResult, OptimizeSettings
from iosched.jobs.optimize_task import optimize_on
from iosched.jobs.pool.cluster import ClusterPool, PoolStatus
from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.ray.places import local_places
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.timeouts import Timeouts
from iosched.models.load import load_model
from iosched.models.version import iosched_version
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow
from iosched.runtime.cores import cpu_count

pytestmark = pytest.mark.slow

WORKERS = min(2, cpu_count())
PATIENCE = Timeouts(reconnect_s=0.1)
QUIET = "ray_workers:quiet"
SETTINGS = OptimizeSettings(device="cpu", threads=1)
SEEN_WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def _surroundings(tmp_path: Path) -> Iterator[None]:
    with surroundings(tmp_path):
        yield


class Killer:
    """Makes the transports of a pool; after the first measurement, kills something once."""

    def __init__(self, path: Path, victims: Callable[[RayTransport], None], made_by: str = QUIET) -> None:
        self.path, self.victims, self.made_by = path, victims, made_by
        self.transports: list[RayTransport] = []
        self.before: frozenset[StageRow] = frozenset()
        self.notes: list[str] = []
        self.lost: tuple[str, ...] = ()

    def connect(self) -> RayTransport:
        self.transports.append(RayTransport(LocalCluster(WORKERS), 1, self.made_by))
        if len(self.transports) == 1:
            Thread(target=self._kill, daemon=True).start()
        return self.transports[-1]

    def note(self, text: str) -> None:
        self.notes.append(text)

    def status(self, status: PoolStatus) -> None:
        self.lost = status.lost

    def _kill(self) -> None:
        until = time.monotonic() + SEEN_WITHIN_S
        while not self.before and time.monotonic() < until:
            time.sleep(0.02)
            self.before = stages(self.path)
        self.victims(self.transports[-1])


def stages(path: Path) -> frozenset[StageRow]:
    """The measured stages; a comparison of whole models is repeated by each job."""
    if not path.exists():
        return frozenset()
    with ProfileDatabase(path) as database:
        return frozenset(row for row in database.rows() if isinstance(row, StageRow))


def kill_workers(transport: RayTransport) -> None:
    for pid in named(transport.pid, WORKER):
        session.kill(pid, transport.pid)


def kill_head(transport: RayTransport) -> None:
    kill(transport.pid, "gcs_server")


def optimized(pool: ClusterPool) -> OptimizeResult:
    return optimize_on(pool, load_model(branches().SerializeToString(), name="branches"), SETTINGS)


def opened(killer: Killer) -> ClusterPool:
    return ClusterPool(killer.connect, killer.path, killer, PATIENCE)


def sooner_or_later(pool: ClusterPool, condition: Callable[[], object]) -> None:
    """Runs the pool until the condition holds."""
    soon(lambda: pool.wait([], 0.05) or condition())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.sqlite"


def test_a_search_continues_on_new_workers_after_all_were_killed(path: Path) -> None:
    killer = Killer(path, kill_workers)
    with opened(killer) as pool:
        assert optimized(pool).measured_us is not None
    assert killer.before, "nothing was killed"
    assert killer.before <= stages(path)
    assert killer.lost, killer.notes
    (transport,) = killer.transports
    assert session.members(transport.pid) == ()


@pytest.mark.skipif(WORKERS == 1, reason="needs two cores")
def test_workers_of_another_version_or_on_noisy_machines_are_reported_and_unused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = local_places(2, 1)
    both = replace(first, cores=first.cores + second.cores)
    places = (first, replace(second, node="other"), both)
    monkeypatch.setattr("iosched.jobs.pool.ray.ray_transport.local_places", lambda *_: places)
    killer = Killer(path, lambda transport: None, "ray_workers:unlike")
    with opened(killer) as pool:
        assert optimized(pool).measured_us is not None
        sooner_or_later(pool, lambda: len(unused(killer)) == 2)
        sooner_or_later(pool, lambda: len(pool.status().workers) == 1)
    assert unused(killer) == {
        f"it has iosched 0.0.0, and this is {iosched_version()}",
        "its machine is too noisy to measure on: the calibration kernel took 3.0 times its reference",
    }


def unused(killer: Killer) -> set[str]:
    """The reasons why workers are unused; a noisy one may have measured something before a quieter one started."""
    said = "cpu of 127.0.0.1 is not used: "
    return {note.removeprefix(said).replace("has become", "is") for note in killer.notes if note.startswith(said)}


def test_a_search_outlives_the_head_and_the_next_one_has_another(path: Path) -> None:
    """Running workers need no head; once its loss is noticed, everything is restarted."""
    killer = Killer(path, kill_head)
    with opened(killer) as pool:
        assert optimized(pool).measured_us is not None
        assert killer.before, "nothing was killed"
        sooner_or_later(pool, lambda: len(killer.transports) == 2)
        measured = stages(path)
        assert optimized(pool).measured_us is not None
    assert killer.before <= measured <= stages(path)
