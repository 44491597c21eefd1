"""The analytic model's two launches against latencies that others measured in CUDA graphs; nothing is fitted to them.

    python benchmarks/launches.py -o benchmarks/results/launches.json

Published for CUDA graphs: GoogLeNet on a GPU that is not named, PyTorch in a graph of one stream and in Opara's of
several (github.com/OparaSys/Opara, README); Inception V3 on a GeForce RTX 2080 Super, Nimble with one stream and with
several (github.com/snuspl/nimble, issue 22, not by its authors). The model has no 2080 Super: a 2080 Ti stands for it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from analytic import cost_of, graph_of

from iosched.profiler.devices.analytic.calibration import (
    CALIBRATIONS,
    LEAST_NODE_US,
    MOST_NODE_US,
    NODE_US,
    Calibration,
    in_graph,
)
from iosched.profiler.devices.analytic.cost import AnalyticCost
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import search

PUBLISHED_MS = {  # one stream, several streams
    ("googlenet", 1): (1.971, 1.161),
    ("inception_v3", 1): (2.248, 2.314),
    ("inception_v3", 8): (17.355, 16.428),
}
GPUS = {"googlenet": ("v100", "a100", "rtx2080ti"), "inception_v3": ("rtx2080ti",)}
NODES_US = (LEAST_NODE_US, NODE_US, MOST_NODE_US)
COMPARED = ("squeezenet", "googlenet", "inception_v3", "nasnet_a")

Record = dict[str, object]


def in_graphs() -> list[Record]:
    """Every published pair, and the model in the range of what a node of a graph takes."""
    return [
        {
            "network": network,
            "batch": batch,
            "published_ms": published,
            "published_ratio": round(published[0] / published[1], 2),
            "gpu": device,
            **{f"node of {node_us:g} us": predicted(network, batch, device, in_graph(node_us)) for node_us in NODES_US},
            "streams": predicted(network, batch, device, CALIBRATIONS["streams"]),
        }
        for (network, batch), published in PUBLISHED_MS.items()
        for device in GPUS[network]
    ]


def predicted(network: str, batch: int, device: str, calibration: Calibration) -> dict[str, float]:
    """Milliseconds of the baselines and the schedule found, and how many times as fast as sequential they are."""
    cost = cost_of(network, calibration, device, batch)
    schedules = {"greedy": greedy(cost.graph), "found": search(cost.graph, cost).schedule}
    plain = _ms(cost, sequential(cost.graph))
    found = {name: _ms(cost, schedule) for name, schedule in schedules.items()}
    ratios = {f"{name}_ratio": plain / ms for name, ms in found.items()}
    return {name: round(value, 3) for name, value in {"sequential": plain, **found, **ratios}.items()}


def schedules() -> dict[str, Record]:
    """What the search finds for either launch on a V100, and what that takes under the other."""
    return {network: _crossed(network) for network in COMPARED}


def _crossed(network: str) -> Record:
    graph = graph_of(network)
    costs = {launch: cost_of(network, calibration) for launch, calibration in CALIBRATIONS.items()}
    found = {launch: search(graph, cost).schedule for launch, cost in costs.items()}
    return {
        "stages": {launch: len(list(schedule.stages)) for launch, schedule in found.items()},
        "merged": {launch: _merged(schedule) for launch, schedule in found.items()},
        "ms": {
            f"launched by {run}, made for {made}": round(_ms(cost, schedule), 3)
            for run, cost in costs.items()
            for made, schedule in found.items()
        },
        "baselines_ms": {
            launch: {
                name: round(_ms(cost, schedule), 3)
                for name, schedule in {"sequential": sequential(graph), "greedy": greedy(graph)}.items()
            }
            for launch, cost in costs.items()
        },
    }


def _merged(schedule: Schedule) -> int:
    return sum(stage.strategy.value == "merge" for stage in schedule.stages)


def _ms(cost: AnalyticCost, schedule: Schedule) -> float:
    return cost.schedule_latency_us(schedule) / 1000


def main() -> None:
    """Writes what docs/analytic-model.md says of launches."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    record: Mapping[str, object] = {"in_graphs": in_graphs(), "schedules": schedules()}
    text = json.dumps(record, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
