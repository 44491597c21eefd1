"""Speedup of one search by several workers on a real local Ray cluster.

    python benchmarks/fleet_search.py [MODEL...] [--workers 1,16] [--rounds 3]
        [-o benchmarks/results/fleet-search.json]

The search, its questions and guesses, Ray and the database are those of `iosched optimize --cluster`. But workers sleep
for a seeded time instead of measuring, so that there can be more of them than cores, and whole models are not compared.
The model is open on all workers before the clock starts. Every search has to find the schedule of the first one.

Options:
    models: zoo:NAME, light_NAME, or a file
    --workers: sizes of the cluster, one after another, 1 among them
    --rounds: repetitions of each case
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpu_models import cpu_model, short_name
from results_files import write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

from functools import partial

from clusters import surroundings
from command_line import read_options
from fleet_slept import Notes, unbound_places
from ray_workers import WARMING
from result_tables import Table, print_table, range_text

from iosched import ExecutionError, Model
from iosched.jobs.matrix_cells import SEARCH, Search, Searched
from iosched.jobs.pool.cluster import ClusterPool
from iosched.jobs.pool.ray import ray_transport as ray_transport
from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.task import Pending, Task
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow
from iosched.scheduler.pruning import DEFAULT_PRUNING

MODELS = ("zoo:inception_v3",)
ROUNDS = 3
LANES = 2
"""Lanes of each worker in the made-up latencies."""

UP_S = 180.0
LONGEST_S = 1800.0


@contextmanager
def pool_of(workers: int, model: Model) -> Iterator[tuple[ClusterPool, Path]]:
    """A pool whose workers are up and have the model open, and its empty profile database."""
    with tempfile.TemporaryDirectory() as folder:
        warming, path = Path(folder) / "warming", Path(folder) / "profile.sqlite"
        warming.touch()

        def transport() -> RayTransport:
            return RayTransport(LocalCluster(workers), made_by="ray_workers:sleeping")

        with (
            surroundings(Path(folder), **{WARMING: str(warming)}),
            ClusterPool(transport, path, Notes()) as pool,
        ):
            until = time.monotonic() + UP_S
            while True:
                warm(pool, model)
                if len(pool.status().workers) == workers and all(each.done for each in pool.status().workers):
                    break
                assert time.monotonic() < until
            warming.unlink()
            yield pool, path


def warm(pool: ClusterPool, model: Model) -> None:
    """Opens the model on the workers that are up."""
    try:
        done(pool, pool.submit(search_of(model, workers=2)), UP_S)
    except ExecutionError:
        return
    raise AssertionError("something was measured")


def done(pool: ClusterPool, pending: Pending[Searched], most_s: float) -> Searched:
    """The result of a search."""
    pool.wait([pending], most_s)
    assert pending.is_done
    return pending.result()


def search_of(model: Model, workers: int) -> Task[Searched]:
    """A search that prefetches by other workers, unless there is only one."""
    work = Search("cpu", OpenSettings(threads=LANES), "both", DEFAULT_PRUNING)
    return Task(SEARCH, work, model, "cpu", asks=workers > 1)


def run(model: Model, workers: int) -> dict[str, Any]:
    """One search from an empty database."""
    with pool_of(workers, model) as (pool, path):
        begun = time.monotonic()
        found = done(pool, pool.submit(search_of(model, workers)), LONGEST_S)
        wall_s = time.monotonic() - begun
        begun = time.monotonic()
        again = done(pool, pool.submit(search_of(model, workers)), LONGEST_S)
        known_s = time.monotonic() - begun
        with ProfileDatabase(path) as database:
            measured = sum(isinstance(row, StageRow) for row in database.rows())
    assert again.schedule == found.schedule
    stages = [[list(group) for group in stage.groups] for stage in found.schedule.stages]
    return {"wall_s": wall_s, "known_s": known_s, "measured": measured, "stages": stages}


def table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Medians, and in parentheses the lowest and the highest."""
    kinds = sorted({(run["model"], run["workers"]) for run in runs})
    headers = ["", "workers", "seconds", "times as fast as one", "stages measured", "all known: seconds"]
    rows = []
    for kind in kinds:
        same = [run for run in runs if (run["model"], run["workers"]) == kind]
        alone = {run["round"]: run["wall_s"] for run in runs if (run["model"], run["workers"]) == (kind[0], 1)}
        ups = [alone[run["round"]] / run["wall_s"] for run in same]
        measured = statistics.median(run["measured"] for run in same)
        known = range_text([run["known_s"] for run in same], ".1f")
        walls = range_text([run["wall_s"] for run in same], ".1f")
        rows.append([kind[0], str(kind[1]), walls, range_text(ups, ".2f"), f"{measured:.0f}", known])
    return headers, rows


def main(words: Sequence[str] | None = None) -> None:
    takes = {"models": list(MODELS)}
    options = read_options(__file__, words, takes, workers=(1, 16), rounds=ROUNDS, output=Path)
    # More workers than cores, which the command line refuses.
    ray_transport.local_places = partial(unbound_places, lanes=LANES)
    runs: list[dict[str, Any]] = []
    for number in range(options.rounds):
        for text in options.models:
            for workers in options.workers:
                about = {"model": short_name(text), "workers": workers, "round": number}
                found = run(cpu_model(text), workers)
                first = next((each for each in runs if each["model"] == about["model"]), found)
                assert found["stages"] == first["stages"], "another schedule was found"
                runs.append({**about, **found})
                summary = {key: value for key, value in runs[-1].items() if key != "stages"}
                print(json.dumps(summary), file=sys.stderr, flush=True)
    print_table(*table(runs))
    kept = [{key: value for key, value in each.items() if key != "stages"} for each in runs]
    write_results(options, {"runs": kept})


if __name__ == "__main__":
    main()
