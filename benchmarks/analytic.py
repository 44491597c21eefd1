"""Fits the analytic model of GPUs to published latencies, and reports its error on latencies outside the fit.

Run as `python benchmarks/analytic.py [-o FILE.json] [--plot FILE.svg]`; it takes some minutes and measures nothing.
`published.py` has the published numbers and their sources.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from command_line import read_options
from kernels import spearman
from numpy.typing import NDArray
from published import BATCH_CROSS_MS, BATCH_MS, DEVICE_CROSS_MS, STRATEGIES, V100_MS
from result_tables import chart
from results_files import write_results
from testbed import gpu_spec, zoo_model

from iosched import ComputationGraph, Schedule, search
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import STREAM_LAUNCHES, LaunchConstants
from iosched.scheduler.baselines import greedy, sequential
from iosched.scheduler.strategies import merge_classes

FITTED = ("kernel_us", "issue_us", "fork_us", "window", "interference")
PARTS = frozenset({"interference"})
# Initial values of every fit: rough guesses, made without the networks.
START = replace(STREAM_LAUNCHES, kernel_us=5.0, issue_us=5.0, fork_us=5.0, window=0.05, interference=0.5)
STEPS = 30
TRIES = 6  # of a step, each shorter
WIDTH = 0.02  # of differences
ROUNDS = 2  # of searching schedules under the constants and fitting the constants to them

Cells = dict[str, float]
Floats = NDArray[np.float64]
Schedules = Mapping[str, Schedule]


@cache
def graph_of(network: str, batch: int = 1) -> ComputationGraph:
    return zoo_model(network, batch).graph


def cost_of(network: str, launches: LaunchConstants, device: str = "v100", batch: int = 1) -> AnalyticCost:
    return AnalyticCost(graph_of(network, batch), gpu_spec(device), launches=launches)


@cache
def schedules(network: str, launches: LaunchConstants, device: str = "v100") -> Schedules:
    """The baselines, and the schedules found under these constants."""
    graph, cost = graph_of(network), cost_of(network, launches, device)
    found = {"sequential": sequential(graph), "greedy": greedy(graph)}
    found["concurrent"] = search(graph, cost, strategy="concurrent").schedule
    merges = bool(merge_classes(graph, [operator.name for operator in graph.operators]))
    found["merge"] = search(graph, cost, strategy="merge").schedule if merges else found["sequential"]
    found["both"] = search(graph, cost, strategy="both").schedule if merges else found["concurrent"]
    return found


def predicted_ms(network: str, launches: LaunchConstants, found: Schedules, device: str = "v100") -> Cells:
    cost = cost_of(network, launches, device)
    return {name: cost.schedule_latency_us(found[name]) / 1000 for name in STRATEGIES}


def published_ms(network: str) -> Cells:
    return dict(zip(STRATEGIES, V100_MS[network], strict=True))


def errors(networks: Sequence[str], launches: LaunchConstants, found: Mapping[str, Schedules]) -> Floats:
    """Logarithms of predicted / published, of latencies and of speed-ups over sequential alike."""
    logarithms: list[float] = []
    for network in networks:
        predicted, published = predicted_ms(network, launches, found[network]), published_ms(network)
        off = [math.log(predicted[name] / published[name]) for name in STRATEGIES]
        logarithms += [*off, *(error - off[0] for error in off[1:])]
    return np.array(logarithms)


def fit(networks: Sequence[str]) -> LaunchConstants:
    """Constants for `networks` alone: schedules are searched under the constants, constants fitted to the schedules."""
    launches = START
    for _ in range(ROUNDS):
        found = {network: schedules(network, launches) for network in networks}
        launches = descend(launches, lambda trial, found=found: errors(networks, trial, found))
    return launches


def descend(start: LaunchConstants, off_at: Callable[[LaunchConstants], Floats]) -> LaunchConstants:
    """Damped Gauss-Newton steps on the logarithms of the constants, until the sum of squares stops decreasing."""
    best, off, damping = start, off_at(start), 0.01
    for _ in range(STEPS):
        slopes = np.stack([(off_at(scaled(best, {name: WIDTH})) - off) / WIDTH for name in FITTED], axis=1)
        curvature, gradient = slopes.T @ slopes, slopes.T @ off
        for _ in range(TRIES):
            # The minimum damping keeps a constant without effect at its value.
            damped = curvature + np.diag(damping * np.diag(curvature) + 1e-6)
            move = -np.linalg.solve(damped, gradient).clip(-0.7, 0.7)
            trial = scaled(best, dict(zip(FITTED, move, strict=True)))
            found = off_at(trial)
            if found @ found < off @ off:
                break
            damping *= 4
        else:
            break
        settled = off @ off - found @ found < 1e-5
        best, off, damping = trial, found, damping / 4
        if settled:
            break
    return best


def scaled(launches: LaunchConstants, logarithms: Mapping[str, float]) -> LaunchConstants:
    """With constants multiplied by the exponentials of these; fractions stay below 1."""
    values = {name: getattr(launches, name) * math.exp(value) for name, value in logarithms.items()}
    for name in PARTS & values.keys():
        values[name] = min(values[name], 1.0)
    return replace(launches, **values)


def kendall(one: Sequence[float], two: Sequence[float]) -> float:
    """Kendall's tau-b, which allows for ties."""
    a, b = (np.sign(np.subtract.outer(values, values)) for values in (np.array(one), np.array(two)))
    return float((a * b).sum() / math.sqrt(np.abs(a).sum() * np.abs(b).sum()))


def agreement(predicted: Iterable[float], published: Iterable[float]) -> dict[str, float]:
    """Rank correlations and errors; latencies are compared at the published resolution of 10 us."""
    one, two = [round(value, 2) for value in predicted], list(published)
    off = [abs(a / b - 1) for a, b in zip(one, two, strict=True)]
    return {
        "spearman": round(spearman(np.array(one), np.array(two)), 3),
        "kendall": round(kendall(one, two), 3),
        "mean_error": round(fmean(off), 3),
        "worst_error": round(max(off), 3),
    }


def table(launches_of: Mapping[str, LaunchConstants]) -> dict[str, object]:
    """Every network under the constants given for it, against the published V100 table."""
    cells = {
        network: predicted_ms(network, launches_of[network], schedules(network, launches_of[network]))
        for network in V100_MS
    }
    flat = [cells[network][name] for network in V100_MS for name in STRATEGIES]
    overall = agreement(flat, [value for row in V100_MS.values() for value in row])
    speedups = [cells[network]["sequential"] / cells[network][name] for network in V100_MS for name in STRATEGIES[1:]]
    published = [row[0] / value for row in V100_MS.values() for value in row[1:]]
    return {
        "ms": {network: {name: round(value, 3) for name, value in row.items()} for network, row in cells.items()},
        "all_cells": overall,
        "speedups": agreement(speedups, published),
        "within_network": {network: agreement(cells[network].values(), V100_MS[network]) for network in V100_MS},
    }


def batch_sizes() -> dict[str, object]:
    """Inception V3 at several batch sizes, and each schedule at the others' sizes; nothing refitted."""
    found: dict[int, Schedule] = {}
    rows: dict[int, tuple[float, float]] = {}
    for batch in BATCH_MS:
        cost = cost_of("inception_v3", STREAM_LAUNCHES, batch=batch)
        found[batch] = search(cost.graph, cost).schedule
        plain = cost.schedule_latency_us(sequential(cost.graph))
        rows[batch] = plain / 1000, cost.schedule_latency_us(found[batch]) / 1000
    cross = {
        (run, made): cost_of("inception_v3", STREAM_LAUNCHES, batch=run).schedule_latency_us(found[made]) / 1000
        for run, made in BATCH_CROSS_MS
    }
    return {
        "sequential_and_both_ms": {str(batch): [round(value, 2) for value in row] for batch, row in rows.items()},
        "published_ms": {str(batch): row for batch, row in BATCH_MS.items()},
        "agreement": agreement(
            [x for row in rows.values() for x in row], [x for row in BATCH_MS.values() for x in row]
        ),
        "cross_ms": {f"run at {run}, made for {made}": round(value, 2) for (run, made), value in cross.items()},
        "cross_agreement": agreement(cross.values(), BATCH_CROSS_MS.values()),
        "cross_won_by_own": sum(cross[run, run] <= value for (run, made), value in cross.items() if made != run),
    }


def devices() -> dict[str, object]:
    """Inception V3 on a K80 and a V100 with either's schedule; nothing refitted."""
    graph = graph_of("inception_v3")
    costs = {name: cost_of("inception_v3", STREAM_LAUNCHES, device=name) for name in ("k80", "v100")}
    found = {name: search(graph, cost).schedule for name, cost in costs.items()}
    cross = {key: costs[key[0]].schedule_latency_us(found[key[1]]) / 1000 for key in DEVICE_CROSS_MS}
    return {
        "ms": {f"run on {run}, made for {made}": round(value, 3) for (run, made), value in cross.items()},
        "published_ms": {f"run on {run}, made for {made}": value for (run, made), value in DEVICE_CROSS_MS.items()},
        "agreement": agreement(cross.values(), DEVICE_CROSS_MS.values()),
    }


def searches() -> dict[str, object]:
    """Questions of the exact search, and its seconds."""
    rows = {}
    for network in V100_MS:
        graph = graph_of(network)
        started = time.perf_counter()
        found = search(graph, cost_of(network, STREAM_LAUNCHES))
        rows[network] = {
            "stages": found.stages,
            "evaluations": found.measured,
            "seconds": round(time.perf_counter() - started, 2),
            "predicted_ms": round((found.schedule.predicted_us or 0.0) / 1000, 3),
            "optimal": found.proven == "whole",
        }
    return rows


def evaluations_per_second() -> int:
    cost, stages = cost_of("nasnet_a", STREAM_LAUNCHES), list(schedules("nasnet_a", STREAM_LAUNCHES)["both"].stages)
    started = time.perf_counter()
    for _ in range(100):
        for stage in stages:
            cost.stage_latency_us(stage)
    return round(100 * len(stages) / (time.perf_counter() - started))


def plot(record: Mapping[str, Any], destination: Path) -> None:
    """Predicted against published latencies of the V100 table; each network predicted from the other three."""
    with chart(destination, figsize=(6, 5.2), layout="constrained") as (_, axes):
        _draw(record, axes)


def _draw(record: Mapping[str, Any], axes: Any) -> None:
    colours = dict(zip(V100_MS, ("#1f77b4", "#d62728", "#2ca02c", "#9467bd"), strict=True))
    markers = dict(zip(STRATEGIES, "so^Dv", strict=True))
    held_out = record["leave_one_out"]["ms"]
    for network, colour in colours.items():
        for name, value in published_ms(network).items():
            axes.scatter(value, held_out[network][name], s=42, c=colour, marker=markers[name], alpha=0.75, linewidths=0)
    for network, colour in colours.items():
        axes.scatter([], [], c=colour, marker="o", label=network)
    for name, marker in markers.items():
        axes.scatter([], [], c="#777777", marker=marker, label=name)
    ends = [0.55, 32]
    axes.plot(ends, ends, color="#444444", linewidth=1)
    axes.fill_between(ends, [0.9 * x for x in ends], [1.1 * x for x in ends], color="#444444", alpha=0.12, linewidth=0)
    ticks = [0.6, 1, 2, 4, 8, 16, 32]
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.set(xlabel="published latency, ms", ylabel="predicted latency, ms (network left out of the fit)")
    axes.set_title("V100, fp32, batch 1; band: ±10 %", fontsize=10)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.legend(fontsize=8, ncols=2, loc="upper left")


def rounded(launches: LaunchConstants) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in asdict(launches).items()}


def main() -> None:
    """Writes all results for benchmarks/reports/analytic-evidence.md."""
    arguments = read_options(__file__, output=Path, plot=Path)
    networks = tuple(V100_MS)
    held_out = {network: fit([other for other in networks if other != network]) for network in networks}
    record: dict[str, object] = {
        "constants": rounded(STREAM_LAUNCHES),
        "refitted": rounded(fit(networks)),
        "published_ms": {network: published_ms(network) for network in networks},
        "packaged": table(dict.fromkeys(networks, STREAM_LAUNCHES)),
        "leave_one_out": {
            **table(held_out), "constants": {network: rounded(found) for network, found in held_out.items()}
        },
        "batch_sizes": batch_sizes(),
        "devices": devices(),
        "searches": searches(),
        "evaluations_per_second": evaluations_per_second(),
    }  # fmt: skip
    print(json.dumps(record, indent=1))
    write_results(arguments, record, seeds={})
    if arguments.plot:
        plot(record, arguments.plot)


if __name__ == "__main__":
    main()
