"""Measures models on some or all cores and next to each other, and derives how many cores a request of each gets."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from threading import Event

import msgspec

from iosched.jobs.load_test.alternatives import Run, calls_of, random_requests, runs_of
from iosched.jobs.load_test.latencies import LoadRow
from iosched.jobs.load_test.load_test import DEADLINE_RUNS, LoadSettings, LoadTest
from iosched.jobs.observer import Observer, Silence
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.jobs.serving.policy_file import (
    Measured,
    PolicyFile,
    PolicyMachine,
    PolicyModel,
    PolicyPair,
    hash_of,
    relative,
)
from iosched.jobs.serving.served_models import serve_together
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleave import compare, interleave
from iosched.profiler.measuring.statistics import LEAST_SAMPLES
from iosched.runtime.cores import cpu_count

_ROUNDS, _MODEL_S = 60, 1.0
"""Runs of each model on each number of cores, which take about this time."""
_PAIR_ROUNDS, _PAIR_S = 20, 1.0
_LOAD_STEP = 0.05
_COMPARED_S = 30.0
_HAS = {
    "policy": "The file has the measured policy, by requests in time, then p90 at least as good as the default rule.",
    "no policy": "By requests in time, then p90, the default rule was better: the file leaves the cores to it.",
}


@dataclass(frozen=True)
class PolicySearchResult:
    """A policy that was measured.

    Attributes:
        rows: of the policy and of the rule without one, under the planned requests.
        chosen: the name of the policy in the file.
    """

    file: PolicyFile
    rows: tuple[LoadRow, ...]
    chosen: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user: the content of the file, and a p99 that is too high or unknown."""
        own = (row for row in self.rows if row.name == self.chosen)
        return (_HAS[self.chosen], *(note for row in own for note in _notes(row)))


def _notes(row: LoadRow) -> Iterator[str]:
    if row.quantiles["p99"] is None:
        yield f"{row.requests} requests of {row.model} are too few for p99."
    above = [name for name, found in row.quantiles.items() if found is not None and found.value > row.deadline_us]
    if above:
        yield f"{above[-1]} of {row.model} is above {row.deadline_us / 1e3:.1f} ms."


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
        p99_s: the highest acceptable p99 of the latency; by default `DEADLINE_RUNS` runs alone.
        threads: the number of cores; by default all that affinity and quota allow.
        folder: the folder of the policy file, which contains all models.

    Raises:
        Errors of `serve_together`; UsageError if a model is not in the folder.
    """
    observer, cores = observer or Silence(), threads or cpu_count()
    own = {name: relative(path, folder) for name, path in paths.items()}
    sizes = ModelPolicy().sizes(cores)
    of_two = next((size for size in sizes if 2 * size <= cores), None)
    latency_us: dict[str, dict[int, Measured]] = {name: {} for name in paths}
    pairs: tuple[PolicyPair, ...] = ()
    for count in sizes:
        observer.progress(0, None, f"measuring requests on {count} of {cores} cores")
        policy = ServingPolicy({name: ModelPolicy(((math.inf, count),)) for name in paths})
        with serve_together(paths, policy, threads=cores) as served:
            runs = runs_of(served, random_requests(served))
            timed = {name: partial(_time_us, run) for name, run in runs.items()}
            for name, found in interleave(timed, _ROUNDS, max_seconds=_MODEL_S * len(paths)).items():
                latency_us[name][count] = Measured(found.median_us, found.low_us, found.high_us)
            if count == of_two:
                both = product(paths, repeat=2)
                pairs = tuple(PolicyPair(name, other, _slowdown(runs[name], runs[other])) for name, other in both)
    by_cores = {name: {count: each.value for count, each in found.items()} for name, found in latency_us.items()}
    models = {
        name: PolicyModel(
            path=own[name],
            sha256=hash_of(path),
            rate_per_s=rates[name],
            p99_us=(p99_s or {}).get(name, DEADLINE_RUNS * min(by_cores[name].values()) / 1e6) * 1e6,
            latency_us=latency_us[name],
            cores=cores_by_load(by_cores[name], _mean_slowdown(name, pairs, rates), cores),
        )
        for name, path in paths.items()
    }
    file = PolicyFile(PolicyMachine.of(resolve("cpu").info, cores), models, pairs)
    return _compared(file, paths, observer)


def _time_us(run: Run) -> float:
    began_s = time.perf_counter()
    run()
    return (time.perf_counter() - began_s) * 1e6


def _slowdown(run: Run, other: Run) -> Measured:
    """Slowdown of a run while another thread repeats `other`."""
    runs = {"disturbed": partial(_disturbed_us, run, other), "alone": partial(_time_us, run)}
    measured = interleave(runs, _PAIR_ROUNDS, max_seconds=_PAIR_S, least_rounds=LEAST_SAMPLES)
    found = compare(measured["disturbed"], measured["alone"])
    assert found is not None  # there are enough rounds
    return Measured(found.value, found.low, found.high)


def _disturbed_us(run: Run, other: Run) -> float:
    is_over = Event()

    def repeat() -> None:
        while not is_over.is_set():
            other()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(repeat)
        try:
            run()  # gives the other one time to begin
            return _time_us(run)
        finally:
            is_over.set()


def _mean_slowdown(name: str, pairs: Sequence[PolicyPair], rates: Mapping[str, float]) -> float:
    """Mean slowdown of a request next to one of another model, weighted by the rates of the other models."""
    own = [pair for pair in pairs if pair.model == name]
    return fmean([pair.slowdown.value for pair in own], [rates[pair.other] for pair in own]) if own else 1.0


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

    A share u ** (sqrt(2 * (k + 1)) - 1) of the requests waits (H. Sakasegawa, 1977). Waiting times are exponentially
    distributed, with half the mean of M/M/k, since runs of a model are equally long.
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
    known = [(row.quantiles["p90"], row.deadline_us) for row in rows]
    return sum(row.goodput_per_s for row in rows), -sum(p90.value / deadline_us for p90, deadline_us in known if p90)


def _compared(found: PolicyFile, paths: Mapping[str, Path], observer: Observer) -> PolicySearchResult:
    """Sends the planned requests to the models by the policy and by the rule without one."""
    policies = {"policy": found.policy, "no policy": ServingPolicy()}
    settings = LoadSettings({name: each.rate_per_s for name, each in found.models.items()})
    deadlines_s = {name: each.p99_us / 1e6 for name, each in found.models.items()}
    with ExitStack() as stack:
        opened = {}
        for name, policy in policies.items():
            served = serve_together(paths, policy, threads=found.machine.cores)
            opened[name] = calls_of(served, random_requests(served))
            stack.callback(opened[name].close)
        rows = LoadTest(settings, deadlines_s, opened, observer).rows(_COMPARED_S)
    chosen = max(policies, key=lambda name: _merit([row for row in rows if row.name == name]))
    if chosen != "policy":
        models = {name: msgspec.structs.replace(each, cores=()) for name, each in found.models.items()}
        found = msgspec.structs.replace(found, models=models)
    return PolicySearchResult(found, rows, chosen)
