"""Compares whole schedules with the sums of their stages, as Ding's thesis and DOS assume (DOS, figure 7, tests it).

    python benchmarks/ablation_additive.py [--networks squeezenet,inception_v3] [--schedules 30] [--rounds 15]
                                           [-o F.json] [--plot F.svg]

Random legal schedules of a network, from nearly sequential to nearly greedy, run interleaved (A B C A B C). The order
accuracy is the share of pairs that the sums order as the whole schedules were measured. It runs on the CPU or on an
attached GPU (`--device cuda`), where the analytic model predicts the same stages and schedules. On the CPU it also
measures stages with warm caches and whole schedules after idle, the wrong conditions for this comparison.

Options:
    --schedules: random schedules of each network
    --rounds: samples of each schedule
    --precision: of a GPU
"""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import inf
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from command_line import OUTPUTS, read_options
from kernels import spearman
from result_tables import NAMES, Table, chart, print_table
from results_files import SEEDS, write_results
from testbed import Bed, open_bed

from iosched import Block, ComputationGraph, Schedule, Stage, Strategy, partition
from iosched.jobs.matrix_cells import schedule_latency_us, stage_latency_us
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.device import OpenOnSimulatedGpu, SimulatedGpu
from iosched.profiler.devices.gpus import spec_of
from iosched.profiler.measuring.statistics import Measurement
from iosched.scheduler.precision import DEFAULT_PRECISION, PRECISIONS
from iosched.scheduler.strategies import can_merge

HEADERS = (
    "network", "schedules", "stages", "wholes", "order accuracy", "Spearman", "measured / predicted",
    "at the profile's speed", "latencies ms",
)  # fmt: skip
ANALYTIC_HEADERS = ("network", "order accuracy", "Spearman", "mean error of a stage", "measured / analytic")
R, S = 3, 8


@dataclass(frozen=True)
class Pair:
    """One schedule: the sum of its stages' latencies, its own, and that of the analytic model if it is used.

    On a CPU, `warm_us` is the sum of stages with warm caches, `rested_us` the latency of the
    whole after idle.
    """

    stages: int
    predicted_us: float
    measured_us: float
    samples_us: tuple[float, ...]
    analytic_us: float | None = None
    warm_us: float | None = None
    rested_us: float | None = None


def main(words: Sequence[str] | None = None) -> None:
    precision = {"choices": PRECISIONS, "default": DEFAULT_PRECISION}
    options = read_options(
        __file__, words, networks=("squeezenet", "inception_v3"), schedules=30, rounds=15, precision=precision, seed=0,
        device="cpu", **OUTPUTS,
    )  # fmt: skip
    found = {network: measured_pairs(network, options) for network in options.networks}
    print_table(HEADERS, [cells for network, one in found.items() for cells in _rows(network, one)])
    analytic = {network: _analytic(one) for network, one in found.items() if one.stage_us}
    if analytic:
        print()
        print_table(ANALYTIC_HEADERS, [[name, *(f"{x:.3f}" for x in one.values())] for name, one in analytic.items()])
    content = {
        name: {
            **_summary(one.pairs, one.slowness),
            "slowness": round(one.slowness, 4),
            "fastest_over_predicted": round(fastest_over_predicted(one.pairs), 4),
            "warm_and_rested": {way: _summary(pairs, one.slowness) for way, pairs in other_ways(one.pairs).items()},
            "schedules": list(map(asdict, one.pairs)),
            "stage_us": one.stage_us,
            "analytic": analytic.get(name),
        }
        for name, one in found.items()
    }
    device = next(iter(found.values())).device
    write_results(
        options,
        {"device": device, "networks": content},
        seeds=SEEDS | {"schedules": options.seed},
    )
    if options.plot is not None:
        _plot(options.plot, {name: one.pairs for name, one in found.items()})


def random_schedule(graph: ComputationGraph, eagerness: float, rng: random.Random) -> Schedule:
    """A legal schedule under r = 3 and s = 8; a stage keeps growing with probability `eagerness`."""
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
    """Operators of `left`, in topological order, that depend on nothing else in it."""
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


@dataclass(frozen=True)
class Found:
    """Measurements of one network.

    Attributes:
        device: the name that it reports.
        stage_us: measured and analytic latency of each distinct stage, if the analytic model is used.
        slowness: slowdown of the device during the whole runs, relative to the start of its profile.
    """

    device: str
    pairs: list[Pair]
    stage_us: list[tuple[float, float]]
    slowness: float


def measured_pairs(network: str, options: Namespace) -> Found:
    """Random schedules of `network`, the sums of their stages, and their latencies."""
    rng = random.Random(options.seed)
    with open_bed(network, options.device, 1, options.profile_db, options.precision) as bed:
        if bed.in_turn is None:
            raise SystemExit("whole schedules can be measured on the CPU or an attached GPU only")
        schedules = [random_schedule(bed.graph, rng.random(), rng) for _ in range(options.schedules)]
        predicted: list[tuple[float, float | None]] = []
        for schedule in schedules:
            predicted.append(_sums(bed, schedule))
            print(f"\r{network}: stages of {len(predicted)} of {len(schedules)}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        spec = spec_of(bed.device)
        model = (
            None
            if spec is None
            else OpenOnSimulatedGpu(SimulatedGpu(spec), AnalyticCost(bed.graph, spec, options.precision))
        )
        distinct = {stage: bed.stage_us(stage) for schedule in schedules for stage in schedule.stages}
        turns = bed.in_turn(schedules, options.rounds)
        pairs = [_pair(*each, model) for each in zip(schedules, predicted, turns.measured, strict=True)]
        stages = [] if model is None else [(us, stage_latency_us(model, stage)) for stage, us in distinct.items()]
        rounded = [(round(ours, 3), round(theirs, 3)) for ours, theirs in stages]
        return Found(bed.device, pairs, rounded, turns.slowness)


def _sums(bed: Bed, schedule: Schedule) -> tuple[float, float | None]:
    """Sums of the stages with cold and with warm caches, interleaved by stage."""
    sum_us = warm_us = 0.0
    for stage in schedule.stages:
        sum_us += bed.stage_us(stage)
        warm_us += bed.warm_stage_us(stage) if bed.warm_stage_us else 0.0
    return sum_us, warm_us if bed.warm_stage_us else None


def _pair(
    schedule: Schedule, sums_us: tuple[float, float | None], measured: Measurement, model: OpenOnSimulatedGpu | None
) -> Pair:
    predicted_us, warm_us = (None if us is None else round(us, 1) for us in sums_us)
    rested_us = None if measured.rested is None else round(measured.rested.median_us, 1)
    samples = tuple(round(sample, 1) for sample in measured.samples_us)
    analytic_us = None if model is None else round(schedule_latency_us(model, schedule), 1)
    n_stages = len(tuple(schedule.stages))
    return Pair(n_stages, predicted_us or 0.0, round(measured.median_us, 1), samples, analytic_us, warm_us, rested_us)


def other_ways(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    """The same schedules by the other sum and the other latency, if these were measured."""
    if any(pair.warm_us is None or pair.rested_us is None for pair in pairs):
        return {}
    warm = [replace(pair, predicted_us=pair.warm_us or 0.0) for pair in pairs]
    return {
        "in the caches, in a row": warm,
        "in the caches, after a rest": [replace(pair, measured_us=pair.rested_us or 0.0) for pair in warm],
        "amid the model, after a rest": [replace(pair, measured_us=pair.rested_us or 0.0) for pair in pairs],
    }


def order_accuracy(pairs: Sequence[Pair]) -> float:
    """Share of the pairs of schedules in the same order by prediction and measurement."""
    same = [
        (a.predicted_us < b.predicted_us) == (a.measured_us < b.measured_us)
        for a, b in combinations(pairs, 2)
        if a.measured_us != b.measured_us
    ]
    return sum(same) / len(same) if same else 1.0


def fastest_over_predicted(pairs: Sequence[Pair]) -> float:
    """The ratio for the fastest run of each schedule, which has no interference."""
    return median(min(pair.samples_us) / pair.predicted_us for pair in pairs)


def _summary(pairs: Sequence[Pair], slowness: float) -> dict[str, float]:
    ratio = median(pair.measured_us / pair.predicted_us for pair in pairs)
    return {
        "order_accuracy": round(order_accuracy(pairs), 4),
        "spearman": round(spearman(*map(np.array, _columns(pairs))), 4),
        "measured_over_predicted": round(ratio, 4),
        "at_the_profiles_speed": round(ratio / slowness, 4),
    }


def _analytic(found: Found) -> dict[str, float]:
    """Accuracy of the analytic model: the order of schedules, stages, and whole latencies."""
    pairs = [replace(pair, predicted_us=pair.analytic_us or 0.0) for pair in found.pairs]
    errors = [abs(theirs - ours) / ours for ours, theirs in found.stage_us if 0 < ours < inf and theirs < inf]
    return {
        "order_accuracy": round(order_accuracy(pairs), 4),
        "spearman": round(spearman(*map(np.array, _columns(pairs))), 4),
        "stage_error": round(mean(errors), 4) if errors else 0.0,
        "measured_over_analytic": round(median(pair.measured_us / pair.predicted_us for pair in pairs), 4),
    }


def _rows(network: str, found: Found) -> list[list[str]]:
    ways = {"amid the model, in a row": found.pairs, **other_ways(found.pairs)}
    return [_cells(network, way, pairs, found.slowness) for way, pairs in ways.items()]


def _cells(network: str, way: str, pairs: Sequence[Pair], slowness: float) -> list[str]:
    measured = [pair.measured_us / 1e3 for pair in pairs]
    numbers = [f"{value:.3f}" for value in _summary(pairs, slowness).values()]
    return [network, str(len(pairs)), *way.split(", "), *numbers, f"{min(measured):.1f} to {max(measured):.1f}"]


def ways_table(networks: Mapping[str, Any]) -> Table:
    """Three of the four ways to measure stages and wholes."""
    rows = []
    for name, found in networks.items():
        for way in ("in the caches, after a rest", "in the caches, in a row", "amid the model, in a row"):
            summary = found["warm_and_rested"].get(way, found)
            base = "warm_us" if way.startswith("in the caches") else "predicted_us"
            fastest = median(min(one["samples_us"]) / one[base] for one in found["schedules"])
            last = "" if way.endswith("rest") else f"{fastest:.2f}"
            rows.append([NAMES[name], *way.split(", "), *(f"{summary[key]:.2f}" for key in _SUMMARY), last])
    headers = ["network", "stages", "wholes", "order accuracy", "Spearman", "measured / predicted"]
    return [*headers, "at the profile's speed", "fastest run / predicted"], rows


_SUMMARY = ("order_accuracy", "spearman", "measured_over_predicted", "at_the_profiles_speed")


def _plot(path: Path, found: dict[str, list[Pair]]) -> None:
    with chart(path, 1, len(found), figsize=(4.4 * len(found), 4), squeeze=False) as (_, axes):
        for axis, (network, pairs) in zip(axes[0], found.items(), strict=True):
            predicted, measured = ([value / 1e3 for value in values] for values in _columns(pairs))
            ends = [min(*predicted, *measured), max(*predicted, *measured)]
            axis.plot(ends, ends, c="#8a8f98", lw=0.8)
            axis.plot(predicted, measured, "o", c="#4c78a8", ms=4)
            accuracy = f"{order_accuracy(pairs):.3f} of pairs in order"
            axis.set(xlabel="sum of stages, ms", ylabel="measured, ms", title=f"{network}: {accuracy}")
            axis.title.set_fontsize(10)


def _columns(pairs: Sequence[Pair]) -> tuple[list[float], list[float]]:
    return [pair.predicted_us for pair in pairs], [pair.measured_us for pair in pairs]


if __name__ == "__main__":
    main()
