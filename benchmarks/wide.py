"""Graphs that are too wide to search whole: 200 convolutions, twenty concurrent, under the analytic model of a V100.

    python benchmarks/wide.py [--graphs 4] [-o F.json]

Twenty threads of ten convolutions; every fifth also reads another thread. Nothing is measured.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from command_line import read_options
from result_tables import print_table
from results_files import write_results
from testbed import gpu_spec

from iosched import ComputationGraph, Operator, TensorSpec, search
from iosched.profiler.devices.analytic.analytic_cost import AnalyticCost
from iosched.profiler.devices.analytic.constants import STREAM_LAUNCHES
from iosched.scheduler.baselines import greedy

THREADS, STEPS = 20, 10
CHANNELS, SIZE = 64, 14


def main() -> None:
    options = read_options(__file__, graphs=4, device="v100", output=Path)
    found = [scheduled(seed, options.device) for seed in range(options.graphs)]
    rows = [
        (str(each["seed"]), f"{each['seconds']:.1f}", f"{each['found_us']:,.0f}", f"{each['greedy_us']:,.0f}",
         f"{each['greedy_us'] / each['found_us'] - 1:.0%}", str(each["stages_asked"]))
        for each in found
    ]  # fmt: skip
    print_table(("graph", "seconds", "found us", "greedy us", "greedy is slower by", "stages asked for"), rows)
    write_results(options, {"graphs": found}, seeds={"first graph": 0})


def scheduled(seed: int, device: str) -> dict[str, float]:
    """One graph, its schedule, and the greedy one."""
    graph = threads(seed)
    cost = AnalyticCost(graph, gpu_spec(device), launches=STREAM_LAUNCHES)
    started = time.monotonic()
    result = search(graph, cost)
    return {
        "seed": seed,
        "seconds": round(time.monotonic() - started, 2),
        "found_us": round(cost.schedule_latency_us(result.schedule), 1),
        "greedy_us": round(cost.schedule_latency_us(greedy(graph)), 1),
        "stages_asked": result.measured,
    }


def threads(seed: int) -> ComputationGraph:
    draw = random.Random(seed)
    shape = (1, CHANNELS, SIZE, SIZE)
    last = ["x"] * THREADS
    operators, tensors = [], []
    for number in range(THREADS * STEPS):
        own = draw.randrange(THREADS) if number >= THREADS else number
        reads = [last[own], *([draw.choice(last)] if draw.random() < 0.2 else [])]
        size = draw.choice((1, 3, 5))
        operators.append(_convolution(f"c{number}", tuple(dict.fromkeys(reads)), size))
        tensors.append(TensorSpec(f"c{number}", "float32", shape))
        last[own] = f"c{number}"
    inputs = (TensorSpec("x", "float32", shape),)
    return ComputationGraph("wide", inputs, tuple(dict.fromkeys(last)), tuple(operators), tuple(tensors))


def _convolution(name: str, reads: tuple[str, ...], size: int) -> Operator:
    weight = TensorSpec(f"{name}/w", "float32", (CHANNELS, CHANNELS, size, size))
    attributes = {
        "activation": "Relu", "dilations": (1, 1), "group": 1, "in_channels": CHANNELS, "kernel_shape": (size, size),
        "out_channels": CHANNELS, "pads": (size // 2,) * 4, "strides": (1, 1),
    }  # fmt: skip
    if len(reads) > 1:
        attributes["residual"] = 1
    pixels = SIZE * SIZE
    return Operator(
        name, "Conv", (name,), reads, (name,), tuple(sorted(attributes.items())), (weight,),
        flops=2 * pixels * CHANNELS * CHANNELS * size * size,
        nbytes=(len(reads) + 1) * 4 * CHANNELS * pixels + weight.nbytes,
    )  # fmt: skip


if __name__ == "__main__":
    main()
