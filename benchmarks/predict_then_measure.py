"""Savings and losses of a CPU search by predicting stages: `--gap 2` compared with `--gap 0`, which predicts nothing.

    python benchmarks/predict_then_measure.py [MODEL...] [--pairs 3] [--gap 2] [--rounds 21] [-o results/F.json]

`cpu_models.py` explains the names. A pair is a search of each kind, each with an empty database in memory; the order
alternates. Then the schedules of all pairs run as whole models, interleaved, A B C A B C. A ratio is the speedup of the
predicting search's schedule over the other one of its pair. Results are added to those in the file.

Options:
    --pairs: number of pairs of searches
    --gap: compared with 0
    --rounds: samples of each schedule
    --output: raw results as JSON; calls are added to those in it
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from command_line import read_options
from cpu_models import cpu_model, short_name
from result_tables import NAMES, Table, compared, print_table
from results_files import resumed_results, write_results
from testbed import in_turn

from iosched import Model, Schedule, search
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import Way
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.inputs import random_inputs

MAX_SECONDS = 300.0  # for the interleaved runs of the schedules of a model


@dataclass(frozen=True)
class Searched:
    """One search; `stages` counts by all strategies and numbers of lanes."""

    gap_percent: float
    seconds: float
    stages: int
    measurements: int
    predicted_us: float
    predicted_gap: float | None


def main(words: Sequence[str] | None = None) -> None:
    takes = {"models": ["zoo:squeezenet", "light_shufflenet"]}
    options = read_options(__file__, words, takes, pairs=1, gap=2.0, rounds=21, output=Path)
    calls: list[dict[str, Any]] = resumed_results(options.output).get("calls", [])
    for name in options.models:
        calls.append(observed(name, options))
        write_results(options, {"calls": calls}, goes_on=True)
    print_table(*table(calls))
    ratios = [geometric_mean(pair_ratios(call)) for call in calls]
    print(f"geometric mean over {len(ratios)} calls: {geometric_mean(ratios):.3f}")


def observed(name: str, options: Namespace) -> dict[str, Any]:
    """All pairs of searches of one model, and interleaved latencies of all schedules."""
    model = cpu_model(name)
    found: dict[str, tuple[Searched, Schedule]] = {}
    with ExitStack() as open_things:
        lender = _opened(model, 0.0, open_things)
        for pair in range(options.pairs):
            for gap in (options.gap, 0.0)[:: 1 if pair % 2 == 0 else -1]:
                found[f"{pair} {'predicts' if gap else 'plain'}"] = _searched(model, gap, lender, open_things)
        inputs = random_inputs(model.graph.inputs)
        openers = {key: partial(lender.ready, Way(schedule), inputs) for key, (_, schedule) in found.items()}
        taken = in_turn(openers, Budget(options.rounds, MAX_SECONDS), lender.in_turn)
        samples_us = {key: [round(us, 2) for us in each.samples_us] for key, each in taken.items()}
    searches = {key: asdict(each) for key, (each, _) in found.items()}
    return {"model": short_name(name), "pairs": options.pairs, "searches": searches, "samples_us": samples_us}


def _opened(model: Model, gap: float, open_things: ExitStack, alongside: OpenOnCpu | None = None) -> OpenOnCpu:
    database = open_things.enter_context(ProfileDatabase(None))
    here = CpuDevice().open(model, OpenSettings(gap_percent=gap), database, alongside=alongside)
    open_things.callback(here.close)
    return here


def _searched(model: Model, gap: float, lender: OpenOnCpu, open_things: ExitStack) -> tuple[Searched, Schedule]:
    here = _opened(model, gap, open_things, lender)
    started = time.monotonic()
    result = search(here.graph, here.cost, effort=here.effort)
    seconds, cost = time.monotonic() - started, here.cost
    found = Searched(
        *(gap, round(seconds, 1), cost.signatures, cost.measurements),
        round(result.schedule.predicted_us or 0.0, 2),
        result.predicted_gap,
    )
    print(found, file=sys.stderr, flush=True)
    return found, result.schedule


def pair_ratios(call: Mapping[str, Any]) -> list[float]:
    """For each pair, the speedup of the predicting search's schedule: the median over rounds."""
    samples = call["samples_us"]
    pairs = [(samples[f"{pair} plain"], samples[f"{pair} predicts"]) for pair in range(call["pairs"])]
    return [median(a / b for a, b in zip(plain, predicts, strict=True)) for plain, predicts in pairs]


def table(calls: Sequence[Mapping[str, Any]]) -> Table:
    """A row of the report for each network: medians over its searches, and the speedup of each pair."""
    found = []
    for call in calls:
        searches = call["searches"].values()
        both = [[each for each in searches if bool(each["gap_percent"]) is way] for way in (True, False)]
        counts = (f"{median(each['stages'] for each in own):,}" for own in both)
        seconds = (f"{median(each['seconds'] for each in own):.1f}" for own in both)
        pairs = [compared(call["samples_us"], f"{pair} plain")[f"{pair} predicts"] for pair in range(call["pairs"])]
        found.append(
            [
                NAMES.get(call["model"], call["model"]),
                *counts,
                *seconds,
                ", ".join(f"{each.value:.2f}" for each in pairs),
            ]
        )
    headers = ["network", "stages measured: `--gap 2`", "`--gap 0`", "search, s: `--gap 2`", "`--gap 0`"]
    return [*headers, "speedup of each pair"], found


if __name__ == "__main__":
    main()
