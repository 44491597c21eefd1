"""Whether a schedule takes what its stages take (Ding's thesis and DOS assume it; DOS, figure 7, tests it).

    python benchmarks/ablation_additive.py [--networks squeezenet,inception_v3] [--schedules 30] [--rounds 15]
                                           [-o F.json] [--plot F.svg]

Random legal schedules of a network, from nearly sequential ones to nearly greedy ones: the sum of their stages'
latencies, each measured alone, beside the latency of the whole, all schedules in turn (A B C A B C). The order accuracy
is the part of the pairs of schedules that the sum puts in the order in which they were measured. On the CPU only.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

import numpy as np
from testbed import option_parser, print_table, write_results, zoo_model

from iosched.models.graph import ComputationGraph
from iosched.profiler.candidates import Budget, Runnable, close_all, measure_in_turn
from iosched.profiler.costing import measured_latency_us
from iosched.profiler.cpu_cost import StageCost, cpu_name
from iosched.profiler.database import ProfileDatabase, default_path
from iosched.profiler.statistics import Measurement
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.blocks import partition
from iosched.scheduler.merge import can_merge
from iosched.scheduler.schedule import Block, Schedule, Stage, Strategy

HEADERS = ("network", "schedules", "order accuracy", "Spearman", "measured / predicted", "latencies ms")
MAX_SECONDS = 300.0
R, S = 3, 8


@dataclass(frozen=True)
class Pair:
    """One schedule: the sum of its stages' latencies, and its own."""

    stages: int
    predicted_us: float
    measured_us: float
    samples_us: tuple[float, ...]


def main(words: Sequence[str]) -> None:
    parser = option_parser(__doc__, networks="squeezenet,inception_v3", device="cpu")
    parser.add_argument("--schedules", type=int, default=30, help="random schedules of each network")
    parser.add_argument("--rounds", type=int, default=15, help="samples of each schedule")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if options.device != "cpu":
        parser.error("whole schedules can be measured on the CPU only: leave --device out")
    found: dict[str, list[Pair]] = {}
    for network in options.networks.split(","):
        found[network] = measured_pairs(network, options.schedules, options.rounds, options.seed, options.profile_db)
    print_table(HEADERS, [_cells(network, pairs) for network, pairs in found.items()])
    content = {name: {**_summary(pairs), "schedules": list(map(asdict, pairs))} for name, pairs in found.items()}
    write_results(options, "ablation_additive", words, {"device": cpu_name(), "networks": content})
    if options.plot is not None:
        _plot(options.plot, found)


def random_schedule(graph: ComputationGraph, eagerness: float, rng: random.Random) -> Schedule:
    """A legal schedule under r = 3 and s = 8; a stage goes on growing with probability `eagerness`."""
    blocks = []
    for index, part in enumerate(partition(graph)):
        left = list(part.operators)
        stages = []
        while left:
            stages.append(_random_stage(graph, left, eagerness, rng))
            left = [name for name in left if name not in stages[-1].operators]
        blocks.append(Block(index, tuple(stages)))
    return Schedule(tuple(blocks))


def _random_stage(graph: ComputationGraph, left: Sequence[str], eagerness: float, rng: random.Random) -> Stage:
    """Operators of `left`, which stand in topological order, that need nothing else of it."""
    chosen: list[str] = []
    groups: tuple[tuple[str, ...], ...] = ()
    while not chosen or rng.random() < eagerness:
        blocked = set(left) - set(chosen)
        ready = [name for name in left if name in blocked and not blocked.intersection(graph.predecessors[name])]
        options = [name for name in ready if _fits(_components(graph, left, [*chosen, name]))]
        if not options:
            break
        chosen.append(rng.choice(options))
        groups = _components(graph, left, chosen)
    if can_merge(graph, chosen) and rng.random() < 0.5:
        return Stage(Strategy.MERGE, groups)
    return Stage(Strategy.CONCURRENT, groups)


def _fits(groups: Sequence[Sequence[str]]) -> bool:
    return len(groups) <= S and all(len(group) <= R for group in groups)


def _components(graph: ComputationGraph, order: Sequence[str], chosen: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Weakly connected components of `chosen`, each in the order of `order`, by first operator."""
    groups: list[list[str]] = []
    for name in (name for name in order if name in chosen):
        touched = [group for group in groups if not set(group).isdisjoint(graph.predecessors[name])]
        joined = [other for group in touched for other in group]
        groups = [group for group in groups if group not in touched]
        groups.append([other for other in order if other in joined] + [name])
    return tuple(sorted((tuple(group) for group in groups), key=lambda group: order.index(group[0])))


def measured_pairs(network: str, count: int, rounds: int, seed: int, profile_db: Path | None) -> list[Pair]:
    """Random schedules of `network`, what their stages add up to, and what they take."""
    model = zoo_model(network)
    rng = random.Random(seed)
    with ProfileDatabase(profile_db or default_path()) as database, CpuBackend(model) as backend:
        cost = StageCost(backend, database)
        schedules = [random_schedule(backend.graph, rng.random(), rng) for _ in range(count)]
        predicted = []
        for schedule in schedules:
            predicted.append(measured_latency_us(cost, schedule))
            print(f"\r{network}: stages of {len(predicted)} of {count}", end="", file=sys.stderr, flush=True)
        print(f"\r{network}: {cost.measurements} stages measured", file=sys.stderr)
        runnables: dict[str, Runnable] = {}
        try:
            for index, schedule in enumerate(schedules):
                runnables[str(index)] = backend.compile(schedule)
            found = measure_in_turn(runnables, random_inputs(model.graph.inputs), Budget(rounds, MAX_SECONDS))
        finally:
            close_all(list(runnables.values()))
    return list(_pairs(schedules, predicted, [found[str(index)] for index in range(count)]))


def _pairs(schedules: Sequence[Schedule], predicted: Sequence[float], found: Sequence[Measurement]) -> Iterator[Pair]:
    for schedule, predicted_us, measured in zip(schedules, predicted, found, strict=True):
        samples = tuple(round(sample, 1) for sample in measured.samples_us)
        yield Pair(len(tuple(schedule.stages)), round(predicted_us, 1), round(measured.median_us, 1), samples)


def order_accuracy(pairs: Sequence[Pair]) -> float:
    """Part of the pairs of schedules that prediction and measurement put in the same order."""
    same = [
        (a.predicted_us < b.predicted_us) == (a.measured_us < b.measured_us)
        for a, b in combinations(pairs, 2)
        if a.measured_us != b.measured_us
    ]
    return sum(same) / len(same) if same else 1.0


def spearman(pairs: Sequence[Pair]) -> float:
    """Correlation of the ranks; no two latencies are taken to be equal."""
    predicted, measured = (np.argsort(np.argsort(values)) for values in _columns(pairs))
    return float(np.corrcoef(predicted, measured).item(1)) if len(pairs) > 1 else 1.0


def _summary(pairs: Sequence[Pair]) -> dict[str, float]:
    return {
        "order_accuracy": round(order_accuracy(pairs), 4),
        "spearman": round(spearman(pairs), 4),
        "measured_over_predicted": round(median(pair.measured_us / pair.predicted_us for pair in pairs), 4),
    }


def _cells(network: str, pairs: Sequence[Pair]) -> list[str]:
    measured = [pair.measured_us / 1e3 for pair in pairs]
    numbers = [f"{value:.3f}" for value in _summary(pairs).values()]
    return [network, str(len(pairs)), *numbers, f"{min(measured):.1f} to {max(measured):.1f}"]


def _plot(path: Path, found: dict[str, list[Pair]]) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(found), figsize=(4.4 * len(found), 4), squeeze=False)
    for axis, (network, pairs) in zip(axes[0], found.items(), strict=True):
        predicted, measured = ([value / 1e3 for value in values] for values in _columns(pairs))
        ends = [min(*predicted, *measured), max(*predicted, *measured)]
        axis.plot(ends, ends, c="#8a8f98", lw=0.8)
        axis.plot(predicted, measured, "o", c="#4c78a8", ms=4)
        accuracy = f"{order_accuracy(pairs):.3f} of pairs in order"
        axis.set(xlabel="sum of stages, ms", ylabel="measured, ms", title=f"{network}: {accuracy}")
        axis.title.set_fontsize(10)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _columns(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    return [pair.predicted_us for pair in pairs], [pair.measured_us for pair in pairs]


if __name__ == "__main__":
    main(sys.argv[1:])
