"""SIMULATED: speedup by a fleet, with the scheduling code of a real cluster and made-up durations.

    python benchmarks/fleet_simulation.py [-o results.json]

The tables accompany those of the paper on distributed EA-NAS (TPDS): Table 5 (plotted in Figure 6), Figure 7, and
Equation 2. `fleet_events.py` is the cluster. Nothing is measured, and every machine gives the same results.

Options:
    --output: results as JSON
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from command_line import read_options
from fleet_events import (
    Algorithm,
    Cluster,
    Generations,
    Outcome,
    Simulation,
    SteadyState,
    generation_sizes,
    lognormal_s,
)
from result_tables import Table, range_text
from results_files import write_results
from testbed import zoo_model

from iosched import OptimizeSettings, Stage, Strategy
from iosched.jobs.optimize_task import Optimize
from iosched.jobs.pool.messages import Call, Known, Measured, Questions, SentModel, encoded
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.store.database import device_key
from iosched.profiler.store.tables import StageRow
from iosched.scheduler.cost import CostQuestion

PUBLISHED = {1: (233, 83.43), 2: (219, 44.85), 3: (236, 32.7), 4: (226, 26.36)}
"""Table 5: evaluated individuals and hours, by number of nodes."""

POPULATION, GENERATIONS = 20, 20
MEAN_S = PUBLISHED[1][1] * 3600 / PUBLISHED[1][0]
SPREADS = (0.2, 0.4, 0.8)
"""Standard deviation of individuals' times, relative to their mean: not published, so three are assumed. The
multiplications of networks drawn from the paper's space (`builtin:pelee`) have 0.8; those that evolve differ less."""

SPREAD = 0.4
WEAK = (0.4, 0.5, 0.6)
"""Speeds of a GTX 1060 with 6 GB over a GTX 1080: data sheets have 0.49 for arithmetic and 0.6 for memory."""

AT_ONCE = 5
"""Individuals for each worker: 20 in a population for 4 nodes, as published."""

LOST_AN_HOUR = 0.1
WAYS = ("published", "steady")
Rows = Sequence[Mapping[str, Any]]
SEEDS = 9
MIXES = {
    "3 x 1, 1 x 0.5": (1.0,) * 3 + (0.5,),
    "2 x 1, 2 x 0.25": (1.0,) * 2 + (0.25,) * 2,
    "1, 0.5, 0.25, 0.1": (1.0, 0.5, 0.25, 0.1),
    "8 x 1, 8 x 0.3": (1.0,) * 8 + (0.3,) * 8,
}


@dataclass(frozen=True)
class Found:
    """Several runs that differ in their seeds: lowest, median and highest of each.

    Attributes:
        efficiency: the speedup over the sum of the workers' speeds.
        by_worker: the median number of answers of each worker.
    """

    hours: tuple[float, float, float]
    speed_up: tuple[float, float, float]
    efficiency: tuple[float, float, float]
    works: float
    lost: float
    failed: float
    late: float
    in_vain_share: float
    by_worker: tuple[float, ...] = ()


def runs(cluster: Cluster, algorithm: Callable[[int], Algorithm], seeds: int = SEEDS, spread: float = SPREAD) -> Found:
    """Runs with `seeds` seeds; `algorithm` makes the tasks of each."""
    length_s = lognormal_s(MEAN_S, spread)
    found = [Simulation(cluster, algorithm(seed), seed, length_s).run() for seed in range(seeds)]
    whole = sum(cluster.speeds)

    def of(value: Callable[[Outcome], float]) -> tuple[float, float, float]:
        ordered = sorted(map(value, found))
        return round(ordered[0], 4), round(ordered[len(ordered) // 2], 4), round(ordered[-1], 4)

    places = range(len(cluster.speeds)) if len(cluster.speeds) <= 16 else ()
    return Found(
        hours=of(lambda run: run.hours),
        speed_up=of(lambda run: run.speed_up),
        efficiency=of(lambda run: run.speed_up / whole),
        works=of(lambda run: run.answered)[1],
        lost=of(lambda run: run.lost)[1],
        failed=of(lambda run: run.failed)[1],
        late=of(lambda run: run.late)[1],
        in_vain_share=of(lambda run: run.in_vain_hours / (run.hours * len(cluster.speeds)))[1],
        by_worker=tuple(of(lambda run, place=place: run.by_worker[place])[1] for place in places),  # type: ignore[misc]
    )


def as_published(workers: int, total: int, *, in_packets: bool = True) -> Callable[[int], Algorithm]:
    """Twenty generations of 20 individuals, or of five per worker beyond four workers; `total` are evaluated."""
    population = POPULATION * max(workers, 4) // 4
    return lambda seed: Generations(generation_sizes(total, population, GENERATIONS, seed), in_packets)


def steady(workers: int, total: int) -> Callable[[int], Algorithm]:
    """The same number in steady state, one individual at a time."""
    return lambda seed: SteadyState(total, AT_ONCE * workers)


def table_5(seeds: int = SEEDS) -> list[dict[str, Any]]:
    """As published, and in steady state, for the same number of evaluated individuals."""
    return [
        {"workers": workers, "individuals": total, "hours": hours, **both_ways(equal(workers), total, seeds)}
        for workers, (total, hours) in PUBLISHED.items()
    ]


def both_ways(cluster: Cluster, total: int, seeds: int) -> dict[str, Any]:
    made = as_published(4, total), steady(len(cluster.speeds), total)
    return {way: asdict(runs(cluster, each, seeds)) for way, each in zip(WAYS, made, strict=True)}


def figure_7(seeds: int = SEEDS) -> list[dict[str, Any]]:
    """Four equal workers, and three with a weaker one."""
    total = PUBLISHED[4][0]
    clusters = {"4 equal": equal(4)} | {f"the fourth {weak}": Cluster((1.0,) * 3 + (weak,)) for weak in WEAK}
    return [{"cluster": name, **both_ways(cluster, total, seeds)} for name, cluster in clusters.items()]


def barrier(seeds: int = SEEDS) -> list[dict[str, Any]]:
    """Cost of the barrier with four workers, by the spread of individuals' times."""
    total, many = PUBLISHED[4][0], 2000
    ways = {
        "generations, packets of 3 to 1": as_published(4, total),
        "generations, one at a time": as_published(4, total, in_packets=False),
        "steady state, as many": steady(4, total),
        f"steady state, {many:,}": steady(4, many),
    }
    return [
        {"way": name, "spread": spread, **asdict(runs(equal(4), way, seeds, spread))}
        for name, way in ways.items()
        for spread in SPREADS
    ]


def unlike(seeds: int = SEEDS) -> list[dict[str, Any]]:
    """Workers of unequal speeds."""
    found = []
    for name, speeds in MIXES.items():
        workers = len(speeds)
        generations = as_published(workers, round(56.5 * workers))
        ways = {"generations": generations, "steady state": steady(workers, 500 * workers)}
        found += [{"mix": name, "way": way, **asdict(runs(Cluster(speeds), made, seeds))} for way, made in ways.items()]
    return found


def beyond(seeds: int = 3) -> list[dict[str, Any]]:
    """Many workers, some of which are lost."""
    found = []
    for workers in (4, 16, 64, 256, 1024):
        generations = as_published(workers, round(56.5 * workers))
        ways = {
            "generations, none lost": (0.0, generations),
            "generations": (LOST_AN_HOUR, generations),
            "generations of 20 a worker": (LOST_AN_HOUR, lambda seed, size=20 * workers: Generations((size,) * 4)),
            "steady state, none lost": (0.0, steady(workers, 20_000 * workers // 256)),
            "steady state": (LOST_AN_HOUR, steady(workers, 20_000 * workers // 256)),
        }
        for way, (lost, made) in ways.items():
            ran = runs(equal(workers, lost), made, seeds)
            found.append({"workers": workers, "way": way, "lost_an_hour": lost, **asdict(ran)})
    return found


def equal(workers: int, lost_an_hour: float = 0.0) -> Cluster:
    """Workers of speed 1."""
    return Cluster((1.0,) * workers, lost_an_hour)


def published_packet(individuals: int) -> bytes:
    """A packet with the fields of the paper's Table 2, as JSON; an individual is 12 integers."""
    genome = [2, 10, 32] * 4
    fields = {"operation_type": 1, "ind_len": individuals, "ind_set": [genome] * individuals, "termination_flag": False}
    return json.dumps(fields, separators=(",", ":")).encode()


def message_sizes() -> list[dict[str, Any]]:
    """Bytes of messages: a fixed part and a part for each item, as in Equation 2."""
    model = zoo_model("squeezenet")
    sent = SentModel(model.digest, model.digest, model.digest, model.name, 1, {"input": (1, 3, 224, 224)})
    names = [operator.name for operator in model.graph.operators]
    asked = tuple(CostQuestion(Stage(Strategy.CONCURRENT, ((one,), (other,)))) for one, other in pairwise(names))
    versions = {"onnxruntime": "1.23.0"}
    key = device_key("cpu", "a processor with a long name", precision="float32", threads=8, versions=versions)
    when = datetime(2026, 1, 1, tzinfo=UTC)
    samples_us = tuple(100.0 + index / 7 for index in range(20))
    rows = (StageRow(key, f"2:512K:{'0123456789abcdef' * 4}", "first", when, samples_us),) * 8
    job = msgspec.to_builtins(Optimize(OptimizeSettings()))
    opening = msgspec.to_builtins(Questions(OpenSettings()))

    def packet(count: int) -> bytes:
        work = {**opening, "questions": msgspec.to_builtins(asked[:count])}
        return encoded(Call(call=1, kind="questions", work=work, model=sent))

    def whole_job(count: int) -> bytes:
        return encoded(Call(call=1, kind="optimize", work=job, model=sent, rows=rows[:count]))

    made: Mapping[str, tuple[Callable[[int], bytes], str]] = {
        "as published: a packet": (published_packet, "individual"),
        "a packet of questions": (packet, "stage of two operators"),
        "a whole job": (whole_job, "row"),
        "what was measured": (lambda count: encoded(Measured(rows=rows[:count])), "row of 20 samples"),
        "answers to questions": (lambda count: encoded(Known(call=1, rows=rows[:count])), "row of 20 samples"),
    }
    return [
        {"message": name, "each": each, "fixed": len(of(0)), "more": (len(of(3)) - len(of(0))) / 3}
        for name, (of, each) in made.items()
    ]


def messages_table(rows: Rows) -> Table:
    texts = [[row["message"], row["fixed"], f"{row['more']:.0f} for each {row['each']}"] for row in rows]
    return ["message", "bytes", "and"], texts


def table_5_table(rows: Rows) -> Table:
    alone, alone_hours = rows[0]["individuals"], rows[0]["hours"]
    headers = ["workers", "individuals", "hours, printed", "simulated", "without the barrier"]
    headers += ["speed-up, printed hours", "simulated", "without the barrier"]
    cells = []
    for row in rows:
        hours, speed_ups = (
            [range_text(row[way][key], form) for way in WAYS] for key, form in (("hours", ".1f"), ("speed_up", ".2f"))
        )
        printed = f"{row['individuals'] / row['hours'] / (alone / alone_hours):.2f}"
        cells.append([str(row["workers"]), str(row["individuals"]), f"{row['hours']:.2f}", *hours, printed, *speed_ups])
    return headers, cells


def figure_7_table(rows: Rows) -> Table:
    headers = ["workers", "hours", "without the barrier", "individuals of each", "without the barrier"]
    cells = []
    for row in rows:
        hours = [range_text(row[way]["hours"], ".1f") for way in WAYS]
        counts = [", ".join(f"{count:.0f}" for count in row[way]["by_worker"]) for way in WAYS]
        cells.append([row["cluster"], *hours, *counts])
    return headers, cells


def barrier_table(rows: Rows) -> Table:
    ways = list(dict.fromkeys(row["way"] for row in rows))
    speed_up = {(row["way"], row["spread"]): range_text(row["speed_up"], ".2f") for row in rows}
    headers = ["speed-up of four workers", *(f"spread {spread}" for spread in SPREADS)]
    return headers, [[way, *(speed_up[way, spread] for spread in SPREADS)] for way in ways]


def unlike_table(rows: Rows) -> Table:
    found = {(row["mix"], row["way"]): range_text(row["efficiency"], ".1%") for row in rows}
    ways = ("generations", "steady state")
    headers = ["speeds", *(f"{way}: part of their sum" for way in ways)]
    return headers, [[mix, *(found[mix, way] for way in ways)] for mix in MIXES]


def beyond_table(rows: Rows) -> Table:
    headers = ["workers", "", "works", "hours", "efficiency", "workers lost", "time in vain", "works given up"]
    cells = []
    for row in rows:
        ran = (
            f"{row['works']:,.0f}",
            f"{row['hours'][1]:.1f}",
            range_text(row["efficiency"], ".1%"),
            f"{row['lost']:,.0f}",
        )
        cells.append([f"{row['workers']:,}", row["way"], *ran, f"{row['in_vain_share']:.1%}", f"{row['failed']:.0f}"])
    return headers, cells


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, output=Path)
    makers = (table_5, figure_7, barrier, unlike, beyond)
    made = {make.__name__: make() for make in makers}
    results = json.loads(json.dumps({"mean_s": MEAN_S, **made, "messages": message_sizes()}))
    write_results(options, results, seeds={"first run": 0, "last run": SEEDS - 1})


if __name__ == "__main__":
    main()
