"""Jobs on a real local cluster, whose workers are processes that measure; one of them is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import session
from clusters import WORKER, named, soon, surroundings
from scripted import fire, fire_proto
from small_models import branches
from toy_space import SPACE

from iosched.jobs.explore import explore
from iosched.jobs.exploring.explore_settings import ExploreSettings
from iosched.jobs.matrix import MatrixSettings, matrix
from iosched.jobs.observer import Interrupt, Observer
from iosched.jobs.optimize import OptimizeSettings, optimize
from iosched.jobs.optimize_batches import optimize_batches
from iosched.jobs.optimize_task import optimize_on
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.jobs.pool import cluster as pool_cluster
from iosched.jobs.pool.cluster import ClusterPool, PoolStatus
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.rank import RankSettings, rank
from iosched.models.dynamic_batch import with_dynamic_batch
from iosched.models.load import load_model, read_unbound
from iosched.models.model import Model
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow

WORKERS = 2 if len(os.sched_getaffinity(0)) > 1 else 1
pytestmark = pytest.mark.slow


class Watcher:
    """An observer that calls `on_cost` once, as soon as a worker costs a variant."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.on_cost: Callable[[], None] | None = None

    def note(self, text: str) -> None:
        self.notes.append(text)

    def status(self, status: PoolStatus) -> None:
        if self.on_cost is not None and any(each.doing.startswith("cost") for each in status.workers):
            on_cost, self.on_cost = self.on_cost, None
            on_cost()


@pytest.fixture(scope="module")
def watcher() -> Watcher:
    return Watcher()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pool")


@pytest.fixture(scope="module")
def pool(folder: Path, watcher: Watcher) -> Iterator[ClusterPool]:
    with pytest.MonkeyPatch.context() as patch, surroundings(folder):
        patch.setattr("iosched.profiler.store.schema.BUSY_TIMEOUT_SECONDS", 0.1)
        patch.setattr(pool_cluster, "RayTransport", partial(RayTransport, made_by="ray_workers:quiet"))
        with pool_cluster.cluster_pool(f"local:{WORKERS}", folder / "p.db", 1, watcher) as found:
            yield found


def test_a_search_stores_its_measurements_and_the_next_one_uses_them(pool: ClusterPool, folder: Path) -> None:
    settings = OptimizeSettings(budget_s=20.0)
    first = optimize_on(pool, fire(), settings)
    names = [name for stage in first.schedule.stages for name in stage.operators]
    assert sorted(names) == sorted(operator.name for operator in fire().graph.operators)
    with ProfileDatabase(folder / "p.db") as database:
        rows = list(database.rows())
    assert first.signatures <= len(rows)
    again = optimize_on(pool, fire(), settings)
    assert again.cache_hits > 0
    assert again.measurements <= first.measurements


def test_each_of_several_batch_sizes_is_searched_by_workers(pool: ClusterPool) -> None:
    model = with_dynamic_batch(read_unbound(fire_proto().SerializeToString(), name="fire"), (1, 2))
    before = pool.status().done

    def there(bound: Model, own: OptimizeSettings, shown: Observer, held: Interrupt) -> OptimizeResult:
        return optimize_on(pool, bound, own, shown, held)

    found = optimize_batches(model, (1, 2), OptimizeSettings(budget_s=4.0), one=there)
    assert (found.schedules.batch_sizes, found.failed) == ((1, 2), {})
    assert pool.status().done >= before + 2
    for size, document in found.schedules.by_size.items():
        document.validate_for(model.at(size).graph, model.at(size).digest, model.at(size).bindings)


def test_several_models_are_ranked_without_errors(pool: ClusterPool) -> None:
    models = {f"m{size}": fire(size) for size in (1, 2, 3)}
    found = rank(models, RankSettings(("cpu",), measure="stages"), pool=pool)
    assert [row.error for row in found.rows] == [None] * 3


def test_workers_search_and_evaluate_the_cells_of_a_matrix(pool: ClusterPool) -> None:
    batches = [(size, fire(size)) for size in (1, 2)]
    found = matrix(batches, MatrixSettings(("cpu",)), pool=pool)
    assert [(target.device, target.batch_size, target.cost) for target in found.targets] == [
        ("cpu", 1, "measured"),
        ("cpu", 2, "measured"),
    ]
    for target, row in zip(found.targets, found.latency_us, strict=True):
        names = [name for stage in target.schedule.stages for name in stage.operators]
        assert sorted(names) == sorted(operator.name for operator in fire().graph.operators)
        assert len(row) == 2
        assert all(each is not None and each > 0 for each in row)


LOCKING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print(flush=True)
sys.stdin.read()
"""


def test_measurements_made_while_the_database_is_locked_are_not_lost(
    pool: ClusterPool, folder: Path, watcher: Watcher
) -> None:
    path = folder / "p.db"
    model = load_model(branches(channels=12).SerializeToString())  # no other test measures this model
    before = stages(path)
    words = [sys.executable, "-c", LOCKING, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        releasing = Thread(target=release, args=(other, watcher, path, before), daemon=True)
        releasing.start()
        found = optimize_on(pool, model, OptimizeSettings())
        assert not releasing.is_alive(), "there was a result before the database had the rows"
    assert found.measurements > 0
    assert before < stages(path)
    here = optimize(model, OptimizeSettings(threads=1, profile_db=path))
    assert (here.measurements, here.cache_hits) == (0, found.measurements), "the database has all rows of the workers"


def release(other: subprocess.Popen[bytes], watcher: Watcher, path: Path, before: frozenset[tuple[str, str]]) -> None:
    """Ends the lock once it has blocked a write, and nothing was written."""
    soon(lambda: any("locked" in note and "Nothing is lost" in note for note in watcher.notes))
    if stages(path) == before:
        other.communicate(b"")


def stages(path: Path) -> frozenset[tuple[str, str]]:
    with ProfileDatabase(path) as database:
        return frozenset((row.device, row.signature) for row in database.rows() if isinstance(row, StageRow))


def test_a_killed_worker_loses_no_trial(pool: ClusterPool, folder: Path, watcher: Watcher) -> None:
    base = load_model(branches().SerializeToString())
    settings = ExploreSettings(
        folder / "study.db", sampler="random", trials=6, objectives=("latency:cpu",), top=0, measure="stages"
    )

    def kill() -> None:
        transport: Any = pool._transport
        session.kill(named(transport.pid, WORKER)[0], transport.pid)

    watcher.on_cost = kill
    found = explore(base, SPACE, settings, pool=pool).found
    assert watcher.on_cost is None
    assert [each.state for each in found.individuals] == ["complete"] * 6
    assert [each.number for each in found.individuals] == list(range(6))
    assert pool.status().lost
