"""Compares schedules that need no search with the one that is searched, on this CPU or simulated GPUs.

    python benchmarks/candidates.py --devices cpu [--networks zoo:squeezenet,...] [-o results.json]
    python benchmarks/candidates.py --devices v100,t4,a100,h100 -o results.json

On the CPU, whole models run interleaved after a search with the effort of `optimize`; on a simulated GPU, the analytic
model computes their latencies. Rows in the results file are kept. `lanes` is list scheduling, `session` the rewritten
model in one session of onnxruntime.

Options:
    --rounds: samples of each schedule on the CPU
    --seconds: time limit for the search of a model on the CPU
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from command_line import read_options
from cpu_models import cpu_model, short_name
from result_tables import NAMES, Table, compared, print_table, ratio_text
from results_files import resumed_results, write_results
from testbed import in_turn

from iosched import Model, Schedule
from iosched.jobs.open_model import opened
from iosched.jobs.schedules import priced, schedule_by
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import OpenModel, Way
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import Interval
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.strategies import ONE_SESSION, StrategyName

NETWORKS = ("zoo:squeezenet", "zoo:googlenet", "zoo:inception_v3", "zoo:randwire", "zoo:nasnet_a", "zoo:nasnet_a@224")
UNSEARCHED: tuple[StrategyName, ...] = ("sequential", "greedy", "lanes")
SEARCHED: StrategyName = "both"
NEAR = 1.03


def main() -> None:
    options = read_options(
        __file__, devices=("cpu",), networks=NETWORKS, rounds=40, seconds=120.0, profile_db=Path, output=Path
    )
    rows: list[dict[str, Any]] = resumed_results(options.output).get("rows", [])
    done = {(row["device"], row["network"]) for row in rows}
    for device in options.devices:
        for name in options.networks:
            if (device, short_name(name)) not in done:
                row = {"device": device, "network": short_name(name), **tried(cpu_model(name), device, options)}
                rows.append(row)
                write_results(options, {"rows": rows}, rivals=["openvino"], goes_on=True)
    print_table(*table(rows))
    for line in summary(rows):
        print(line)


def tried(model: Model, device: str, options: Any) -> dict[str, Any]:
    """Microseconds by schedule: samples on the CPU, one number on a simulated GPU; and the seconds for each."""
    with opened(resolve(device, model), model, OpenSettings(), options.profile_db) as there:
        schedules, seconds = dict[str, Schedule](), dict[str, float]()
        for strategy in (*UNSEARCHED, SEARCHED):
            began_s = time.monotonic()
            end_s = began_s + options.seconds
            deadline = (lambda end_s=end_s: time.monotonic() > end_s) if there.attached is not None else None
            schedules[strategy] = schedule_by(there, strategy, deadline=deadline).schedule
            seconds[strategy] = time.monotonic() - began_s
        return {"us": _latencies(there, model, schedules, options), "seconds": seconds}


def _latencies(
    there: OpenModel, model: Model, schedules: Mapping[str, Schedule], options: Any
) -> Mapping[str, Sequence[float]]:
    here = there.attached
    if here is None:
        return {name: [priced(there, each).predicted_us or 0.0] for name, each in schedules.items()}
    inputs = random_inputs(model.graph.inputs)
    ways = {**{name: Way(schedule) for name, schedule in schedules.items()}, **here.one_after_another()}
    openers = {name: partial(here.ready, way, inputs) for name, way in ways.items()}
    measured = in_turn(openers, Budget(options.rounds, 120.0), here.in_turn)
    return {name: each.samples_us for name, each in measured.items()}


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Latency of the schedule found, and its speedup over each schedule without a search."""
    names = [name for name in (*UNSEARCHED, ONE_SESSION) if all(name in row["us"] for row in rows)]
    headers = ["device", "network", "found", *(f"found over {name}" for name in names)]
    return headers, [_row(row) for row in rows]


def _row(row: Mapping[str, Any]) -> list[str]:
    ratios = _ratios(row)
    found_ms = f"{median(row['us'][SEARCHED]) / 1e3:.2f} ms"
    is_measured = len(row["us"][SEARCHED]) > 1
    cells = (ratio_text(each) if is_measured else f"{each.value:.3f}" for each in ratios.values())
    return [row["device"], NAMES.get(row["network"], row["network"]), found_ms, *cells]


def _ratios(row: Mapping[str, Any]) -> Mapping[str, Interval]:
    """Speedup of the schedule found, by the name of the other one."""
    found: Mapping[str, Sequence[float]] = row["us"]
    others = [name for name in (*UNSEARCHED, ONE_SESSION) if name in found]
    if len(found[SEARCHED]) > 1:
        return {name: compared(found, name)[SEARCHED] for name in others}
    exact = {name: found[name][0] / found[SEARCHED][0] for name in others}
    return {name: Interval(value, value, value) for name, value in exact.items()}


def summary_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """`summary` as a list for a page."""
    return "\n".join(f"- {line}." for line in summary(rows))


def summary(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """For each device, how often each is close to the schedule found, and how often it is clearly faster."""
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [_ratios(row) for row in rows if row["device"] == device]
        for name in own[0]:
            near = sum(each[name].value <= NEAR for each in own)
            wins = sum(each[name].high < 1 for each in own)
            mean = geometric_mean([each[name].value for each in own])
            yield (
                f"{device}: {name} within 3 % on {near} of {len(own)}, clearly faster on {wins}; "
                f"the schedule found is {mean:.3f} times as fast in the geometric mean"
            )


if __name__ == "__main__":
    main()
