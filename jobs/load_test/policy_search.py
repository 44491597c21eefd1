"""Measures models on some or all cores and next to each other, and derives how many cores a request of each gets."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from pathlib import Path

import msgspec

from iosched.jobs.load_test.alternatives import Run, calls_of
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.load_test import DEADLINE_RUNS, LoadSettings, LoadTest
from iosched.jobs.loading.batches import LoadedBatches
from iosched.jobs.observer import Observer, Silence
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.jobs.serving.policy_file import (
    PlanCost,
    PolicyFile,
    PolicyMachine,
    PolicyModel,
    PolicyPair,
    hash_of,
    relative,
)
from iosched.jobs.serving.served_models import ServedModels, serve_together
from iosched.models.load import load_model
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.statistics import Measurement, MeasureSettings, measure, summarize
from iosched.runtime.cores import cpu_count
from iosched.runtime.inputs import random_inputs

_SETTINGS = MeasureSettings(max_seconds=1.0)
_PAIR_ROUNDS, _PAIR_S = 3, 0.3
_LOAD_STEP = 0.05
_COMPARED_S = 30.0


@dataclass(frozen=True)
class PolicySearchResult:
    """A policy that was measured.

    Attributes:
        rows: of the policy and of the rule without one, under the planned requests.
        chosen: the name of the one that is in the file.
    """

    file: PolicyFile
    rows: tuple[LoadRow, ...]
    chosen: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user about a p99 that is too high or unknown."""
        rows = [row for row in self.rows if row.name == self.chosen]
        unknown = [f"{row.requests} requests of {row.model} are too few for p99." for row in rows if row.p99 is None]
        missed = [
            f"p99 of {row.model} is {row.p99.value / 1e3:.1f} ms, above {row.deadline_us / 1e3:.1f} ms."
            for row in rows
            if row.p99 is not None and row.p99.value > row.deadline_us
        ]
        return (*unknown, *missed)


def search_policy(
    paths: Mapping[str, Path],
    rates: Mapping[str, float],
    *,
    p99_s: Mapping[str, float] | None = None,
    threads: int | None = None,
    folder: Path = Path(),
    observer: Observer | None = None,
) -> PolicySearchResult:
    """Measures a policy for requests that arrive at random; the models' files stay as they are.

    The measured policy is compared with the rule that `serve_together` has without one, and the better one is taken.

    Args:
        paths: the models' files by name.
        rates: requests per second.
        p99_s: the latency that 99 requests in 100 should stay below; by default `DEADLINE_RUNS` runs alone.
        threads: the number of cores; by default all that affinity and quota allow.
        folder: of the policy file, which has all models in it.

    Raises:
        Errors of `serve_together`; UsageError if a model is not in the folder.
    """
    observer, cores = observer or Silence(), threads or cpu_count()
    own = {name: relative(path, folder) for name, path in paths.items()}
    plans: dict[str, tuple[PlanCost, ...]] = dict.fromkeys(paths, ())
    pairs: tuple[PolicyPair, ...] = ()
    for count in ModelPolicy().sizes(cores):
        observer.progress(0, None, f"measuring requests on {count} of {cores} cores")
        policy = ServingPolicy({name: ModelPolicy(((math.inf, count),)) for name in paths})
        with serve_together(paths, policy, threads=cores) as served:
            runs = {name: _runs(served, name, path) for name, path in paths.items()}
            plans = {name: (*plans[name], *_plans(count, runs[name])) for name in paths}
            if count == max(1, cores // 2) < cores:
                first = {name: next(iter(each.values())) for name, each in runs.items()}
                pairs = tuple(_pair(first, both) for both in combinations_with_replacement(paths, 2))
    slowed = {name: _mean_slowdown(name, pairs, rates) for name in paths}
    lone_us = {name: min(_by_cores(plans[name]).values()) for name in paths}
    models = {
        name: PolicyModel(
            path=own[name],
            sha256=hash_of(path),
            rate_per_s=rates[name],
            p99_us=(p99_s or {}).get(name, DEADLINE_RUNS * lone_us[name] / 1e6) * 1e6,
            plans=plans[name],
            cores=cores_by_load(_by_cores(plans[name]), slowed[name], cores),
        )
        for name, path in paths.items()
    }
    found = PolicyFile(PolicyMachine.of(resolve("cpu").info, cores), models, pairs)
    return _compared(found, paths, lone_us, observer)


def _runs(served: ServedModels, name: str, path: Path) -> Mapping[int, Run]:
    """A run on random inputs for each batch size that the model has schedules for, or for its only one."""
    model = served.models[name]
    if isinstance(model, LoadedBatches):
        specs = {size: load_model(path, batch_size=size).graph.inputs for size in model.schedules.batch_sizes}
    else:
        specs = {model.model.batch_size or 1: model.inputs}
    return {size: partial(served.run, name, random_inputs(each)) for size, each in specs.items()}


def _plans(count: int, runs: Mapping[int, Run]) -> Iterator[PlanCost]:
    for size, run in runs.items():
        found = measure(partial(_times_us, run), _SETTINGS)
        yield PlanCost(count, size, found.median_us, found.low_us, found.high_us)


def _times_us(run: Run, count: int) -> Sequence[float]:
    found = []
    for _ in range(count):
        began_s = time.perf_counter()
        run()
        found.append((time.perf_counter() - began_s) * 1e6)
    return found


def _pair(runs: Mapping[str, Run], models: tuple[str, str]) -> PolicyPair:
    """Runs two models alone and at the same time, in turn."""
    alone: tuple[list[float], list[float]] = ([], [])
    together: tuple[list[float], list[float]] = ([], [])
    both = [runs[name] for name in models]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(_PAIR_ROUNDS):
            for run, times_us in zip(both, alone, strict=True):
                times_us += _busy_us(run)
            for found, times_us in zip(pool.map(_busy_us, both), together, strict=True):
                times_us += found
    ratios = [_ratio(summarize(a), summarize(b)) for a, b in zip(together, alone, strict=True)]
    (value, low, high) = zip(*ratios, strict=True)
    return PolicyPair(models, value, low, high)


def _busy_us(run: Run) -> Sequence[float]:
    end_s, found = time.perf_counter() + _PAIR_S, list(_times_us(run, 1))
    while time.perf_counter() < end_s:
        found += _times_us(run, 1)
    return found


def _ratio(over: Measurement, under: Measurement) -> tuple[float, float, float]:
    return over.median_us / under.median_us, over.low_us / under.high_us, over.high_us / under.low_us


def _by_cores(plans: Sequence[PlanCost]) -> Mapping[int, float]:
    """Latency at the smallest batch size, by the number of cores."""
    least = min(each.batch_size for each in plans)
    return {each.cores: each.latency_us for each in plans if each.batch_size == least}


def _mean_slowdown(name: str, pairs: Sequence[PolicyPair], rates: Mapping[str, float]) -> float:
    """How many times as long a request takes next to another, which is of each model as often as those arrive."""
    others = {
        other: slowdown
        for pair in pairs
        for own, other, slowdown in zip(pair.models, reversed(pair.models), pair.slowdown, strict=True)
        if own == name
    }
    total = sum(rates[other] for other in others)
    return sum(rates[other] * slowdown for other, slowdown in others.items()) / total if total else 1.0


def cores_by_load(latency_us: Mapping[int, float], slowdown: float, cores: int) -> tuple[tuple[float, int], ...]:
    """The number of cores with the lowest p99 at each load, as steps of `ModelPolicy.cores`.

    Args:
        latency_us: of a request, by the number of cores; 1 is among them.
        slowdown: of requests that run next to others.
        cores: of the process.
    """
    loads = [step * _LOAD_STEP for step in range(1, round(1 / _LOAD_STEP) + 1)]
    best = [
        min(latency_us, key=lambda count: (_p99_us(latency_us, count, slowdown, cores, load), count)) for load in loads
    ]
    steps = {}
    for load, count in zip(loads, best, strict=True):
        steps[count] = (round(load, 2), count)
    return tuple(sorted(steps.values()))


def _p99_us(latency_us: Mapping[int, float], count: int, slowdown: float, cores: int, load: float) -> float:
    """p99 where each request runs on `count` cores, in a queue with several servers; infinite if it grows.

    Of the requests, a share u ** (sqrt(2 * (k + 1)) - 1) waits (H. Sakasegawa, 1977). Their times are exponentially
    distributed, with half of the mean of M/M/k, since runs of a model are equally long.
    """
    servers = cores // count
    run_us = latency_us[count] * (slowdown if servers > 1 else 1.0)
    utilization = load * count * run_us / latency_us[1]
    if utilization >= 1:
        return math.inf
    waits = utilization ** (math.sqrt(2 * (servers + 1)) - 1)
    return run_us + max(0.0, math.log(waits / 0.01)) * run_us / (2 * servers * (1 - utilization))


def _merit(rows: Sequence[LoadRow]) -> tuple[float, float]:
    """Requests in time, then how far p90 stays below the deadlines."""
    return sum(row.goodput_per_s for row in rows), -sum(row.p90.value / row.deadline_us for row in rows if row.p90)


def _compared(
    found: PolicyFile, paths: Mapping[str, Path], lone_us: Mapping[str, float], observer: Observer
) -> PolicySearchResult:
    """Sends the planned requests to the models by the policy and by the rule without one."""
    policies = {"policy": found.policy, "no policy": ServingPolicy()}
    settings = LoadSettings(
        {name: each.rate_per_s for name, each in found.models.items()},
        deadlines_s={name: each.p99_us / 1e6 for name, each in found.models.items()},
    )
    with ExitStack() as stack:
        opened = {}
        for name, policy in policies.items():
            served = serve_together(paths, policy, threads=found.machine.cores)
            runs = {model: next(iter(_runs(served, model, path).values())) for model, path in paths.items()}
            opened[name] = calls_of(served, runs)
            stack.callback(opened[name].close)
        rows = LoadTest(settings, lone_us, opened, observer).rows(_COMPARED_S)
    chosen = max(policies, key=lambda name: _merit([row for row in rows if row.name == name]))
    if chosen != "policy":
        models = {name: msgspec.structs.replace(each, cores=()) for name, each in found.models.items()}
        found = msgspec.structs.replace(found, models=models)
    return PolicySearchResult(found, rows, chosen)
