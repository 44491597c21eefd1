"""Overhead of a fleet on a real local Ray cluster with sleeping tasks: speedup, idle shares, messages and their bytes.

    python benchmarks/fleet_slept.py [--workers 1,2,4] [--rounds 3] [-o benchmarks/results/fleet-slept.json]

Workers sleep for seeded times instead of measuring, so that there can be more of them than cores. This measures the
cost of the fleet, its connections, Ray and the database, and nothing of a device. Jobs are score commands that sleep;
they are sent one at a time and run like those of `explore`. Stages are the requests of one search, in rounds, and are
sent in packets. Fleet sizes are interleaved. The table also has the simulation of the same durations.

Commands also run without a fleet here, since the start and end of a command are no cost of the fleet.

Options:
    --workers: sizes of the fleet, one after another, 1 among them
    --rounds: repetitions of each size
    --output: raw results as JSON
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fleet_events import Cluster, Generations, Outcome, Simulation, SteadyState, lognormal_s
from results_files import write_results

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

from clusters import surroundings
from command_line import read_options
from ray_workers import slept_task
from result_tables import Table, print_table, range_text
from scripted import fire

from iosched.jobs.exploring.running import run_command
from iosched.jobs.exploring.score import SCORE, Score, ScoreCommand
from iosched.jobs.pool.cluster import ClusterPool, PoolStatus
from iosched.jobs.pool.ray import ray_transport as ray_transport
from iosched.jobs.pool.ray.address import LocalCluster
from iosched.jobs.pool.ray.ray_transport import RayTransport
from iosched.jobs.pool.task import Pending, Task
from iosched.jobs.pool.transport import Command, Event, Place, Said, Send

ROUNDS = 3
LENGTHS = {"jobs": (60, 0.45), "stages": (96, 0.05)}
"""Number, and mean seconds: a stage takes some ten runs of milliseconds, with warm-up and calibration kernel."""

IN_A_ROUND = 24
SPREAD = 0.4
WARM_S = 0.3
COMMANDS = 20
"""Commands that run without a fleet in each round."""

UP_S = 120.0


Passed = Mapping[str, list[int]]
"""Messages: bytes of each one `sent` to workers, and `received` from them."""


class Counted:
    """A transport that counts messages and bytes."""

    def __init__(self, workers: int, passed: Passed) -> None:
        self._inner = RayTransport(LocalCluster(workers), made_by="ray_workers:Scoring")
        self._passed = passed

    def send(self, command: Command) -> None:
        if isinstance(command, Send):
            self._passed["sent"].append(len(command.message))
        self._inner.send(command)

    def receive(self, timeout_s: float) -> Sequence[Event]:
        events = self._inner.receive(timeout_s)
        self._passed["received"] += [len(event.message) for event in events if isinstance(event, Said)]
        return events

    def close(self) -> None:
        self._inner.close()


def unbound_places(workers: int, threads: int | None, lanes: int = 1) -> tuple[Place, ...]:
    """The requested number of places, independent of the number of cores."""
    del threads
    return tuple(Place(f"local-{number}", "127.0.0.1", "cpu", threads=lanes) for number in range(workers))


class Notes:
    """Prints problems."""

    def note(self, text: str) -> None:
        if " is up: " not in text:
            print(text, file=sys.stderr)

    def status(self, status: PoolStatus) -> None:
        pass


@contextmanager
def pool_of(workers: int) -> Iterator[tuple[ClusterPool, Passed]]:
    """A pool whose workers are all up, and have each finished a task."""
    passed: Passed = {"sent": [], "received": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        surroundings(Path(folder)),
        ClusterPool(lambda: Counted(workers, passed), Path(folder) / "profile.sqlite", Notes()) as pool,
    ):
        until = time.monotonic() + UP_S
        done(pool, [pool.submit(job(0, WARM_S))], UP_S)
        while len(pool.status().workers) < workers and time.monotonic() < until:
            pool.wait([], 0.05)
        done(pool, [pool.submit(job(0, WARM_S)) for _ in range(workers)], UP_S)
        yield pool, passed


def done(pool: ClusterPool, pending: Sequence[Pending[Any]], most_s: float) -> None:
    """Waits until all are done."""
    until = time.monotonic() + most_s
    while missing := [each for each in pending if not each.is_done]:
        assert time.monotonic() < until
        pool.wait(missing)


def job(number: int, seconds: float) -> Task[Any]:
    """A score command that sleeps."""
    return Task(SCORE, Score(f"trial-{number:04}", sleeping(number, seconds), str(Path.cwd()), {}), fire(), "cpu")


def sleeping(number: int, seconds: float) -> ScoreCommand:
    """A command that sleeps, and then prints its number."""
    return ScoreCommand(("sh", "-c", f"sleep {seconds}; echo {number}", "{params}"), timeout_s=None)


def commands_s() -> list[float]:
    """Time of commands without a fleet beyond their sleep, one after another."""
    found = []
    for number in range(COMMANDS):
        begun = time.monotonic()
        run_command(sleeping(number, WARM_S).filled(Path("model.onnx"), {}), timeout_s=None)
        found.append(time.monotonic() - begun - WARM_S)
    return found


def lengths_s(what: str, number: int) -> list[float]:
    """Seeded lengths of the tasks of a round in seconds, drawn as in the simulation."""
    count, mean_s = LENGTHS[what]
    numbers, length_s = random.Random(f"{what} {number}"), lognormal_s(mean_s, SPREAD)
    return [round(length_s(numbers), 4) for _ in range(count)]


def tasks(what: str, number: int) -> list[Task[Any]]:
    """The tasks of a round."""
    if what == "stages":
        return [slept_task(f"round {number}", lengths_s(what, number), IN_A_ROUND)]
    return [job(index, seconds) for index, seconds in enumerate(lengths_s(what, number))]


def run(pool: ClusterPool, passed: Passed, what: str, number: int, each_s: float) -> dict[str, Any]:
    """Runs the tasks of a round once; each takes `each_s` in addition to its sleep."""
    asked = tasks(what, number)
    before = {way: len(messages) for way, messages in passed.items()}
    begun = time.monotonic()
    pending = [pool.submit(each) for each in asked]
    done(pool, pending, 10 * sum(lengths_s(what, number)) + UP_S)
    wall_s = time.monotonic() - begun
    found = [each.result() for each in pending]
    if what == "jobs":
        assert [each.of[0].values for each in found] == [{"score": index} for index in range(len(found))]
    during = {way: messages[before[way] :] for way, messages in passed.items()}
    return {
        "each_s": each_s,
        "alone_s": sum(lengths_s(what, number)) + len(lengths_s(what, number)) * each_s,
        "wall_s": wall_s,
        **{way: {"messages": len(each), "nbytes": sum(each)} for way, each in during.items()},
    }


def simulated(run: Mapping[str, Any], message_s: float) -> Outcome:
    """The same tasks in the simulation, with this time of a message each way."""
    what, seconds = run["what"], [length + run["each_s"] for length in lengths_s(run["what"], run["round"])]
    count, following = len(seconds), iter(seconds)
    works = (
        SteadyState(count, count)
        if what == "jobs"
        else Generations(tuple(min(IN_A_ROUND, count - first) for first in range(0, count, IN_A_ROUND)))
    )
    cluster = Cluster((1.0,) * run["workers"], message_s=message_s)
    return Simulation(cluster, works, 0, lambda _: next(following)).run()


def message_cost_s(what: str, runs: Sequence[Mapping[str, Any]]) -> float:
    """Mean time of a message each way, if messages cause the whole loss of one worker."""
    alone = [run for run in runs if run["workers"] == 1 and run["what"] == what]
    lost_s = statistics.fmean(run["wall_s"] - run["alone_s"] for run in alone)
    return lost_s / (2 * simulated(alone[0], 0.0).packets)


def table(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Medians, and in parentheses the lowest and the highest."""
    kinds = sorted({(run["what"], run["workers"]) for run in runs})
    headers = ["", "workers", "speed-up", "simulated", "if messages took no time", "idle"]
    headers += ["messages each, to workers", "from them", "bytes each, to workers", "from them"]
    rows = []
    for what, workers in kinds:
        same = [run for run in runs if (run["what"], run["workers"]) == (what, workers)]
        ups = [run["alone_s"] / run["wall_s"] for run in same]
        costly_s = message_cost_s(what, runs)
        rows.append(
            [
                what,
                str(workers),
                range_text(ups, ".2f"),
                *(range_text([simulated(run, each_s).speed_up for run in same], ".2f") for each_s in (costly_s, 0.0)),
                range_text([1 - up / workers for up in ups], ".1%"),
                *(_each(what, same, way, "messages", ".1f") for way in ("sent", "received")),
                *(_each(what, same, way, "nbytes", ",.0f") for way in ("sent", "received")),
            ]
        )
    return headers, rows


def _each(what: str, runs: Sequence[Mapping[str, Any]], way: str, which: str, form: str) -> str:
    return format(statistics.median(run[way][which] for run in runs) / LENGTHS[what][0], form)


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, workers=(1, 2, 4), rounds=ROUNDS, output=Path)
    ray_transport.local_places = unbound_places  # more workers than cores, which the command line refuses
    runs, commands = [], []
    for number in range(options.rounds):
        commands.append(commands_s())
        for workers in options.workers:
            with pool_of(workers) as (pool, passed):
                for what in LENGTHS:
                    found = run(pool, passed, what, number, statistics.median(commands[-1]) if what == "jobs" else 0.0)
                    runs.append({"what": what, "workers": workers, "round": number, **found})
                    print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print_table(*table(runs))
    write_results(options, {"commands_s": commands, "runs": runs})


if __name__ == "__main__":
    main()
