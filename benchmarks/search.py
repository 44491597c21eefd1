"""What the search costs and how near it comes to its bound, on the zoo's networks under a made-up two-lane machine.

Run as `python benchmarks/search.py [--limit N]… [-o FILE.json]`. No latency is measured: a stage takes what its
operators' arithmetic and traffic say, its groups placed on two lanes the longest first, times a noise of its own, so
that the same run gives the same numbers on every machine but for the seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from iosched.models import zoo
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.profiler.cpu_cost import cpu_name
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.lanes import assign_lanes
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.lattice import Pruning
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.signature import default_label, stage_signature

NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
FLOPS_PER_US = 40_000.0  # of one lane
BYTES_PER_US = 8_000.0
OPERATOR_US, STAGE_US = 2.0, 3.0
NOISE = 0.03


class TwoLanes:
    """A cost model like two cores: operators split over both gain less than twofold, and two at once get in the way."""

    lanes = 2

    def __init__(self, graph: ComputationGraph) -> None:
        self._graph = graph
        self._known: dict[str, float] = {}
        plain = default_label(graph)
        self._labels = {operator.name: plain(operator) for operator in graph.operators}

    @property
    def signatures(self) -> int:
        """Different stages asked for."""
        return len(self._known)

    def operator_key(self, name: str) -> str:
        return self._labels[name]

    def operator_work_us(self, name: str) -> float:
        operator = self._graph.by_name[name]
        return OPERATOR_US + max(operator.flops / FLOPS_PER_US, operator.nbytes / BYTES_PER_US)

    def operator_latency_us(self, name: str) -> float:
        return self.operator_work_us(name) * (0.55 + 0.35 * random.Random(self._labels[name]).random())

    def lower_bound_us(self, stage: Stage) -> float:
        """As little as is known of merged stages on the CPU."""
        del stage
        return 0.0

    def stage_latency_us(self, stage: Stage) -> float:
        key = stage_signature(self._graph, stage, lambda operator: self._labels[operator.name])
        if key not in self._known:
            noise = random.Random(key).gauss(1.0, NOISE)
            self._known[key] = STAGE_US + self._busiest_us(stage) * max(noise, 0.5)
        return self._known[key]

    def _busiest_us(self, stage: Stage) -> float:
        if stage.strategy is Strategy.MERGE:
            return 0.65 * sum(self.operator_work_us(name) for name in stage.operators)
        if len(stage.groups) == 1:
            return sum(self.operator_latency_us(name) for name in stage.operators)
        work = [sum(self.operator_work_us(name) for name in group) for group in stage.groups]
        load = [0.0] * self.lanes
        for group, (lane,) in enumerate(assign_lanes(work, self.lanes)):
            load[lane] += work[group]
        return max(load) + 0.06 * min(load)

    def total_us(self, schedule: Schedule) -> float:
        """Latency of a whole schedule."""
        return sum(self.stage_latency_us(stage) for stage in schedule.stages)


@dataclass(frozen=True)
class Row:
    """One search; latencies in microseconds, `gap` as a part of the predicted latency."""

    network: str
    limit: int | None
    blocks: int
    optimal_blocks: int
    states: int
    transitions: int
    stages: int
    signatures: int
    measurements: int
    seconds: float
    predicted_us: float
    lower_bound_us: float
    gap: float
    sequential_us: float
    greedy_us: float
    schedule_sha256: str


def searched(network: str, graph: ComputationGraph, limit: int | None) -> Row:
    """Searches as `optimize` does, with at most `limit` measurements for each block."""
    cost = TwoLanes(graph)
    started = time.perf_counter()
    found = search(
        graph, cost, pruning=Pruning(), bound_slack=0.95, tolerance=0.03, max_measurements_per_block=limit
    )  # fmt: skip
    seconds = time.perf_counter() - started
    predicted = found.schedule.predicted_us or 0.0
    baseline = TwoLanes(graph)
    return Row(
        network=network,
        limit=limit,
        blocks=len(found.schedule.blocks),
        optimal_blocks=sum(block.optimal for block in found.schedule.blocks),
        states=found.states,
        transitions=found.transitions,
        stages=found.stages,
        signatures=cost.signatures,
        measurements=found.measured,
        seconds=round(seconds, 2),
        predicted_us=round(predicted, 1),
        lower_bound_us=round(found.lower_bound_us, 1),
        gap=round(1 - found.lower_bound_us / predicted, 4),
        sequential_us=round(baseline.total_us(sequential(graph)), 1),
        greedy_us=round(baseline.total_us(greedy(graph)), 1),
        schedule_sha256=hashlib.sha256(repr(found.schedule).encode()).hexdigest(),
    )


def unit_graph(network: str) -> ComputationGraph:
    """What the CPU schedules of a network of the zoo."""
    with CpuBackend(load_model(zoo.build(network).SerializeToString(), name=network)) as backend:
        return backend.graph


def main() -> None:
    """Prints the table, and writes it where `-o` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--limit", type=int, action="append", help="measurements for each block; 0 is no limit")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    columns = ("network", "limit", "blocks", "optimal_blocks", "states", "transitions", "stages", "signatures")
    columns += ("measurements", "seconds", "gap", "predicted_us", "sequential_us", "greedy_us")
    write = sys.stdout.write
    write(" ".join(f"{column[:13]:>13}" for column in columns) + "\n")
    rows = []
    for network in arguments.networks:
        graph = unit_graph(network)
        for limit in arguments.limit or [100]:
            rows.append(searched(network, graph, limit or None))
            write(" ".join(f"{getattr(rows[-1], column)!s:>13}" for column in columns) + "\n")
            sys.stdout.flush()
    if arguments.output:
        machine = {"cpu": cpu_name(), "cores": len(os.sched_getaffinity(0))}
        record = {"machine": machine, "noise": NOISE, "rows": [asdict(row) for row in rows]}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
