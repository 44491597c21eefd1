"""Independent requests for two and four models: iosched.serve_together, sessions, OpenVINO's streams, and processes.

    python benchmarks/keras_models.py build --networks EfficientNetB0,NASNetMobile    # needs the extra [bench]
    python benchmarks/serving_load.py [--networks zoo:squeezenet,...] [--seeds 5] [--requests 2000] [-o results.json]

Networks are optimized first. Each set of models gets Poisson arrivals, with rates that need equal times of each alone.
The capacity of a set is the highest load at which the best baseline keeps the p99 of all models below five times their
latency alone, found by bisection. Points are shares of it. All alternatives get the same requests, in interleaved
segments. Each seed has its share of a point's requests; points in the results file are not measured again. To measure a
point with more requests, use other seeds: its ratios are of the seeds with the most requests.

SIMULATED: policies on 8 and 16 cores, by the dispatcher of iosched and latencies that are measured on one core and on
all, and extended to more by Amdahl's law. Requests do not share cores.

Options:
    --folder: optimized networks, made where they are missing
    --first-seed: the first of `--seeds` seeds
    --sets: comma-separated sets of indices of networks, such as 03,12,0123
    --shares: points, as shares of the capacity
    --requests: of all models at a point, but at least 400 of each
    --baselines: comma-separated alternatives at the points; all by default
    --capacity-requests: minimum number of requests of each model for a decision about the capacity
    --output: raw results as JSON
"""

from __future__ import annotations

import heapq
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from command_line import read_options
from cpu_models import short_name
from result_tables import Table, interval_text, print_table
from results_files import resumed_results, write_results

from iosched import Model, load_model
from iosched.jobs.load_test.alternatives import OPENERS
from iosched.jobs.load_test.arrivals import Arrival, poisson
from iosched.jobs.load_test.latencies import LoadRow, quantile_under_load
from iosched.jobs.load_test.load_test import DEADLINE_RUNS, LoadResult, LoadSettings, load_test, served_alone
from iosched.jobs.load_test.policy_search import cores_by_load
from iosched.jobs.serving.dispatcher import Dispatcher, Start
from iosched.jobs.serving.policy import ModelPolicy, ServingPolicy
from iosched.jobs.serving.served_models import serve_together
from iosched.models.errors import BusyError
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import Interval, quantile
from iosched.runtime.cores import cpu_count
from iosched.runtime.inputs import random_inputs

NETWORKS = ("zoo:squeezenet", "build/keras_efficientnetb0.onnx", "build/keras_nasnetmobile.onnx", "zoo:bert_mini")
SHARES = (0.4, 0.7, 0.95)
CORES = (8, 16)
STEPS = 6
"""Of the bisection, which begins between a tenth of one model alone and all cores busy twice."""
LEAST_REQUESTS = 400
"""Of each model at a point: its p99 has an interval from 368 on."""
SIMULATED_REQUESTS = 20_000

Results = dict[str, Any]


def main() -> None:
    options = read_options(
        __file__,
        networks=NETWORKS,
        sets=("03", "12", "0123"),
        folder=Path("build"),
        seeds=5,
        first_seed=1,
        shares=SHARES,
        requests=2000,
        baselines=(),
        capacity_requests=400,
        output=Path,
    )
    found = {"sets": {}, "points": [], "simulated": {}, **resumed_results(options.output)}
    for indices in options.sets:
        networks = [options.networks[int(index)] for index in indices]
        chosen = {short_name(name): load_model(optimized(name, options.folder)) for name in networks}
        measured(indices, chosen, found, options)
        found["simulated"][indices] = simulated(chosen, found["sets"][indices])
        write_results(options, found, seeds={"inputs": 0, "arrivals": options.first_seed}, goes_on=True)
    for indices, each in found["sets"].items():
        print(f"\n{', '.join(each['lone_us'])}: capacity {each['load']:.2f} times one model alone")
        print_table(*table(found["points"], indices))
        print_table(*ratio_table(found["points"], indices))
        print("\nSIMULATED")
        print_table(*simulated_table(found["simulated"], indices))


def optimized(name: str, folder: Path) -> Path:
    """The network after `iosched optimize` at batch 1."""
    path = folder / f"{short_name(name)}.iosched.onnx"
    if not path.exists():
        folder.mkdir(exist_ok=True)
        words = ("optimize", name, "--batch-size", "1", "--device", "cpu", "-o", str(path))
        words += ("--schedule", str(path.with_suffix(".json")))
        subprocess.run([sys.executable, "-m", "iosched", *words], check=True)
    return path


def measured(indices: str, models: Mapping[str, Model], found: Results, options: Any) -> None:
    """Adds the capacity of a set, and the points that are missing, to the results."""
    if indices not in found["sets"]:
        found["sets"][indices] = capacity(models, options.capacity_requests)
    of_set = found["sets"][indices]
    done = {(each["set"], each["share"], each["seed"]) for each in found["points"]}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for share in options.shares:
            if (indices, share, seed) not in done:
                rates = rates_of(of_set["lone_us"], share * of_set["load"])
                rarest = max(LEAST_REQUESTS, options.requests * min(rates.values()) / sum(rates.values()))
                names = ("iosched", *options.baselines) if options.baselines else ()
                result = load_of(models, rates, of_set["lone_us"], rarest / options.seeds, seed, names)
                found["points"].append({"set": indices, "share": share, "seed": seed, **content(result)})
                write_results(options, found, seeds={"inputs": 0, "arrivals": seed}, goes_on=True)


def rates_of(lone_us: Mapping[str, float], load: float) -> dict[str, float]:
    """Requests per second with equal times of each model alone, in total `load` seconds per second."""
    return {name: load / len(lone_us) / each_us * 1e6 for name, each_us in lone_us.items()}


def load_of(
    models: Mapping[str, Model],
    rates: Mapping[str, float],
    lone_us: Mapping[str, float],
    requests: float,
    seed: int,
    names: Sequence[str] = (),
) -> LoadResult:
    """A load test with about this number of requests for the rarest model."""
    deadlines_s = {name: DEADLINE_RUNS * each_us / 1e6 for name, each_us in lone_us.items()}
    duration_s = 1.1 * requests / min(rates.values())
    settings = LoadSettings(rates, duration_s=duration_s, deadlines_s=deadlines_s, names=tuple(names), seed=seed)
    return load_test(models, settings)


def capacity(models: Mapping[str, Model], requests: int) -> Results:
    """The load that the best baseline sustains, with the loads tried, and latencies alone and by cores."""
    lone_us = {name: served_alone(model, cpu_count()).lone_us for name, model in models.items()}
    low, high, tried = 0.1, 2.0 * cpu_count(), []
    baselines = [name for name in OPENERS if name != "iosched"]
    for _ in range(STEPS):
        load = math.sqrt(low * high)
        result = load_of(models, rates_of(lone_us, load), lone_us, requests, 0, baselines)
        carries = [name for name in result.names if all(_is_in_time(row) for row in result.rows if row.name == name)]
        tried.append({"load": load, "carried_by": carries})
        baselines = carries or baselines
        low, high = (load, high) if carries else (low, load)
    return {"lone_us": lone_us, "load": low, "tried": tried, "by_cores_us": by_cores_us(models)}


def _is_in_time(row: LoadRow) -> bool:
    """Whether p99 is below the deadline."""
    return row.goodput_per_s * row.seconds >= 0.99 * row.requests


def by_cores_us(models: Mapping[str, Model], rounds: int = 20) -> Mapping[str, Mapping[int, Sequence[float]]]:
    """Samples of each model's latency in iosched on 1 and on all cores, interleaved."""
    found: dict[str, dict[int, Sequence[float]]] = {name: {} for name in models}
    for count in {1, cpu_count()}:
        policy = ServingPolicy({name: ModelPolicy(((math.inf, count),)) for name in models})
        with serve_together(models, policy) as served:
            inputs = {name: random_inputs(model.graph.inputs) for name, model in models.items()}
            calls = {name: partial(served.run, name, each) for name, each in inputs.items()}
            runs = {name: partial(timed_us, each) for name, each in calls.items()}
            for name, each in interleave(runs, rounds).items():
                found[name][count] = each.samples_us
    return found


def timed_us(run: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    run()
    return (time.perf_counter() - began_s) * 1e6


def content(result: LoadResult) -> Results:
    """The stored part of a load test."""
    return {
        "rates": {row.model: row.rate_per_s for row in result.first},
        "deadlines_us": {row.model: row.deadline_us for row in result.first},
        "seconds": result.seconds,
        "lag_us": dict(result.lag_us),
        "missing": dict(result.missing),
        "latencies_us": {
            name: {row.model: [_rounded(us) for us in row.latencies_us] for row in result.rows if row.name == name}
            for name in result.names
        },
    }


def _rounded(latency_us: float) -> int | None:
    return None if math.isinf(latency_us) else round(latency_us)


def table(points: Sequence[Results], indices: str, shares: str = "") -> Table:
    """Quantiles of all seeds of each point, model and alternative.

    Args:
        shares: those of the capacity that rows are for, separated by spaces; all by default.
    """
    rows = []
    for share, seeds in _by_share(points, indices, shares).items():
        for model in seeds[0]["rates"]:
            for name in dict.fromkeys(name for each in seeds for name in each["latencies_us"]):
                having = [each for each in seeds if name in each["latencies_us"]]
                latencies_us = [
                    math.inf if us is None else us for each in having for us in each["latencies_us"][name][model]
                ]
                in_time = sum(us <= seeds[0]["deadlines_us"][model] for us in latencies_us) / len(latencies_us)
                ends = [quantile_under_load(latencies_us, part) for part in (0.5, 0.9, 0.99)]
                rows.append((f"{share:.0%}", model, name, len(latencies_us), *map(_text, ends), f"{in_time:.1%}"))
    return ["capacity", "model", "", "requests", "p50", "p90", "p99 (95 % interval)", "in time"], rows


def ratio_table(points: Sequence[Results], indices: str, shares: str = "") -> Table:
    """p99 of iosched over that of the best baseline of each model and point: the median of the seeds, and their range.

    The range of five seeds contains the median with a probability of 94 %. If a point was measured again with more
    requests, only those seeds count.

    Args:
        shares: as in `table`.
    """
    rows = []
    for share, all_seeds in _by_share(points, indices, shares).items():
        longest_s = max(each["seconds"] for each in all_seeds)
        seeds = [each for each in all_seeds if each["seconds"] > 0.9 * longest_s]
        for model in seeds[0]["rates"]:
            p99_us = {name: [_p99_us(each, name, model) for each in seeds] for name in seeds[0]["latencies_us"]}
            ours = p99_us.pop("iosched")
            best = min(p99_us, key=lambda name: median(p99_us[name]))
            ratios = [mine / other for mine, other in zip(ours, p99_us[best], strict=True)]
            goodput = {name: sum(_in_time(each, name, model) for each in seeds) for name in ("iosched", *p99_us)}
            most = max(goodput[name] for name in p99_us)
            ratio = interval_text(median(ratios), min(ratios), max(ratios))
            ends = [f"{median(each) / 1e3:.1f} ms" for each in (ours, p99_us[best])]
            count = sum(len(each["latencies_us"]["iosched"][model]) for each in seeds)
            in_time = f"{goodput['iosched'] / max(most, 1):.3f}"
            rows.append((f"{share:.0%}", model, count, ends[0], best, ends[1], len(seeds), ratio, in_time))
    headers = [
        "capacity",
        "model",
        "requests",
        "p99",
        "best other way",
        "its p99",
        "seeds",
        "p99 over its",
        "in time over the most",
    ]
    return headers, rows


def _by_share(points: Sequence[Results], indices: str, shares: str) -> dict[float, list[Results]]:
    """The points of a set; `shares` as in `table`."""
    own = [each for each in points if each["set"] == indices]
    chosen = [*map(float, shares.split())] or sorted({each["share"] for each in own})
    return {share: [each for each in own if each["share"] == share] for share in chosen}


def _p99_us(point: Results, name: str, model: str) -> float:
    return quantile([math.inf if us is None else us for us in point["latencies_us"][name][model]], 0.99)


def _in_time(point: Results, name: str, model: str) -> int:
    most_us = point["deadlines_us"][model]
    return sum(us is not None and us <= most_us for us in point["latencies_us"][name][model])


def _text(found: Interval | None) -> str:
    if found is None:
        return "unknown"
    value, low, high = (
        "no answer" if math.isinf(us) else f"{us / 1e3:.1f} ms" for us in (found.value, found.low, found.high)
    )
    return f"{value} ({low} to {high})"


def amdahl_us(samples_us: Mapping[Any, Sequence[float]], cores: int) -> float:
    """The latency on this number of cores, from those on one and on all cores of this machine."""
    median = {int(count): sorted(each)[len(each) // 2] for count, each in samples_us.items()}
    most = max(median)
    serial = 1.0 if most == 1 else min(1.0, max(0.0, (median[most] / median[1] - 1 / most) / (1 - 1 / most)))
    return median[1] * (serial + (1 - serial) / cores)


def simulated(models: Mapping[str, Model], of_set: Results) -> list[Results]:
    """SIMULATED: p50 and p99 of policies on more cores, at shares of the cores' time if each request has one."""
    found = []
    for cores in CORES:
        sizes = ModelPolicy().sizes(cores)
        by_cores = {name: {count: amdahl_us(of_set["by_cores_us"][name], count) for count in sizes} for name in models}
        policies = {
            "one core": ServingPolicy({name: ModelPolicy(((math.inf, 1),), most_waiting=10**6) for name in models}),
            "all cores": ServingPolicy(
                {name: ModelPolicy(((math.inf, cores),), most_waiting=10**6) for name in models}
            ),
            "by the load": ServingPolicy({name: ModelPolicy(most_waiting=10**6) for name in models}),
            "measured": ServingPolicy(
                {
                    name: ModelPolicy(cores_by_load(each, 1.0, cores), most_waiting=10**6)
                    for name, each in by_cores.items()
                }
            ),
        }
        for share in SHARES:
            rates = rates_of({name: each[1] for name, each in by_cores.items()}, share * cores)
            arrivals = poisson(rates, 0.0, SIMULATED_REQUESTS / sum(rates.values()), seed=1)
            for policy, each in policies.items():
                for model, latencies_us in simulate(each, cores, arrivals, by_cores).items():
                    ends = [quantile_under_load(latencies_us, part) for part in (0.5, 0.99)]
                    values = [None if found is None else found.value for found in ends]
                    row = dict(zip(("p50_us", "p99_us"), values, strict=True))
                    found.append({"cores": cores, "share": share, "policy": policy, "model": model, **row})
    return found


def simulate(
    policy: ServingPolicy, cores: int, arrivals: Sequence[Arrival], latency_us: Mapping[str, Mapping[int, float]]
) -> dict[str, list[float]]:
    """Microseconds from the arrival to the end of each request, by model; infinite if it is refused."""
    dispatcher, ends, ended_s = (
        Dispatcher(cores, replace(policy, overlap_ratio=None)),
        list[tuple[float, int]](),
        [math.inf] * len(arrivals),
    )

    for name, of_model in latency_us.items():
        sizes = policy.of(name).sizes(cores)
        dispatcher.opened(name, {count: each_us / 1e6 for count, each_us in of_model.items() if count in sizes})

    def start(starts: Sequence[Start], now_s: float) -> None:
        for each in starts:
            number = int(str(each.request))
            ended_s[number] = now_s + latency_us[arrivals[number].model][len(each.block)] / 1e6
            heapq.heappush(ends, (ended_s[number], number))

    def finish(until_s: float) -> None:
        while ends and ends[0][0] <= until_s:
            now_s, number = heapq.heappop(ends)
            start(dispatcher.ended(number, now_s), now_s)

    for number, each in enumerate(arrivals):
        finish(each.at_s)
        try:
            start(dispatcher.arrived(number, each.model, each.at_s), each.at_s)
        except BusyError:
            continue
    finish(math.inf)
    found: dict[str, list[float]] = {name: [] for name in latency_us}
    for each, end_s in zip(arrivals, ended_s, strict=True):
        found[each.model].append((end_s - each.at_s) * 1e6)
    return found


def capacity_of(sets: Mapping[str, Results], indices: str) -> float:
    """Times one model alone."""
    found: float = sets[indices]["load"]
    return found


def simulated_table(simulated: Mapping[str, Sequence[Results]], indices: str, shares: str = "") -> Table:
    """A row for each policy on each number of cores; `shares` as in `ratio_table`."""
    asked = [*map(float, shares.split())]
    cells = [
        (
            *(each["cores"], f"{each['share']:.0%}", each["model"], each["policy"]),
            *("unknown" if each[key] is None else f"{each[key] / 1e3:.1f} ms" for key in ("p50_us", "p99_us")),
        )
        for each in simulated[indices]
        if not asked or each["share"] in asked
    ]
    return ["cores (simulated)", "load", "model", "policy", "p50", "p99"], cells


if __name__ == "__main__":
    main()
