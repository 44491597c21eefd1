"""Tables and figures of the papers under the analytic model that no other script has.

    python benchmarks/papers.py -o benchmarks/results/papers.json     # some minutes; measures nothing

The papers are Ding's thesis on IOS, its conference version (MLSys 2021), and DOS, the method before it.
`papers_tables.py` has the tables of benchmarks/reports/papers.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

import four_convolutions
from analytic import STREAM_LAUNCHES, cost_of, graph_of, predicted_ms, schedules
from command_line import OUTPUTS, read_options
from results_files import write_results
from testbed import gpu_spec

from iosched import ComputationGraph, MatrixSettings, Operator, Pruning, TensorSpec, load_model, matrix, partition
from iosched.models import zoo
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.kernels import Kernel, Product, kernels_of, leading_types, merged_kernels
from iosched.profiler.devices.throughput import Throughput
from iosched.scheduler.baselines import sequential
from iosched.scheduler.counts import count_blocks
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy
from iosched.scheduler.search import search
from iosched.scheduler.strategies import SearchStrategy


@dataclass(frozen=True)
class Traffic:
    """Of all kernels of a schedule.

    Attributes:
        kernels: launches.
        multiply_adds: also those on zeros that a merge pads kernels with; a pooling's operations count as halves.
        read_nbytes: activations that kernels read, once for each kernel that reads them; no weights.
    """

    kernels: int
    multiply_adds: int
    read_nbytes: int


def traffic(graph: ComputationGraph, schedule: Schedule) -> Traffic:
    """Counts for `schedule`; each operator runs the kernels that the analytic model assumes."""
    stages = list(schedule.stages)
    kernels = [kernel for stage in stages for kernel in _kernels(graph, stage)]
    return Traffic(len(kernels), sum(map(_multiply_adds, kernels)), sum(_read_nbytes(graph, stage) for stage in stages))


def is_merged(stage: Stage) -> bool:
    """Whether one kernel computes several operators."""
    return stage.strategy is Strategy.MERGE and len(stage.groups) > 1


def _operators(graph: ComputationGraph, stage: Stage) -> Sequence[Operator]:
    return [graph.by_name[name] for name in stage.operators]


def _kernels(graph: ComputationGraph, stage: Stage) -> Sequence[Kernel]:
    operators = _operators(graph, stage)
    if is_merged(stage):
        return merged_kernels(graph, operators)
    return [kernel for operator in operators for kernel in kernels_of(graph, operator)]


def _multiply_adds(kernel: Kernel) -> int:
    if isinstance(kernel, Product):
        return kernel.rows * kernel.columns * kernel.inner * kernel.count
    return kernel.window_flops // 2


def _read_nbytes(graph: ComputationGraph, stage: Stage) -> int:
    operators = _operators(graph, stage)
    return sum(_reads(graph, operator) for operator in (operators[:1] if is_merged(stage) else operators))


def _reads(graph: ComputationGraph, operator: Operator) -> int:
    if not kernels_of(graph, operator):
        return 0
    inputs = [graph.tensor[name] for name in operator.inputs]
    if not leading_types(operator):
        return sum(spec.nbytes for spec in inputs)
    source, result = inputs[0], graph.tensor[operator.name]
    assert source.shape is not None
    assert result.shape is not None
    sums = sum(count * source.nbytes for count in operator.integers("terms") if count > 1)
    between = source.nbytes * prod(result.shape[2:]) // prod(source.shape[2:])
    return sums + 2 * source.nbytes + (between if operator.node_types.count("Conv") > 1 else 0)


NETWORK, BLOCK = "inception_v3", "mixed_7c"
LETTERS = {
    "a": "branch3x3dbl/conv1_1x1", "c": "branch3x3dbl/conv2_3x3", "f": "branch3x3dbl_b/conv1_3x1",
    "g": "branch3x3dbl_a/conv1_1x3", "b": "branch3x3/conv1_1x1", "h": "branch3x3_b/conv1_3x1",
    "i": "branch3x3_a/conv1_1x3", "P": "branch_pool/pool", "d": "branch_pool/conv_1x1", "e": "branch1x1/conv1_1x1",
}  # fmt: skip
# The schedules as published: stages from the first to the last, a word per group, + between merged ones. The
# concatenation is a separate stage at the end.
PUBLISHED: dict[str, tuple[str, ...]] = {
    "batch 1": ("ac b Pd e", "f g h i"),
    "batch 32": ("P", "a bi d e", "c h", "f+g"),
    "batch 128": ("P", "ac b d e", "h+i", "f+g"),
    "K80": ("ac bh Pd e", "f g i"),
}
PLACES = {"batch 1": ("v100", 1), "batch 32": ("v100", 32), "batch 128": ("v100", 128), "K80": ("k80", 1)}

Record = dict[str, object]


def last_block() -> Record:
    """Everything under the analytic model: every schedule's latency in every place, and stages of every block."""
    costs = {place: cost_of(NETWORK, STREAM_LAUNCHES, device, batch) for place, (device, batch) in PLACES.items()}
    found = {place: search(cost.graph, cost).schedule for place, cost in costs.items()}
    theirs = {f"published, {place}": stages for place, stages in published().items()}
    known = theirs | {f"ours, {place}": _block(schedule) for place, schedule in found.items()}
    return {
        "schedules": {name: [_words(stage) for stage in stages] for name, stages in known.items()},
        "us": {place: {name: _us(cost, stages) for name, stages in known.items()} for place, cost in costs.items()},
        "stages_of_blocks": {
            place: [len(block.stages) for block in schedule.blocks] for place, schedule in found.items()
        },
        "merged": {place: sum(map(is_merged, schedule.stages)) for place, schedule in found.items()},
        "network_ms": {place: round((schedule.predicted_us or 0.0) / 1e3, 3) for place, schedule in found.items()},
    }


def published() -> dict[str, Sequence[Stage]]:
    """The stages of each published schedule, in terms of the bundled network's operators."""
    concatenation = Stage(Strategy.CONCURRENT, ((BLOCK,),))
    return {place: (*map(_stage, words), concatenation) for place, words in PUBLISHED.items()}


def _block(schedule: Schedule) -> Sequence[Stage]:
    return next(block.stages for block in schedule.blocks if BLOCK in block.stages[-1].operators)


def _stage(words: str) -> Stage:
    merged = "+" in words
    groups = words.split("+" if merged else " ")
    return Stage(
        Strategy.MERGE if merged else Strategy.CONCURRENT,
        tuple(tuple(f"{BLOCK}/{LETTERS[letter]}" for letter in group) for group in groups),
    )


def _words(stage: Stage) -> str:
    letter = {f"{BLOCK}/{name}": letter for letter, name in LETTERS.items()} | {BLOCK: "concat"}
    groups = ("".join(letter[name] for name in group) for group in stage.groups)
    return ("+" if is_merged(stage) else " ").join(groups)


def _us(cost: AnalyticCost, stages: Sequence[Stage]) -> float:
    plain = tuple(replace(stage, predicted_us=None) for stage in stages)
    return round(cost.schedule_latency_us(Schedule((Block(0, plain),))), 1)


NETWORKS = ("inception_v3", "randwire", "nasnet_a", "squeezenet")
# operators of the block counted there
TABLE_3_1 = {"squeezenet": 6, "inception_v3": 11, "nasnet_a": 18, "randwire": 33}
MATRICES: dict[str, tuple[tuple[str, ...], tuple[int, ...], SearchStrategy]] = {
    "devices": (("v100", "k80"), (1,), "both"),
    "batch-sizes": (("v100",), (1, 32, 128), "both"),
    "dos-devices": (("titanxp", "v100", "rtx2080ti"), (1,), "dos"),
    "dos-batch-sizes": (("v100",), (1, 8, 16), "dos"),
}
CHAINS = {"figure 3.4": (2, 1), "1 of 3": (3,), "2 of 2": (2, 2), "3 of 4": (4, 4, 4)}  # lengths of independent chains


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(__file__, arguments, networks=tuple(NETWORKS), device="v100", **OUTPUTS)
    record: Record = {
        "chains": {name: chains(lengths) for name, lengths in CHAINS.items()},
        "table_3_1": {name: counts(name) for name in options.networks},
        "blocks": {name: blocks(graph_of(name)) for name in options.networks},
        "convolutions": {name: mean_convolution(graph_of(name)) for name in ("vgg16", *options.networks)},
        "four_convolutions": four(),
        "throughput": {name: throughput(name) for name in options.networks},
        "v100_ms": {name: five_schedules(name, "v100") for name in options.networks},
        "rtx2080ti_ms": {name: five_schedules(name, "rtx2080ti") for name in options.networks},
        "resnet50_ms": five_schedules("resnet50", "v100"),
        "dos": {name: dos(name) for name in options.networks},
        "matrices": {name: matrix_us(*targets) for name, targets in MATRICES.items()},
        "last_block": last_block() if "inception_v3" in options.networks else {},
    }
    write_results(options, record)


def chains(lengths: Sequence[int]) -> Record:
    """Figures 3.4 and 3.5: states and transitions of independent chains, without the empty ones."""
    spec = TensorSpec("x", "float32", (1,))
    names = [["x", *(f"{chain}.{place}" for place in range(length))] for chain, length in enumerate(lengths)]
    pairs = [pair for chain in names for pair in pairwise(chain)]
    operators = tuple(Operator(name, "Relu", (name,), (before,), (name,)) for before, name in pairs)
    tensors = tuple(replace(spec, name=operator.name) for operator in operators)
    graph = ComputationGraph("chains", (spec,), tuple(chain[-1] for chain in names), operators, tensors)
    (found,) = count_blocks(graph, [tuple(graph.by_name)], Pruning(None, None))
    return {"states": found.states, "transitions": found.transitions}


def counts(network: str) -> Record:
    """Table 3.1: the largest block, without pruning, with the endings counted there and with all."""
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
    cost = AnalyticCost(graph, gpu_spec("v100"), launches=STREAM_LAUNCHES)
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
    """Groups of a stage, + between merged operators."""
    return ("+" if is_merged(stage) else ", ").join(" ".join(group) for group in stage.groups)


def measures(cost: AnalyticCost, stages: Sequence[Stage]) -> Record:
    """The throughput of stages as `iosched show` prints it."""
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
    cost, found = cost_of(network, STREAM_LAUNCHES), schedules(network, STREAM_LAUNCHES)
    return {name: measures(cost, list(found[name].stages)) for name in ("sequential", "greedy", "both")}


def five_schedules(network: str, device: str) -> dict[str, float]:
    """Figures 4.1 and 4.4, milliseconds."""
    cells = predicted_ms(network, STREAM_LAUNCHES, schedules(network, STREAM_LAUNCHES, device), device)
    return {name: round(value, 3) for name, value in cells.items()}


def matrix_us(devices: Sequence[str], batch_sizes: Sequence[int], strategy: SearchStrategy) -> Record:
    """The thesis's table 4.2, and DOS's tables 1 and 2: Inception V3 by where it runs and where it was searched."""
    proto = zoo.build("inception_v3").SerializeToString()
    batches = [(size, load_model(proto, batch_size=size)) for size in batch_sizes]
    settings = MatrixSettings(tuple(devices), strategy=strategy, launch="streams", gap_percent=0, resume=False)
    names = devices if len(devices) > 1 else batch_sizes
    return {"targets": list(names), "latency_us": matrix(batches, settings).latency_us}


def dos(network: str) -> Record:
    """DOS's table 5, and its latencies alongside those of IOS."""
    graph, cost = graph_of(network), cost_of(network, STREAM_LAUNCHES)
    ways = {
        "sequential": sequential(graph),
        "dos": search(graph, cost, strategy="dos").schedule,
        "both": schedules(network, STREAM_LAUNCHES)["both"],
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
    main()
