"""How near sums of stages are to whole models after their weights are flushed line by line, and after other bytes.

    python benchmarks/cache_flush.py MODEL... [--rounds 9] [-o results/cache-flush.json]

A model is named as in `cpu_models.py`. Two schedules of each, one operator after another and one found by a search,
are measured as wholes and stage by stage, with all methods interleaved. *seconds* is the time that the stages of one
round take by a method, preparation of the caches included. Models are added to those that the file has.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
from cpu_models import cpu_model, short_name
from sweeps import Subject, ratio_text, subject
from testbed import print_table, write_results

from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.sweep import swept_amid
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.measuring.statistics import quantile
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.native import FLUSH_WEIGHTS
from iosched.runtime.inputs import Arrays, random_inputs
from iosched.runtime.processor import read_processor
from iosched.scheduler.baselines import sequential
from iosched.scheduler.search import search

RUNS, IN_A_ROW = 10, 5
HEADERS = (
    "model",
    "weights MB",
    "method",
    "sequential: sum / whole",
    "found: sum / whole",
    "found / sequential off",
    "seconds",
)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("-o", "--output", type=Path, help="raw results as JSON; models are added to those in it")
    options = parser.parse_args(words)
    found: dict[str, Any] = {}
    if options.output is not None and options.output.exists():
        found = json.loads(options.output.read_text(encoding="utf-8"))["models"]
    for source in options.models:
        if short_name(source) in found:
            continue
        found[short_name(source)] = observed(source, options.rounds)
        print_table(HEADERS, rows(short_name(source), found[short_name(source)]))
        write_results(options, Path(__file__).stem, words, {"models": found}, goes_on=True)
    print_table(HEADERS, [row for name, one in found.items() for row in rows(name, one)])
    print_table(("method", "sum / whole", "found / sequential off"), summary(found))


def observed(source: str, rounds: int) -> dict[str, Any]:
    """The latencies of the whole model by both schedules, and the sums of its stages by each method, round by round."""
    model = cpu_model(source)
    with ProfileDatabase(None) as database:
        there = CpuDevice().open(model, OpenSettings(), database)
        backend = there.cost.backend
        own_nbytes = there.cost.lanes * read_processor().own_cache_nbytes
        methods = {"as now": swept_amid(backend), "twice own caches": 2 * own_nbytes, "flush": FLUSH_WEIGHTS}
        schedules = {"sequential": sequential(there.graph)}
        schedules["found"] = search(there.graph, there.cost, effort=there.effort).schedule
        subjects = {name: subject(there, schedule) for name, schedule in schedules.items()}
        inputs = random_inputs(model.graph.inputs)
        taken = [
            {name: turn(each, inputs, methods, backwards=number % 2 == 1) for name, each in subjects.items()}
            for number in range(1 + rounds)
        ]
        there.close()
    return {"weights_nbytes": backend.weights_nbytes, "methods": methods, "rounds": taken[1:]}


def turn(taken: Subject, inputs: Arrays, methods: Mapping[str, int], *, backwards: bool) -> dict[str, Any]:
    """Microseconds of the whole, and for each method of the sum of its stages, and the seconds they took."""
    sums_us, seconds = dict.fromkeys(methods, 0.0), dict.fromkeys(methods, 0.0)
    order = list(methods.items())[:: -1 if backwards else 1]
    for stage, count in taken.stages:
        for name, nbytes in order:
            started = time.perf_counter()
            sums_us[name] += count * quantile(stage.time(1 + RUNS, sweep_nbytes=nbytes)[1:], 0.5)
            seconds[name] += time.perf_counter() - started
    whole_us = quantile(taken.whole.time(inputs, 2 + IN_A_ROW)[2:], 0.5)
    return {"whole": whole_us, "sums": sums_us, "seconds": seconds}


def ratios(one: Mapping[str, Any], schedule: str, method: str) -> list[float]:
    """The sum of stages over the whole, round by round."""
    return [each[schedule]["sums"][method] / each[schedule]["whole"] for each in one["rounds"]]


def off(one: Mapping[str, Any], method: str) -> float:
    """By how much found/sequential of the sums differs from that of wholes, as a share; the median over rounds."""
    found = zip(ratios(one, "found", method), ratios(one, "sequential", method), strict=True)
    return abs(median(a / b for a, b in found) - 1)


def rows(name: str, one: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            *(name, f"{one['weights_nbytes'] / 1e6:.1f}", method),
            *(ratio_text(ratios(one, schedule, method)) for schedule in ("sequential", "found")),
            f"{off(one, method):.1%}",
            f"{median(sum(each[s]['seconds'][method] for s in each) for each in one['rounds']):.2f}",
        ]
        for method in one["methods"]
    ]


def summary(found: Mapping[str, Any]) -> list[list[str]]:
    def mean(method: str) -> float:
        each = [median(ratios(one, schedule, method)) for one in found.values() for schedule in ("sequential", "found")]
        return geometric_mean(each)

    methods = next(iter(found.values()))["methods"] if found else {}
    return [[m, f"{mean(m):.3f}", f"{np.mean([off(one, m) for one in found.values()]):.1%}"] for m in methods]


if __name__ == "__main__":
    main(sys.argv[1:])
