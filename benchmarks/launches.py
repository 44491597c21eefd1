"""Compares the analytic model's two kinds of launches with latencies measured by others in CUDA graphs, without a fit.

    python benchmarks/launches.py --model nasnet_mobile=NASNetMobile.onnx --model densenet201=DenseNet201.onnx \\
        -o benchmarks/results/launches.json

Networks outside of the zoo are read from files, see `README.md`; rows without their file are omitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analytic import graph_of
from command_line import read_options
from result_tables import Table, print_table
from results_files import write_results
from testbed import gpu_spec

from iosched import ComputationGraph, Schedule, load_model, search
from iosched.models.zoo import names
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import (
    LAUNCH_CONSTANTS,
    LEAST_NODE_US,
    MOST_NODE_US,
    NODE_US,
    LaunchConstants,
    in_graph,
)
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.precision import PrecisionName

NODES_US = (LEAST_NODE_US, NODE_US, MOST_NODE_US)
COMPARED = ("squeezenet", "googlenet", "inception_v3", "nasnet_a", "nasnet_mobile")  # on a V100, at batch 1

Record = dict[str, Any]


@dataclass(frozen=True)
class Published:
    """Latencies of a network in a CUDA graph, measured by others.

    Attributes:
        pairs_ms: latency with all kernels in one stream, None if not measured, and in several.
        ratios: published speedups of several streams over one, without latencies.
        targets: GPUs of the model's table, and precisions, that it may be from.
        source: the publication.
    """

    network: str
    batch: int
    pairs_ms: tuple[tuple[float | None, float], ...]
    targets: tuple[tuple[str, PrecisionName], ...]
    source: str
    ratios: tuple[float, ...] = ()


OPARA = "Opara (IEEE Trans. Computers 2025) and the READMEs of its repositories: PyTorch's graph and Opara's"
NIMBLE = "github.com/snuspl/nimble/issues/22: Nimble on a '2080s with 8G', not by its authors"
JANUS = "github.com/KKKABI/janus-gpu-scheduler, RESULTS_*.md: made from Opara, its first and its best order"
SUPER: tuple[tuple[str, PrecisionName], ...] = (("rtx2080super", "fp32"),)
A5000: tuple[tuple[str, PrecisionName], ...] = (("rtxa5000", "fp32"), ("rtxa5000", "tf32"))
PUBLISHED = (
    Published("googlenet", 1, ((1.9706, 1.1614), (1.8680, 1.1103)), SUPER, OPARA),
    Published("inception_v3", 1, (), SUPER, OPARA, (1.41,)),
    Published("inception_v3", 32, (), SUPER, OPARA, (1.09,)),
    Published("inception_v3", 1, ((2.24783, 2.31407),), SUPER, NIMBLE),
    Published("inception_v3", 8, ((17.354554, 16.428471),), SUPER, NIMBLE),
    Published("densenet201", 1, ((5.537937, 5.572467),), SUPER, NIMBLE),
    Published("densenet201", 8, ((24.178936, 24.125336),), SUPER, NIMBLE),
    Published("googlenet", 1, ((None, 0.8217), (None, 0.7462)), A5000, JANUS),
    Published("googlenet", 8, ((None, 2.7096), (None, 2.5229)), A5000, JANUS),
    Published("inception_v3", 1, ((None, 2.0505), (None, 1.9312)), A5000, JANUS),
    Published("inception_v3", 8, ((None, 7.4668), (None, 7.2562)), A5000, JANUS),
    Published("nasnet_a", 1, ((None, 8.6873), (None, 7.7998)), A5000, JANUS),
    Published("nasnet_a", 8, ((None, 60.2395), (None, 59.1710)), A5000, JANUS),
)


@dataclass(frozen=True)
class Networks:
    """Networks by name: those of the zoo, and those of ONNX files.

    Attributes:
        files: paths of ONNX files by the names of their networks.
    """

    files: Mapping[str, Path]

    def has(self, name: str) -> bool:
        return name in self.files or name in names()

    def graph(self, name: str, batch: int = 1) -> ComputationGraph:
        if name not in self.files:
            return graph_of(name, batch)
        return load_model(self.files[name], name=name, batch_size=batch).graph

    def described(self) -> Record:
        """Properties that distinguish the files' networks from others of the same name; weights do not matter."""
        models = {name: load_model(path, name=name, batch_size=1) for name, path in self.files.items()}
        return {
            name: {"operators": len(model.graph.operators), "structure": model.structure.digest}
            for name, model in models.items()
        }


def in_graphs(networks: Networks) -> list[Record]:
    """All published latencies, and the model for the range of node overheads."""
    return [
        {
            "network": each.network,
            "batch": each.batch,
            "published_ms": each.pairs_ms,
            "published_ratio": [*(one and round(one / several, 2) for one, several in each.pairs_ms), *each.ratios],
            "source": each.source,
            "gpu": device,
            "precision": precision,
            **{f"node of {us:g} us": predicted(graph, device, precision, in_graph(us)) for us in NODES_US},
            "streams": predicted(graph, device, precision, LAUNCH_CONSTANTS["streams"]),
        }
        for each in PUBLISHED
        if networks.has(each.network)
        for graph in [networks.graph(each.network, each.batch)]
        for device, precision in each.targets
    ]


def predicted(
    graph: ComputationGraph, device: str, precision: PrecisionName, launches: LaunchConstants
) -> dict[str, float]:
    """Milliseconds of the baselines and the schedule found, and speedups over sequential."""
    cost = AnalyticCost(graph, gpu_spec(device), precision, launches=launches)
    schedules = {"greedy": greedy(graph), "found": search(graph, cost).schedule}
    plain = _ms(cost, sequential(graph))
    found = {name: _ms(cost, schedule) for name, schedule in schedules.items()}
    ratios = {f"{name}_ratio": plain / ms for name, ms in found.items()}
    return {name: round(value, 3) for name, value in {"sequential": plain, **found, **ratios}.items()}


def schedules(networks: Networks) -> dict[str, Record]:
    """The schedules found for either launch on a V100, and their latencies under the other."""
    return {name: crossed(networks.graph(name)) for name in COMPARED if networks.has(name)}


def crossed(graph: ComputationGraph) -> Record:
    """Milliseconds of the schedules that are found for either launch, and of the baselines, under both."""
    spec = gpu_spec("v100")
    costs = {launch: AnalyticCost(graph, spec, launches=each) for launch, each in LAUNCH_CONSTANTS.items()}
    found = {launch: search(graph, cost).schedule for launch, cost in costs.items()}
    baselines = {"sequential": sequential(graph), "greedy": greedy(graph)}
    return {
        "stages": {launch: len(list(schedule.stages)) for launch, schedule in found.items()},
        "merged": {
            launch: sum(stage.strategy.value == "merge" for stage in schedule.stages)
            for launch, schedule in found.items()
        },
        "ms": {
            f"launched by {run}, made for {made}": round(_ms(cost, schedule), 3)
            for run, cost in costs.items()
            for made, schedule in found.items()
        },
        "baselines_ms": {
            launch: {name: round(_ms(cost, schedule), 3) for name, schedule in baselines.items()}
            for launch, cost in costs.items()
        },
    }


def _ms(cost: AnalyticCost, schedule: Schedule) -> float:
    return cost.schedule_latency_us(schedule) / 1000


def graphs_table(rows: Sequence[Record]) -> Table:
    """Networks in CUDA graphs, published and by the model."""
    cells = []
    for each in rows:
        names = f"{each['network']}, {each['batch']}", _published(each), f"{each['gpu']}, {each['precision']}"
        cells.append([*names, *_ranges(each)])
    headers = ["network, batch", "published: one stream, several", "model's GPU", "sequential", "greedy", "found"]
    return headers, cells


def schedules_table(schedules: Mapping[str, Record]) -> Table:
    """Schedules that are made for streams and for graphs, under both."""
    rows = []
    for name, each in schedules.items():
        counts = (f"{each[key]['streams']} and {each[key]['graph']}" for key in ("stages", "merged"))
        other = f"{each['ms']['launched by graph, made for streams']:.2f}"
        rows.append([name, *(_row(each, launch) for launch in ("streams", "graph")), other, *counts])
    headers = ["network", "streams: sequential, greedy, found", "graph: the same", "the streams' schedule in a graph"]
    return [*headers, "stages, streams and graph", "of them merged"], rows


def _published(each: Record) -> str:
    pairs, ratios = each["published_ms"], each["published_ratio"]
    latencies = [
        f"{several:.2f} in several" if one is None else f"{one:.2f}, {several:.2f}: {ratio:.2f}x"
        for (one, several), ratio in zip(pairs, ratios, strict=False)
    ]
    return "; ".join([*latencies, *(f"{ratio:.2f}x" for ratio in ratios[len(pairs) :])])


def _ranges(each: Record) -> list[str]:
    """Latencies of the schedules for the usual node overhead, with the ends of its range in brackets."""
    least, usual, most = (each[f"node of {node_us:g} us"] for node_us in NODES_US)
    cells = []
    for name in ("sequential", "greedy", "found"):
        ratio = f": {usual[f'{name}_ratio']:.2f}x" if name != "sequential" else ""
        cells.append(f"{usual[name]:.2f} ({least[name]:.2f} to {most[name]:.2f}){ratio}")
    return cells


def _row(each: Record, launch: str) -> str:
    found = each["ms"][f"launched by {launch}, made for {launch}"]
    return ", ".join(f"{ms:.2f}" for ms in (*each["baselines_ms"][launch].values(), found))


def named_file(text: str) -> tuple[str, Path]:
    """A name and a path of `NAME=FILE.onnx`."""
    name, equals, path = text.partition("=")
    if not (name and equals and Path(path).is_file()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FILE.onnx with a file that exists")
    return name, Path(path)


def main() -> None:
    """Prints and writes the launch results of benchmarks/reports/analytic-evidence.md."""
    arguments = read_options(__file__, model={"type": named_file, "action": "append", "default": []}, output=Path)
    networks = Networks(dict(arguments.model))
    record: Record = {"models": networks.described(), "in_graphs": in_graphs(networks)}
    record |= {"schedules": schedules(networks)}
    print_table(*graphs_table(record["in_graphs"]))
    print_table(*schedules_table(record["schedules"]))
    write_results(arguments, record, seeds={})


if __name__ == "__main__":
    main()
