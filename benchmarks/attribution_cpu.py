"""Finds why a schedule takes longer on a CPU than the sum of its stages, with one experiment per cause.

    python benchmarks/attribution_cpu.py [--networks small,squeezenet] [--schedules 1] [--rounds 9] [-o F.json]

Sequential, greedy and random schedules are measured as a chain in which each link changes one condition. Each round has
all links, so changes of the machine's speed between rounds cancel:

    alone        the sum of the stages, each in a row by itself, with all its data in the caches of its core
    handed over  the same, but before each run the cores write the inputs that no earlier operator has read
    swept        the same, after a cache flush of about as many bytes as the model has weights
    barriers     the whole model in a row; every stage waits for all tasks of the previous one
    in a row     the whole model in a row; every task waits only for its inputs
    parked       the whole model after a millisecond, in which the worker threads go to sleep
    rested       the whole model after idle (`wait_until_idle`)
    evicted      the whole model right after every core has read 64 MiB

Each round also runs the calibration kernel, which shows the drift of the machine. Names that begin with `light_` are
the small models of the onnx package.

Options:
    --schedules: number of random schedules
"""

from __future__ import annotations

import os
import random
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np
from ablation_additive import random_schedule
from command_line import OUTPUTS, read_options
from cpu_models import cpu_model, model_of
from onnx import ModelProto, helper
from result_tables import Table, interval_text, print_table
from results_files import SEEDS, write_results

from iosched import Model, Schedule, Stage, Strategy, load_model
from iosched.models.zoo.network import Network, Value
from iosched.profiler.devices.cpu.cache_flush import flushed_nbytes_of
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.statistics import median_interval
from iosched.runtime.cpu.backend import CompiledModel, CompiledStage, CpuBackend
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.processor import cpu_name
from iosched.scheduler.baselines import greedy, sequential

RATIOS = {
    ("in a row", "alone"): "whole in a row / stages, each by itself in a row",
    ("handed over", "alone"): "inputs just written by the cores",
    ("swept", "handed over"): "other bytes passed the caches",
    ("barriers", "swept"): "whole with barriers / these stages",
    ("in a row", "barriers"): "without barriers / with",
    ("in a row", "swept"): "whole in a row / stages as measured now",
    ("rested", "in a row"): "whole after idle / in a row",
}
HEADERS = ("network", "schedule", *RATIOS.values())
DRIFT_HEADERS = ("network", "yardstick, slowest / fastest", "same round", "rounds apart", "corrected by the yardstick")
IN_A_ROW = 5
SEED = 0
PARKED_SECONDS = 0.001
EVICTING_NBYTES = 64 << 20


@dataclass(frozen=True)
class Subject:
    """One schedule, ready to be measured for each link; `stages` in order, equal ones compiled once."""

    name: str
    stages: tuple[CompiledStage, ...]
    with_barriers: CompiledModel
    model: CompiledModel
    inputs: Mapping[str, np.ndarray]
    flushed_nbytes: int

    def observe(self, evict: Callable[[], None]) -> dict[str, float]:
        """Microseconds of each link, once each."""
        return {
            "alone": self._sum(0),
            "handed over": self._sum(1),
            "swept": self._sum(self.flushed_nbytes),
            "barriers": self._in_a_row(lambda count: self.with_barriers.time(self.inputs, count)),
            "in a row": self._in_a_row(lambda count: self.model.time(self.inputs, count)),
            "parked": self._after(lambda: time.sleep(PARKED_SECONDS)),
            "rested": self._after(wait_until_idle),
            "evicted": self._after(evict),
        }

    def _sum(self, flush_nbytes: int) -> float:
        """The sum of all stages; equal ones are measured once."""
        distinct = {id(stage): partial(stage.time, flush_nbytes=flush_nbytes) for stage in self.stages}
        found = {key: self._in_a_row(run) for key, run in distinct.items()}
        return sum(found[id(stage)] for stage in self.stages)

    def _in_a_row(self, run: Callable[[int], Sequence[float]]) -> float:
        return median(run(2 + IN_A_ROW)[2:])

    def _after(self, pause: Callable[[], None]) -> float:
        self.model.time(self.inputs, 1)
        found = []
        for _ in range(3):
            pause()
            found.append(self.model.time(self.inputs, 1)[0])
        return median(found)


def main(words: Sequence[str] | None = None) -> None:
    networks = ("small", "squeezenet")
    options = read_options(__file__, words, networks=networks, schedules=1, rounds=9, device="cpu", **OUTPUTS)
    content = {network: observe(network, options) for network in options.networks}
    print_table(*table(content))
    print_table(DRIFT_HEADERS, [drift_row(name, found) for name, found in content.items()])
    found = {"device": cpu_name(), "handoffs_us": handoffs_us(), "networks": content}
    write_results(options, found, seeds=SEEDS | {"schedules": SEED})


def observe(network: str, options: Namespace) -> dict[str, Any]:
    """For every schedule of `network`, the latencies of every round, and those of the calibration kernel."""
    model, rounds = _model(network), []
    with CpuBackend(model) as backend:
        calibration, evict = compile_calibration_kernel(backend), _eviction()
        subjects = _subjects(backend, random_inputs(model.graph.inputs), options.schedules)
        for number in range(1 + options.rounds):
            found = {subject.name: subject.observe(evict) for subject in subjects}
            calibration_us = median(calibration.time(7)[2:])
            if number > 0:
                rounds.append({"yardstick_us": round(calibration_us, 1), "latency_us": _rounded(found)})
            print(f"\r{network}: round {number} of {options.rounds}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return {
            "stages": {subject.name: len(subject.stages) for subject in subjects},
            "tasks": {subject.name: subject.model.kernel_count for subject in subjects},
            "weights_nbytes": backend.weights_nbytes,
            "rounds": rounds,
        }


def _rounded(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {name: {link: round(us, 2) for link, us in links.items()} for name, links in found.items()}


def _subjects(backend: CpuBackend, inputs: Mapping[str, np.ndarray], count: int) -> list[Subject]:
    rng = random.Random(SEED)
    graph = backend.graph
    schedules = {"sequential": sequential(graph), "greedy": greedy(graph)}
    schedules |= {f"random {index + 1}": random_schedule(graph, rng.random(), rng) for index in range(count)}
    compiled: dict[Stage, CompiledStage] = {}
    return [_subject(backend, name, schedule, inputs, compiled) for name, schedule in schedules.items()]


def _subject(
    backend: CpuBackend, name: str, schedule: Schedule, inputs: Arrays, compiled: dict[Stage, CompiledStage]
) -> Subject:
    stages = []
    for stage in schedule.stages:
        if stage not in compiled:
            found = backend.compile_stage(stage) or backend.compile_stage(Stage(Strategy.CONCURRENT, stage.groups))
            assert found is not None
            compiled[stage] = found
        stages.append(compiled[stage])
    plain, kept_apart = backend.compile(schedule), backend.compile(schedule, barriers=True)
    return Subject(name, tuple(stages), kept_apart, plain, inputs, flushed_nbytes_of(backend))


def _eviction() -> Callable[[], None]:
    """Reads more than a cache holds on every core in turn."""
    ballast, cores = np.ones(EVICTING_NBYTES // 8), os.sched_getaffinity(0)

    def evict() -> None:
        for core in cores:
            os.sched_setaffinity(0, {core})
            ballast.sum()
        os.sched_setaffinity(0, cores)

    return evict


def handoffs_us() -> dict[str, float]:
    """Latency of a nearly empty stage on one core and on two."""
    nodes = [helper.make_node(kind, ["x"], [kind]) for kind in ("Neg", "Abs")]
    with CpuBackend(load_model(model_of(nodes, ["x"], ["Neg", "Abs"], (1, 16)), name="nothing")) as backend:
        names = [operator.name for operator in backend.graph.operators]
        stages = {"one group": (tuple(names[:1]),), "two groups": tuple((name,) for name in names)}
        found = {}
        for name, groups in stages.items():
            compiled = backend.compile_stage(Stage(Strategy.CONCURRENT, groups))
            assert compiled is not None
            found[name] = round(median(compiled.time(400)[100:]), 2)
    return found


def _model(network: str) -> Model:
    if network == "small":
        return load_model(_small().SerializeToString(), name="small")
    return cpu_model(network if network.startswith("light_") else f"zoo:{network}")


def _small() -> ModelProto:
    """Six modules of three small branches: each operator takes tens of microseconds."""
    net = Network("small")
    x = net.input(64, 14)
    for index in range(6):
        x = _branches(net, x, f"module{index + 1}")
    return net.finish(x)


def _branches(net: Network, x: Value, name: str) -> Value:
    narrow = net.conv(x, 32, 1, f"{name}/narrow")
    left = net.conv(narrow, 32, 3, f"{name}/left", padding=1)
    right = net.conv(net.conv(x, 32, 1, f"{name}/right1"), 32, 1, f"{name}/right2")
    return net.concat([left, right], f"{name}/concat")


def table(networks: Mapping[str, Any]) -> Table:
    return HEADERS, [row for name, found in networks.items() for row in ratio_rows(name, found)]


def ratio_rows(network: str, found: Mapping[str, Any]) -> list[list[str]]:
    """For each schedule, each link of the chain over another, round by round."""
    rows = []
    for name in found["stages"]:
        each = [turn["latency_us"][name] for turn in found["rounds"]]
        ratios = [median_text([turn[after] / turn[before] for turn in each]) for after, before in RATIOS]
        rows.append([network, name, *ratios])
    return rows


def drift_row(network: str, found: Mapping[str, Any]) -> list[str]:
    """Variation of the whole over the sum of its stages, by the time of the two measurements."""
    rounds = found["rounds"]
    speeds = [turn["yardstick_us"] for turn in rounds]
    variations: dict[str, list[float]] = {"same": [], "apart": [], "corrected": []}
    for name in found["stages"]:
        wholes, sums = ([turn["latency_us"][name][link] for turn in rounds] for link in ("in a row", "swept"))
        half = len(rounds) // 2
        later, later_speeds = [*sums[half:], *sums[:half]], [*speeds[half:], *speeds[:half]]
        variations["same"].append(variation(wholes, sums))
        variations["apart"].append(variation(wholes, later))
        corrected = [us * now / then for us, now, then in zip(later, speeds, later_speeds, strict=True)]
        variations["corrected"].append(variation(wholes, corrected))
    return [network, f"{max(speeds) / min(speeds):.2f}", *(f"{mean(each):.3f}" for each in variations.values())]


def variation(wholes: Sequence[float], sums: Sequence[float]) -> float:
    """Standard deviation of the logarithm of their ratio."""
    return float(np.std(np.log(np.divide(wholes, sums))))


def median_text(ratios: Sequence[float], form: str = ".2f") -> str:
    """The median with its interval."""
    return interval_text(median(ratios), *median_interval(ratios), form)


if __name__ == "__main__":
    main()
