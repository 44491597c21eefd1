"""What the papers' tables and figures show, as the analytic model says it, where no other script does.

    python benchmarks/papers.py -o benchmarks/results/papers.json     # some minutes; measures nothing

The papers are Ding's thesis on IOS, its conference version (MLSys 2021), and DOS, the method before it.
`papers_page.py` makes benchmarks/reports/papers.md of these results and of those of the other scripts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import four_convolutions
from analytic import CALIBRATION, cost_of, gpu, graph_of, predicted_ms, schedules
from kernel_traffic import is_merged, traffic
from last_block import last_block
from testbed import option_parser, write_results

from iosched.jobs.matrix import MatrixSettings, matrix
from iosched.models import zoo
from iosched.models.graph import ComputationGraph, Operator, TensorSpec
from iosched.models.load import load_model
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.throughput import Throughput
from iosched.scheduler.baselines import sequential
from iosched.scheduler.blocks import partition
from iosched.scheduler.counts import count_blocks
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.search import search
from iosched.scheduler.strategies import SearchStrategy

NETWORKS = ("inception_v3", "randwire", "nasnet_a", "squeezenet")
TABLE_3_1 = {
    "squeezenet": 6,
    "inception_v3": 11,
    "nasnet_a": 18,
    "randwire": 33,
}  # operators of the block counted there
MATRICES: dict[str, tuple[tuple[str, ...], tuple[int, ...], SearchStrategy]] = {
    "devices": (("v100", "k80"), (1,), "both"),
    "batch-sizes": (("v100",), (1, 32, 128), "both"),
    "dos-devices": (("titanxp", "v100", "rtx2080ti"), (1,), "dos"),
    "dos-batch-sizes": (("v100",), (1, 8, 16), "dos"),
}
CHAINS = {"figure 3.4": (2, 1), "1 of 3": (3,), "2 of 2": (2, 2), "3 of 4": (4, 4, 4)}  # lengths of independent chains

Record = dict[str, object]


def main(arguments: Sequence[str]) -> None:
    options = option_parser(__doc__, networks=",".join(NETWORKS)).parse_args(arguments)
    networks = options.networks.split(",")
    record: Record = {
        "chains": {name: chains(lengths) for name, lengths in CHAINS.items()},
        "table_3_1": {name: counts(name) for name in networks},
        "blocks": {name: blocks(graph_of(name)) for name in networks},
        "convolutions": {name: mean_convolution(graph_of(name)) for name in ("vgg16", *networks)},
        "four_convolutions": four(),
        "throughput": {name: throughput(name) for name in networks},
        "v100_ms": {name: five_schedules(name, "v100") for name in networks},
        "rtx2080ti_ms": {name: five_schedules(name, "rtx2080ti") for name in networks},
        "resnet50_ms": five_schedules("resnet50", "v100"),
        "dos": {name: dos(name) for name in networks},
        "matrices": {name: matrix_us(*targets) for name, targets in MATRICES.items()},
        "last_block": last_block() if "inception_v3" in networks else {},
    }
    write_results(options, "papers", arguments, record)


def chains(lengths: Sequence[int]) -> Record:
    """Figures 3.4 and 3.5: states and transitions of independent chains, without the empty ones."""
    spec = TensorSpec("x", "float32", (1,))
    names = [["x", *(f"{chain}.{place}" for place in range(length))] for chain, length in enumerate(lengths)]
    operators = tuple(
        Operator(name, "Relu", (name,), (before,), (name,)) for chain in names for before, name in pairwise(chain)
    )
    tensors = tuple(replace(spec, name=operator.name) for operator in operators)
    graph = ComputationGraph("chains", (spec,), tuple(chain[-1] for chain in names), operators, tensors)
    (found,) = count_blocks(graph, [tuple(graph.by_name)], Pruning(None, None))
    return {"states": found.states, "transitions": found.transitions}


def counts(network: str) -> Record:
    """Table 3.1: the largest block, without pruning, with the endings that were counted there and with all."""
    graph = graph_of(network)
    sized = [part.operators for part in partition(graph) if len(part.operators) == TABLE_3_1[network]]
    states = [found.states for found in count_blocks(graph, sized, Pruning(1, 1))]
    largest = sized[states.index(max(states))]
    found: Record = {"operators": len(largest)}
    for name, single_source in (("published", True), ("all", False)):
        (counted,) = count_blocks(graph, [largest], Pruning(None, None), single_source=single_source)
        found |= {"width": counted.width, "upper_bound": counted.upper_bound}
        found[name] = {"transitions": counted.transitions, "schedules": counted.schedules}
    return found


def blocks(graph: ComputationGraph) -> Record:
    """Table 4.1: operators, of each type and of each block."""
    types = Counter(operator.type for operator in graph.operators)
    return {
        "operators": len(graph.operators),
        "types": dict(types.most_common()),
        "blocks": [len(part.operators) for part in partition(graph)],
    }


def mean_convolution(graph: ComputationGraph) -> Record:
    """Figure 1.1; a separable convolution is two."""
    count = sum(operator.node_types.count("Conv") for operator in graph.operators)
    flops = sum(operator.flops for operator in graph.operators if "Conv" in operator.node_types)
    return {"convolutions": count, "mflop": round(flops / count / 1e6, 1)}


def four() -> Record:
    """Figure 1.2 and DOS's figure 1: the published schedules and ours."""
    graph = load_model(four_convolutions.build().SerializeToString()).graph
    cost = AnalyticCost(graph, gpu("v100"), calibration=CALIBRATION)
    found = {name: four_convolutions.published(name) for name in four_convolutions.PUBLISHED}
    found["ours, concurrent"] = search(graph, cost, strategy="concurrent").schedule
    found["ours"] = search(graph, cost).schedule
    return {
        name: {
            "stages": [{"stage": words(stage), **measures(cost, [stage])} for stage in schedule.stages],
            "all": measures(cost, list(schedule.stages)),
        }
        for name, schedule in found.items()
    }


def words(stage: Stage) -> str:
    """Groups of a stage, + between what is merged."""
    return ("+" if is_merged(stage) else ", ").join(" ".join(group) for group in stage.groups)


def measures(cost: AnalyticCost, stages: Sequence[Stage]) -> Record:
    """What `iosched show` says of stages."""
    costed = [replace(stage, predicted_us=cost.stage_latency_us(stage), measured_us=None) for stage in stages]
    return _rounded(cost.throughputs.of(costed))


def _rounded(found: Throughput) -> Record:
    return {
        "us": round(found.latency_us or 0.0, 1),
        "gflop": round(found.flops / 1e9, 3),
        "tflops": round(found.tflops or 0.0, 3),
        "share_of_peak": round(found.share_of_peak or 0.0, 4),
        "sm_share": round(found.sm_share or 0.0, 4),
    }


def throughput(network: str) -> Record:
    """Figure 4.3, for each network."""
    cost, found = cost_of(network, CALIBRATION), schedules(network, CALIBRATION)
    return {name: measures(cost, list(found[name].stages)) for name in ("sequential", "greedy", "both")}


def five_schedules(network: str, device: str) -> dict[str, float]:
    """Figures 4.1 and 4.4, milliseconds."""
    cells = predicted_ms(network, CALIBRATION, schedules(network, CALIBRATION, device), device)
    return {name: round(value, 3) for name, value in cells.items()}


def matrix_us(devices: Sequence[str], batch_sizes: Sequence[int], strategy: SearchStrategy) -> Record:
    """The thesis's table 4.2, and DOS's tables 1 and 2: latencies of Inception V3 as run on, and as scheduled for."""
    proto = zoo.build("inception_v3").SerializeToString()
    batches = [(size, load_model(proto, batch_size=size)) for size in batch_sizes]
    settings = MatrixSettings(tuple(devices), strategy=strategy, launch="streams", gap_percent=0, resume=False)
    names = devices if len(devices) > 1 else batch_sizes
    return {"targets": list(names), "latency_us": matrix(batches, settings).latency_us}


def dos(network: str) -> Record:
    """DOS's table 5, and its latencies beside those of IOS."""
    graph, cost = graph_of(network), cost_of(network, CALIBRATION)
    ways = {
        "sequential": sequential(graph),
        "dos": search(graph, cost, strategy="dos").schedule,
        "both": schedules(network, CALIBRATION)["both"],
    }
    return {name: _table_5(graph, schedule, cost.schedule_latency_us(schedule)) for name, schedule in ways.items()}


def _table_5(graph: ComputationGraph, schedule: Schedule, latency_us: float) -> Record:
    found = traffic(graph, schedule)
    return {
        "ms": round(latency_us / 1e3, 3),
        "kernels": found.kernels,
        "read_mib": round(found.read_nbytes / 2**20, 1),
        "giga_multiply_adds": round(found.multiply_adds / 1e9, 3),
        "tera_multiply_adds_per_s": round(found.multiply_adds / latency_us / 1e6, 3),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
