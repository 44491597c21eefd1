"""Savings from measuring a stage only until it is clearly too slow (docs/measurement.md), on the CPU.

    python benchmarks/ablation_curtailing.py [--networks squeezenet,googlenet] [--rounds 15] [-o F.json]

Each network is searched twice with empty databases: once with every stage measured in full, once with early stops.
Name a network again for another pair. The two schedules found then run interleaved, A B A B. The ratio is within
rounds, with a 95 % interval; above 1, early stops found the faster schedule. `rough` counts the stages that were
stopped early.

Options:
    --rounds: samples of each schedule found
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from command_line import OUTPUTS, read_options
from result_tables import NAMES, Table, print_table, ratio_text, within_rounds
from results_files import write_results
from testbed import in_turn, zoo_model

from iosched import Schedule, Stage, search
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import CPU_EFFORT
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs

HEADERS = ("network", "measured", "seconds", "stages", "rough", "samples", "samples a stage", "ms a stage", "speedup")


class PatientCost(CpuStageCost):
    """Measures every stage in full."""

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        del worse_than_us
        return self.stage_latency_us(stage)


WAYS: dict[str, type[CpuStageCost]] = {"in full": PatientCost, "curtailed": CpuStageCost}


@dataclass(frozen=True)
class Search:
    """Effort of one search; stages that were measured twice count twice."""

    way: str
    seconds: float
    stages: int
    rough: int
    samples: int
    predicted_us: float | None


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, networks=("squeezenet", "googlenet"), rounds=15, device="cpu", **OUTPUTS)
    content: dict[str, list[Any]] = {}
    for network in options.networks:
        model = zoo_model(network)
        with CpuBackend(model) as backend:
            found = {way: searched(backend, way) for way in WAYS}
            inputs = random_inputs(model.graph.inputs)
            openers = {way: partial(_ready, backend, schedule, inputs) for way, (_, schedule) in found.items()}
            samples = in_turn(openers, Budget(options.rounds))
        kept = {
            "searches": [asdict(one) for one, _ in found.values()],
            "samples_us": {way: each.samples_us for way, each in samples.items()},
        }
        content.setdefault(network, []).append(kept)
        print(f"{network}: done", file=sys.stderr, flush=True)
    print_table(*table(content))
    write_results(options, {"networks": content})


def searched(backend: CpuBackend, way: str) -> tuple[Search, Schedule]:
    """One search with an empty database."""
    with ProfileDatabase(None) as database:
        cost = WAYS[way](backend, database)
        started = time.monotonic()
        schedule = search(backend.graph, cost, effort=CPU_EFFORT).schedule
        seconds = time.monotonic() - started
        stages = [row for row in database.rows() if isinstance(row, StageRow)]
        samples = database.stats().devices[0].samples
    rough = sum(stage.turn == "rough" for stage in stages)
    return Search(way, round(seconds, 2), cost.measurements, rough, samples, schedule.predicted_us), schedule


def _ready(backend: CpuBackend, schedule: Schedule, inputs: Arrays) -> Candidate:
    compiled = backend.compile(schedule)
    return Candidate(partial(compiled.time, inputs), compiled.close)


def table(networks: Mapping[str, Any]) -> Table:
    rows = []
    for network, runs in networks.items():
        for run in runs:
            speedup = within_rounds(run["samples_us"], "in full", "curtailed")
            for one in run["searches"]:
                counts = one["stages"], one["rough"], one["samples"]
                each = f"{one['samples'] / one['stages']:.1f}", f"{one['seconds'] / one['stages'] * 1e3:.0f}"
                last = ratio_text(speedup, ".3f") if one["way"] == "curtailed" else ""
                rows.append([NAMES.get(network, network), one["way"], f"{one['seconds']:.1f}", *counts, *each, last])
    return HEADERS, rows


if __name__ == "__main__":
    main()
