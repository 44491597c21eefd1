"""Loss of a CPU search by not measuring every stage: schedules of both searches run as whole models, interleaved.

    python benchmarks/regret.py [--network squeezenet|FILE.onnx] [--block N] [--pairs 3] [--rounds 15] [-o F.json]
    python benchmarks/regret.py --list --network inception_v3       # blocks and their stages; measures nothing

A pair is a search with the effort of `optimize` and one with much more effort, each with a database of its own and so
with independent noise. The second search measures every stage if there are at most `--most`; otherwise it multiplies
bounds by 0.8 and has no tolerance and a limit on measurements. Then all schedules found run as whole models,
interleaved, A B C A B C, with a cache flush between runs. The regret of a pair is the median over the rounds of
(default / more effort) - 1. Its mean over pairs has a 95 % bootstrap interval over pairs, and over the rounds of each
pair. Equal schedules have no regret.

Noise misleads the search with more effort too. So a second number compares each schedule of the default effort with the
best schedule of all searches: the odd rounds choose the best one and the even rounds measure it, and vice versa.

A run with interference (`profiler/measuring/disturbance.py`) is repeated, up to five times. Pairs are added to those in
the results file, so a machine that is quiet for some minutes at a time is sufficient.

Options:
    --network: a name from `iosched zoo list`, or a file
    --block: number of a block of the network; by default all of it
    --list: list the blocks, and measure nothing
    --pairs: searches of each kind in this call
    --rounds: samples of each schedule
    --most: number of stages of a block up to which all are measured
    --output: raw results as JSON; calls are added to those in it
"""

from __future__ import annotations

import os
import random
import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

from command_line import read_options
from result_tables import Table, print_table
from results_files import known_results, results, write_results
from testbed import zoo_model

from iosched import ComputationGraph, Effort, Model, Schedule, Stage, load_model, partition, search
from iosched.profiler.devices.cpu.cache_flush import flushed_nbytes_of
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import CPU_EFFORT
from iosched.profiler.measuring.disturbance import disturbances, read_load
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.scheduler.baselines import sequential
from iosched.scheduler.lattice import build, relation
from iosched.scheduler.pruning import DEFAULT_PRUNING

RUNS = 5  # of one turn; their median is the sample
TRIES, PAUSE_SECONDS = 5, 0.2  # of a turn with interference
DRAWS = 2000


Candidates = dict[tuple[object, ...], tuple[Stage, ...]]


@dataclass(frozen=True)
class Searched:
    """A search: its effort, and the candidate of the comparison that is its schedule.

    Attributes:
        anew: number of measurements repeated because of interference.
    """

    candidate: int
    measurements: int
    seconds: float
    predicted_us: float
    gap: float
    anew: int


@dataclass(frozen=True)
class Pair:
    """Both searches; `samples_us` are those of all candidates of the comparison, round by round."""

    default: Searched
    more: Searched


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, network="squeezenet", block=int, list=False, pairs=3, rounds=15, most=2000, output=Path
    )
    model = _model(options.network)
    with CpuBackend(model) as backend:
        blocks = [part.operators for part in partition(backend.graph)]
        if options.list:
            _list(backend.graph, blocks)
            return
        graph = backend.graph if options.block is None else part_of(backend.graph, blocks[options.block])
        calls = [*known_results(options.output).get("calls", []), observed(backend, graph, options)]
    content = {"network": options.network, "block": options.block, "rounds": options.rounds, "calls": calls}
    write_results(options, content, goes_on=True)


def _model(network: str) -> Model:
    return load_model(Path(network), batch_size=1) if network.endswith(".onnx") else zoo_model(network)


def _list(graph: ComputationGraph, blocks: Sequence[Sequence[str]]) -> None:
    rows = []
    for index, names in enumerate(blocks):
        stages = len(build(relation(graph, tuple(names)), DEFAULT_PRUNING).stages)
        rows.append([str(index), str(len(names)), str(stages), f"{names[0]} to {names[-1]}"])
    print_table(("block", "operators", "stages", "from and to"), rows)


def part_of(graph: ComputationGraph, names: Sequence[str]) -> ComputationGraph:
    """The graph of only these operators, with results of others as its inputs."""
    operators = [graph.by_name[name] for name in names]
    made = {tensor for operator in operators for tensor in operator.outputs}
    read = dict.fromkeys(name for operator in operators for name in operator.inputs if name not in made)
    elsewhere = {name for operator in graph.operators if operator.name not in names for name in operator.inputs}
    outputs = tuple(name for name in graph.tensor if name in made and (name in elsewhere or name in graph.outputs))
    inputs = tuple(graph.tensor[name] for name in read)
    tensors = tuple(graph.tensor[name] for name in graph.tensor if name in made)
    return ComputationGraph(graph.name, inputs, outputs, tuple(operators), tensors)


def observed(backend: CpuBackend, graph: ComputationGraph, options: Namespace) -> dict[str, Any]:
    """All pairs of one call, and interleaved latencies of all schedules."""
    candidates: Candidates = {}
    candidate_of(candidates, sequential(graph))
    pairs = []
    for number in range(options.pairs):
        efforts = {"default": CPU_EFFORT, "more": _more(graph, options.most)}
        found = {}
        for name in efforts if number % 2 == 0 else reversed(efforts):  # neither is always the first
            found[name] = _searched(backend, graph, efforts[name], candidates)
        pairs.append(Pair(found["default"], found["more"]))
        print(f"pair {number + 1}: {found}", file=sys.stderr, flush=True)
    compiled = [backend.compile_stages(stages) for stages in candidates.values()]
    return {
        "pairs": [asdict(pair) for pair in pairs],
        "schedules": [[[stage.strategy.value, stage.groups] for stage in stages] for stages in candidates.values()],
        "samples_us": in_turn([each for each in compiled if each is not None], options.rounds, _swept(backend, graph)),
    }


def _more(graph: ComputationGraph, most: int) -> Effort:
    largest = max(len(build(relation(graph, part.operators), DEFAULT_PRUNING).stages) for part in partition(graph))
    if largest <= most:
        return CPU_EFFORT.exhausted()
    return Effort(bound_slack=0.8, tolerance=0.0, max_measurements=most)


def _searched(backend: CpuBackend, graph: ComputationGraph, effort: Effort, candidates: Candidates) -> Searched:
    started = time.monotonic()
    with ProfileDatabase(None) as database:
        cost = CpuStageCost(backend, database)
        result = search(graph, cost, effort=effort)
        taken, anew = cost.measurements, cost.repeated
    predicted, seconds = result.schedule.predicted_us or 0.0, round(time.monotonic() - started, 1)
    number = candidate_of(candidates, result.schedule)
    return Searched(number, taken, seconds, round(predicted, 2), round(result.gap, 5), anew)


def candidate_of(candidates: Candidates, schedule: Schedule) -> int:
    """The number of a schedule among the candidates; equal ones share a number."""
    key = tuple((stage.strategy, stage.groups) for stage in schedule.stages)
    candidates.setdefault(key, tuple(schedule.stages))
    return list(candidates).index(key)


def _swept(backend: CpuBackend, graph: ComputationGraph) -> int:
    return 0 if graph is backend.graph else flushed_nbytes_of(backend)


def in_turn(compiled: Sequence[CompiledStage], rounds: int, flush_nbytes: int) -> list[list[float]]:
    samples: list[list[float]] = [[] for _ in compiled]
    for turn in range(rounds + 1):
        for number, each in enumerate(compiled):
            us = _undisturbed(each, flush_nbytes)
            if turn > 0:
                samples[number].append(round(us, 2))
    return samples


def _undisturbed(compiled: CompiledStage, flush_nbytes: int) -> float:
    """The median of runs without interference; the smallest of several medians if all have some."""
    cpus = os.sched_getaffinity(0)
    found = []
    for _ in range(TRIES):
        wait_until_idle()
        before = read_load(cpus)
        found.append(median(compiled.time(1 + RUNS, flush_nbytes=flush_nbytes)[1:]))
        if not disturbances(before, read_load(cpus), len(cpus)):
            return found[-1]
        time.sleep(PAUSE_SECONDS)
    return min(found)


def table(*names: str) -> Table:
    """A row of the report for each results file."""
    rows = []
    for name in names:
        calls = results(name)["calls"]
        pairs = [pair for call in calls for pair in call["pairs"]]
        measured = (f"{mean(pair[way]['measurements'] for pair in pairs):,.0f}" for way in ("default", "more"))
        both = (paired_ratios, ratios_to_best)
        regrets = (regret_text([each for call in calls for each in ratios_of(call)]) for ratios_of in both)
        rows.append([_OF[name], len(pairs), *measured, *regrets])
    headers = ["of", "pairs", "stages measured: default", "all", "default over all"]
    return [*headers, "default over the best schedule of any search"], rows


_OF = {
    "regret-squeezenet": "SqueezeNet", "regret-inception5": "Inception V3, block 5",
    "regret-nasnet10": "NASNet-Mobile (Keras), block 10", "regret-nasnet10-finer": "the same, searched to 1.5 %",
    "regret-nasnet11": "NASNet-Mobile (Keras), block 11",
}  # fmt: skip


def paired_ratios(call: Mapping[str, Any]) -> list[list[float]]:
    """By pair and round, the latency of the schedule of the default effort over that of more effort."""
    samples = call["samples_us"]
    chosen = [(pair["default"]["candidate"], pair["more"]["candidate"]) for pair in call["pairs"]]
    return [[a / b for a, b in zip(samples[one], samples[other], strict=True)] for one, other in chosen]


def ratios_to_best(call: Mapping[str, Any]) -> list[list[float]]:
    """By pair and round, the latency of the schedule of the default effort over the best of all schedules.

    The rounds of the other parity choose the best, so that the ratio does not share their noise.
    """
    samples = call["samples_us"]
    best = [min(range(len(samples)), key=lambda each: median(samples[each][1 - odd :: 2])) for odd in (0, 1)]
    found = []
    for pair in call["pairs"]:
        own = samples[pair["default"]["candidate"]]
        found.append([us / samples[best[index % 2]][index] for index, us in enumerate(own)])
    return found


def regret_text(ratios: Sequence[Sequence[float]]) -> str:
    """The mean over pairs of the median over rounds, less one, with its interval."""
    low, high = bootstrap(ratios)
    return f"{mean(map(median, ratios)) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"


def bootstrap(ratios: Sequence[Sequence[float]], draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of that mean: pairs are drawn with replacement, and rounds in each pair drawn."""
    draw = random.Random(seed)
    found = []
    for _ in range(draws):
        pairs = draw.choices(ratios, k=len(ratios))
        found.append(mean(median(draw.choices(rounds, k=len(rounds))) for rounds in pairs))
    found.sort()
    return found[int(0.025 * draws)], found[int(0.975 * draws) - 1]


if __name__ == "__main__":
    main()
