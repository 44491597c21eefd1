"""SIMULATED: latencies of requests of several models on two cores, by the rules of `iosched.serve_together` and others.

    python benchmarks/serving_simulated.py [--output benchmarks/results/serving_simulated.json]

The dispatcher is the real one. Runs take the times below on one core, and are 1.7 times as fast on two. Requests
arrive at random (Poisson), equally often for each model. In the baseline, a session for each model, all requests run at
once and share the cores equally. Sharing costs nothing, and memory bandwidth is not simulated.

At 70 % of the capacity, a model of 5 ms next to one of 200 ms has a p99 of 591 ms in order of arrival, 187 ms with the
shortest first, and 20 ms where it may share cores; 33 ms in sessions, which give the long one 1261 instead of 795 ms.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from command_line import read_options
from result_tables import print_table
from results_files import RESULTS, write_results

import iosched
from iosched.jobs.serving.dispatcher import Dispatcher, Start

CORES, SPEEDUP, REQUESTS = 2, 1.7, 20_000
MIXES: Mapping[str, Mapping[str, float]] = {
    "four": {"10 ms": 0.01, "16 ms": 0.016, "30 ms": 0.03, "60 ms": 0.06},
    "two": {"5 ms": 0.005, "200 ms": 0.2},
}
DEFAULT = iosched.ServingPolicy()
ARRIVAL = replace(DEFAULT, length_weight=0.0, overlap_ratio=None)
POLICIES: Mapping[str, iosched.ServingPolicy | None] = {
    "sessions": None,
    "in order of arrival": ARRIVAL,
    "shortest first, with age": replace(DEFAULT, overlap_ratio=None),
    "and sharing cores: default": DEFAULT,
}
"""From the baseline to the default; each adds one rule."""


@dataclass
class Run:
    """A request; `left_s` is its remaining time on one core; `cores` is 0 if it shares those of others."""

    number: int
    model: str
    arrived_s: float
    left_s: float
    cores: int = 1


@dataclass
class Sessions:
    """All requests run at once, with an equal share of the cores."""

    running: list[Run] = field(default_factory=list)

    def arrive(self, run: Run) -> None:
        self.running.append(run)

    def end(self, run: Run, _: float) -> None:
        self.running.remove(run)

    def speeds(self) -> list[float]:
        return [min(1.0, CORES / len(self.running))] * len(self.running)


@dataclass
class Served:
    """Requests run as the dispatcher starts them."""

    policy: iosched.ServingPolicy
    running: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dispatcher, self.known = Dispatcher(CORES, self.policy), dict[object, Run]()

    def arrive(self, run: Run) -> None:
        self.known[run.number] = run
        self._start(self.dispatcher.arrived(run.number, run.model, run.arrived_s))

    def end(self, run: Run, now_s: float) -> None:
        self.running.remove(run)
        self._start(self.dispatcher.ended(run.number, now_s))

    def speeds(self) -> list[float]:
        """A run that shares takes half of a core from the longest one, unless a core is free."""
        taken = sum(run.cores for run in self.running)
        is_shared = taken == CORES < sum(max(run.cores, 1) for run in self.running)
        longest = max(self.running, key=lambda run: (run.cores > 0, run.left_s))
        halves = [is_shared and (run is longest or run.cores == 0) for run in self.running]
        return [
            (SPEEDUP if run.cores == CORES else 1.0) * (0.5 if half else 1.0)
            for run, half in zip(self.running, halves, strict=True)
        ]

    def _start(self, starts: Iterable[Start]) -> None:
        for start in starts:
            run = self.known.pop(start.request)
            run.cores = 0 if start.block == self.dispatcher.shared else len(start.block)
            self.running.append(run)


def main() -> None:
    options = read_options(__file__, output=RESULTS / "serving_simulated.json", seed=0)
    rows = [
        [mix, load, name, *latencies_ms(simulated(models, load, own, options.seed))]
        for mix, models in MIXES.items()
        for load in (0.3, 0.7)
        for name, own in POLICIES.items()
    ]
    write_results(options, {"rows": rows}, seeds={"arrivals": options.seed})
    print_table(["models", "load", "rule", "p50 ms", "p99 ms", "p99 ms by model"], rows)


def simulated(
    models: Mapping[str, float], load: float, policy: iosched.ServingPolicy | None, seed: int
) -> Mapping[str, list[float]]:
    """Latencies in milliseconds, by model."""
    queues = {name: iosched.ModelPolicy(most_waiting=REQUESTS) for name in models}
    cores = Sessions() if policy is None else Served(replace(policy, models=queues))
    draw, now_s = random.Random(seed), 0.0
    rate = load * CORES * len(models) / sum(models.values())
    found: dict[str, list[float]] = {name: [] for name in models}
    for number in range(REQUESTS):
        arrives_s = now_s + draw.expovariate(rate)
        now_s = advance(cores, now_s, arrives_s, found)
        name = draw.choice([*models])
        cores.arrive(Run(number, name, now_s, models[name]))
    advance(cores, now_s, math.inf, found)
    return found


def advance(cores: Sessions | Served, now_s: float, until_s: float, found: Mapping[str, list[float]]) -> float:
    """Lets requests run until this time, and records those that end."""
    while cores.running:
        speeds = cores.speeds()
        after_s, first = min(
            (run.left_s / speed, index) for index, (run, speed) in enumerate(zip(cores.running, speeds, strict=True))
        )
        passes_s = min(after_s, until_s - now_s)
        for run, speed in zip(cores.running, speeds, strict=True):
            run.left_s -= passes_s * speed
        now_s += passes_s
        if passes_s < after_s:
            return now_s
        over = cores.running[first]
        found[over.model].append((now_s - over.arrived_s) * 1e3)
        cores.end(over, now_s)
    return until_s


def latencies_ms(found: Mapping[str, list[float]]) -> tuple[str, str, str]:
    """p50 and p99 of all requests, and p99 of each model."""
    every = [ms for own in found.values() for ms in own]
    return (
        f"{at(every, 0.5):.1f}",
        f"{at(every, 0.99):.0f}",
        ", ".join(f"{name}: {at(own, 0.99):.0f}" for name, own in found.items()),
    )


def at(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(share * len(ordered))]


if __name__ == "__main__":
    main()
