"""Effort of the search and its distance from the bound, on the zoo's networks.

Run as `python benchmarks/search.py [--device v100 | --cpu] [--limit N]… [--tolerance PART]… [-o FILE.json]`.

By default no latency is measured. On a simulated machine of two lanes, a stage takes the time of its operators'
arithmetic and traffic, with groups placed on two lanes, the longest first, times a noise of its own. So the same run
gives the same numbers on every machine, except for the seconds. `--device` uses the analytic model of a GPU instead.
`--cpu` measures every stage on this machine, into a database of its own; `seconds` then excludes the measurements.
"""

from __future__ import annotations

import hashlib
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from command_line import read_options
from result_tables import NAMES, Table
from results_files import write_results
from testbed import gpu_spec, zoo_model

from iosched import ComputationGraph, CostModel, Effort, Pruning, Schedule, Stage, Strategy, search
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import STREAM_LAUNCHES
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cpu.calls import assign_lanes
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.signature import default_label, stage_signature

NETWORKS = ("squeezenet", "inception_v3", "randwire", "nasnet_a")
FLOPS_PER_US = 40_000.0  # per lane
BYTES_PER_US = 8_000.0
OPERATOR_US, STAGE_US = 2.0, 3.0
NOISE = 0.03

T = TypeVar("T")


def total_us(cost: CostModel, schedule: Schedule) -> float:
    """Latency of a whole schedule."""
    return sum(map(cost.stage_latency_us, schedule.stages))


class TwoLanes:
    """A cost model like two cores: split operators gain less than a factor of two, and two at once interfere."""

    lanes = 2

    def __init__(self, graph: ComputationGraph) -> None:
        self._graph = graph
        self._known: dict[str, float] = {}
        plain = default_label(graph)
        self._labels = {operator.name: plain(operator) for operator in graph.operators}

    @property
    def signatures(self) -> int:
        """Number of distinct stages requested."""
        return len(self._known)

    def operator_key(self, name: str) -> str:
        return self._labels[name]

    def operator_work_us(self, name: str) -> float:
        operator = self._graph.by_name[name]
        return OPERATOR_US + max(operator.flops / FLOPS_PER_US, operator.nbytes / BYTES_PER_US)

    def operator_latency_us(self, name: str) -> float:
        return self.operator_work_us(name) * (0.55 + 0.35 * random.Random(self._labels[name]).random())

    def lower_bound_us(self, stage: Stage) -> float:
        """A bound as weak as that of merged stages on the CPU."""
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


class Timed:
    """A cost model that counts the time of its answers; has the optional parts of two cores."""

    def __init__(self, cost: CpuStageCost) -> None:
        self._cost = cost
        self.seconds = 0.0
        self.lanes = cost.lanes

        self.operator_key, self.lower_bound_us = cost.operator_key, cost.lower_bound_us
        self.operator_work_us = partial(self._timed, cost.operator_work_us)
        self.operator_latency_us = partial(self._timed, cost.operator_latency_us)
        self.remeasure = partial(self._timed, cost.remeasure)

    @property
    def signatures(self) -> int:
        """Number of distinct stages requested."""
        return self._cost.signatures

    def stage_latency_us(self, stage: Stage) -> float:
        return self._timed(self._cost.stage_latency_us, stage)

    def _timed(self, ask: Callable[[T], float], what: T) -> float:
        started = time.perf_counter()
        try:
            return ask(what)
        finally:
            self.seconds += time.perf_counter() - started


class Analytic:
    """The analytic model of a GPU; with its own bounds, and without noise."""

    def __init__(self, graph: ComputationGraph, device: str) -> None:
        self._graph, self._cost = graph, AnalyticCost(graph, gpu_spec(device), launches=STREAM_LAUNCHES)
        self._asked: set[str] = set()
        self.operator_key, self.lower_bound_us = self._cost.operator_key, self._cost.lower_bound_us
        self.concurrent_bounds_us = self._cost.concurrent_bounds_us

    @property
    def signatures(self) -> int:
        """Number of distinct stages requested."""
        return len(self._asked)

    def stage_latency_us(self, stage: Stage) -> float:
        self._asked.add(stage_signature(self._graph, stage, lambda operator: self._cost.operator_key(operator.name)))
        return self._cost.stage_latency_us(stage)


@dataclass(frozen=True)
class Row:
    """One search; latencies in microseconds, `gap` relative to the predicted latency."""

    network: str
    limit: int | None
    tolerance: float
    bound_slack: float
    blocks: int
    optimal_blocks: int
    states: int
    transitions: int
    stages: int
    signatures: int
    measurements: int
    remeasurements: int
    seconds: float
    predicted_us: float
    lower_bound_us: float
    gap: float
    sequential_us: float
    greedy_us: float
    schedule_sha256: str


Cost = TwoLanes | Analytic | Timed


def searched(network: str, graph: ComputationGraph, cost: Cost, effort: Effort) -> Row:
    """Searches with at most `effort.max_measurements` for each block."""
    started = time.perf_counter()
    found = search(graph, cost, pruning=Pruning(), effort=effort)
    seconds = time.perf_counter() - started - (cost.seconds if isinstance(cost, Timed) else 0.0)
    predicted = found.schedule.predicted_us or 0.0
    signatures = cost.signatures
    return Row(
        network=network,
        limit=effort.max_measurements,
        tolerance=effort.tolerance,
        bound_slack=effort.bound_slack,
        blocks=len(found.schedule.blocks),
        optimal_blocks=sum(block.optimal for block in found.schedule.blocks),
        states=found.states,
        transitions=found.transitions,
        stages=found.stages,
        signatures=signatures,
        measurements=found.measured,
        remeasurements=found.remeasured,
        seconds=round(seconds, 2),
        predicted_us=round(predicted, 1),
        lower_bound_us=round(found.lower_bound_us, 1),
        gap=round(found.gap, 4),
        sequential_us=round(total_us(cost, sequential(graph)), 1),
        greedy_us=round(total_us(cost, greedy(graph)), 1),
        schedule_sha256=hashlib.sha256(repr(found.schedule).encode()).hexdigest(),
    )


def costs(network: str, arguments: Namespace, n_searches: int) -> Iterator[tuple[ComputationGraph, Cost]]:
    """A network's graph and a fresh cost model for each search of it."""
    model = zoo_model(network)
    if arguments.device:
        yield from ((model.graph, Analytic(model.graph, arguments.device)) for _ in range(n_searches))
        return
    with CpuBackend(model) as backend:
        for _ in range(n_searches):
            if not arguments.cpu:
                yield backend.graph, TwoLanes(backend.graph)
                continue
            with ProfileDatabase(None) as database:
                yield backend.graph, Timed(CpuStageCost(backend, database))


def table(two_lanes: Sequence[Mapping[str, Any]], analytic: Sequence[Mapping[str, Any]]) -> Table:
    """Measurements and seconds of searches without a limit on them."""

    def found(rows: Sequence[Mapping[str, Any]], network: str, tolerance: float) -> Mapping[str, Any]:
        same = (row for row in rows if (row["network"], row["limit"]) == (network, None))
        return next(row for row in same if row["tolerance"] == tolerance)

    rows = []
    for network in dict.fromkeys(row["network"] for row in two_lanes):
        exact, near, on_gpu = found(two_lanes, network, 0), found(two_lanes, network, 0.03), found(analytic, network, 0)
        counts = f"{exact['measurements']:,}", f"{exact['seconds']:.1f}", f"{near['measurements']:,}"
        rows.append([NAMES[network], *counts, f"{on_gpu['measurements']:,}", f"{on_gpu['seconds']:.1f}"])
    headers = ["network", "two lanes with noise, exact: measurements", "seconds", "within 3 %: measurements"]
    return [*headers, "analytic V100, exact: measurements", "seconds"], rows


def main() -> None:
    """Searches each network with each effort."""
    arguments = read_options(
        __file__, None, {"networks": list(NETWORKS)}, device=str, cpu=False, slack=1.0, output=Path,
        limit={"type": int, "action": "append"}, tolerance={"type": float, "action": "append"},
    )  # fmt: skip
    limits, tolerances = arguments.limit or [0], arguments.tolerance or [0.03]
    rows = []
    for network in arguments.networks:
        efforts = list(product(limits, tolerances))
        for (limit, tolerance), (graph, cost) in zip(efforts, costs(network, arguments, len(efforts)), strict=True):
            effort = Effort(bound_slack=arguments.slack, tolerance=tolerance, max_measurements=limit or None)
            rows.append(searched(network, graph, cost, effort))
            print(rows[-1], file=sys.stderr, flush=True)
    cost_name = arguments.device or ("cpu" if arguments.cpu else "two lanes")
    write_results(arguments, {"cost": cost_name, "noise": NOISE, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
