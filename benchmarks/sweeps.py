"""Effect of the bytes flushed through the caches before each run on stage latencies, on this machine's CPU.

    python benchmarks/sweeps.py [--models 'inception:64 0,light_squeezenet,...'] [--rounds 31] [--seconds 15]
                                [--minutes 5] [--list] [-o F.json]

A stage is measured after a flush of about as many bytes as its model has weights (`flushed_nbytes`). For models of many
sizes, the sequential schedule and the schedule found are measured within each round: the sum of their stages after
flushes of a quarter to four times the weights, and the whole schedule in a row. A rule that flushes another number of
bytes is one of these sums or lies between two; the second table compares rules. The third has a stage that computes
nearly nothing, after the same flushes: it shows the data besides weights that must be read again.

Models are numbered variants of the built-in spaces, drawn as in `exploring.py`, networks of `predicted.py` (`small 3`),
and the `light_*` of the onnx package. Models in the results file are not measured again: repeat the call until it
reports that nothing is missing.

Options:
    --rounds: maximum for each model
    --seconds: time limit for starting another round of a model
    --minutes: time limit of this call
    --list: print what is missing, and measure nothing
    --output: raw results as JSON
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from command_line import read_options
from cpu_models import cpu_model, model_of
from exploring import drawn
from onnx import helper
from predicted import small_network
from result_tables import print_table
from results_files import resumed_results, write_results
from testbed import open_on_cpu

from iosched import Model, Schedule, Stage, Strategy, load_model, search
from iosched.models.spaces.space import PREFIX, find_space
from iosched.profiler.devices.cpu.cache_flush import LEAST_FLUSHED, MOST_FLUSHED, flushed_nbytes
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, quantile
from iosched.runtime.cpu.backend import CompiledModel, CompiledStage, CpuBackend
from iosched.runtime.inputs import random_inputs
from iosched.runtime.processor import read_processor
from iosched.scheduler.baselines import sequential
from iosched.scheduler.signature import Signatures

MODELS = (
    *("small 2", "inception:64 6", "darts:64 0", "inception:64 0", "nasnet:64 4", "inception:64 1", "inception:64 4"),
    *("small 3", "pelee:64 3", "pelee:64 1", "light_squeezenet", "light_shufflenet", "pelee:64 4", "pelee:64 0"),
    *("mnasnet:64 3", "mnasnet:64 1", "mnasnet:64 5", "light_inception_v1", "light_resnet50"),
)
QUARTERS = (-8, -4, -2, -1, 0, 1, 2, 4, 8)
"""Flush sizes relative to the bytes of the weights, in quarters of a doubling."""

RUNS, IN_A_ROW = 3, 5
MIB = 1 << 20
LEAST_MODEL_S = 60.0

Observed = Mapping[str, Any]
"""Of a model: its `weights_nbytes`, the `own_cache_nbytes` of the cores, and of each schedule its `stages` (how many
are like each) and what each round's `whole` and `sums` by quarters took in microseconds; `stage_us`, medians over the
rounds, has all sums by stage."""


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, models=MODELS, rounds=31, seconds=15.0, minutes=5.0, list=False, output=Path
    )
    deadline = time.monotonic() + 60 * options.minutes
    known = resumed_results(options.output)
    found: dict[str, Observed] = known.get("models", {})
    left = [name for name in options.models if name not in found]
    if options.list:
        print("\n".join(left))
        return
    nothing: Mapping[str, float] = known.get("next to nothing") or next_to_nothing()
    for name in left:
        if deadline - time.monotonic() < LEAST_MODEL_S:
            print(f"time is up before {name}; call again to go on", file=sys.stderr)
            break
        found[name] = observed(named_model(name), options.rounds, options.seconds)
        write_results(options, {"models": found, "next to nothing": nothing})
    else:
        print("nothing is missing", file=sys.stderr)
    print_table(*rules_table(found))


def next_to_nothing() -> dict[str, float]:
    """Microseconds of a stage that negates 16 numbers, by the flush before it."""
    with CpuBackend(load_model(model_of([helper.make_node("Neg", ["x"], ["y"])], ["x"], ["y"], (1, 16)))) as backend:
        stage = backend.compile_stage(Stage(Strategy.CONCURRENT, ((backend.graph.operators[0].name,),)))
        assert stage is not None
        swept = [LEAST_FLUSHED << doubled for doubled in range((MOST_FLUSHED // LEAST_FLUSHED).bit_length())]
        return {str(nbytes): round(median(stage.time(105, flush_nbytes=nbytes)[5:]), 2) for nbytes in swept}


def named_model(name: str) -> Model:
    """A model by its name in this script."""
    if name.startswith("light_"):
        return cpu_model(name)
    family, number = name.split()
    if family == "small":
        return load_model(small_network(int(number)), name=name)
    space = find_space(PREFIX + family)
    return drawn(space, space.base_model(), int(number)).model


def observed(model: Model, rounds: int, seconds: float) -> Observed:
    """Latencies of the model's schedules and of their stages, round by round."""
    with open_on_cpu(model) as there:
        schedules = {"sequential": sequential(there.graph)}
        schedules["found"] = search(there.graph, there.cost, effort=there.effort).schedule
        subjects = {name: subject(there, schedule) for name, schedule in schedules.items()}
        inputs = random_inputs(model.graph.inputs)
        weights_nbytes, lanes = there.cost.backend.weights_nbytes, there.cost.lanes
        swept, deadline = sweeps(weights_nbytes), time.monotonic() + seconds
        turns: list[dict[str, Turn]] = []
        while len(turns) <= LEAST_SAMPLES or (len(turns) <= rounds and time.monotonic() < deadline):
            backwards = len(turns) % 2 == 1
            turns.append({name: each.turn(inputs, swept, backwards=backwards) for name, each in subjects.items()})
    return {
        "weights_nbytes": weights_nbytes,
        "own_cache_nbytes": lanes * read_processor().own_cache_nbytes,
        "schedules": {name: each.summary([turn[name] for turn in turns[1:]]) for name, each in subjects.items()},
    }


def sweeps(weights_nbytes: int) -> dict[int, int]:
    """Flush sizes by quarters of a doubling; the bytes of the weights are limited to the bounds of a flush."""
    near = within_bounds(weights_nbytes)
    found = {quarters: int(near * 2 ** (quarters / 4)) for quarters in QUARTERS}
    return {quarters: nbytes for quarters, nbytes in found.items() if nbytes <= MOST_FLUSHED}


def within_bounds(weights_nbytes: int) -> int:
    return min(max(weights_nbytes, LEAST_FLUSHED), MOST_FLUSHED)


Turn = tuple[float, dict[int, list[float]]]
"""Latency of the whole, and of each distinct stage by quarters of a doubling."""


@dataclass(frozen=True)
class Subject:
    """A schedule that is ready to be measured, and its distinct stages with their numbers."""

    whole: CompiledModel
    stages: Sequence[tuple[CompiledStage, int]]

    def turn(self, inputs: Mapping[str, np.ndarray], swept: Mapping[int, int], *, backwards: bool) -> Turn:
        order = list(reversed(swept.items())) if backwards else list(swept.items())
        found: dict[int, list[float]] = {quarters: [] for quarters in swept}
        for stage, _count in self.stages:
            for quarters, nbytes in order:
                found[quarters].append(quantile(stage.time(1 + RUNS, flush_nbytes=nbytes)[1:], 0.5))
        return quantile(self.whole.time(inputs, 2 + IN_A_ROW)[2:], 0.5), found

    def summary(self, turns: Sequence[Turn]) -> Mapping[str, Any]:
        counts, rounds, stage_us = [count for _stage, count in self.stages], [], {}
        for whole, found in turns:
            sums = {str(key): round(float(np.dot(each, counts)), 2) for key, each in found.items()}
            rounds.append({"whole": round(whole, 2), "sums": sums})
        for key in turns[0][1]:
            columns = zip(*(found[key] for _, found in turns), strict=True)
            stage_us[str(key)] = [round(median(column), 2) for column in columns]
        return {"stages": counts, "rounds": rounds, "stage_us": stage_us}


def subject(there: OpenOnCpu, schedule: Schedule) -> Subject:
    """The schedule as a whole, and its distinct stages."""
    backend, cost = there.cost.backend, there.cost
    signatures = Signatures(backend.graph, lambda operator: cost.operator_key(operator.name))
    alike: dict[tuple[str, str], list[Any]] = {}
    for stage in schedule.stages:
        alike.setdefault((signatures.of(stage), signatures.of_division(stage)), []).append(stage)
    stages = [(backend.compile_stage(each[0]), len(each)) for each in alike.values()]
    return Subject(backend.compile(schedule), [(stage, count) for stage, count in stages if stage is not None])


Rule = Callable[[int, int], float]
"""Bytes to flush, by the bytes of the weights and of the cores' private caches."""


def nearest_quarter(weights_nbytes: int, own_cache_nbytes: int) -> float:
    """One of four steps for each doubling."""
    del own_cache_nbytes
    return float(2 ** (round(4 * math.log2(within_bounds(weights_nbytes))) / 4))


RULES: Mapping[str, Rule] = {
    "as many bytes as the weights": lambda weights_nbytes, _own: within_bounds(weights_nbytes),
    "the nearest of four steps for each doubling, as before": nearest_quarter,
    "the same from 2 to 8 MiB, coarser above and below, as now": flushed_nbytes,
    "512 KiB for all": lambda _weights, _own: MIB / 2,
    "8 MiB for all": lambda _weights, _own: 8 * MIB,
}


def rules_table(found: Mapping[str, Observed]) -> tuple[tuple[str, ...], list[list[str]]]:
    """By rule, errors of the sums against whole schedules, and of the speedup of the schedule found."""
    headers = ("flushed", "sum / whole, median", "off", "below 8 MiB of weights", "above", "found / sequential is off")
    rows = []
    for name, rule in RULES.items():
        models = [(one["weights_nbytes"], errors(one, rule)) for one in found.values()]
        every = [(nbytes, error) for nbytes, each in models for error in each.values()]
        small, large = ([abs(e) for nbytes, e in every if (nbytes < 8 * MIB) is below] for below in (True, False))
        ratios = [abs(each["found"] - each["sequential"]) for _, each in models]
        middle = math.exp(median(error for _, error in every))
        rows.append([name, f"{middle:.3f}", *(percent(each) for each in (small + large, small, large, ratios))])
    return headers, rows


def errors(one: Observed, rule: Rule) -> Mapping[str, float]:
    """By schedule, the logarithm of the sum after the flush of the rule over the whole."""
    swept = rule(one["weights_nbytes"], one["own_cache_nbytes"])
    place = 4 * math.log2(swept / within_bounds(one["weights_nbytes"]))
    return {
        name: median(math.log(sum_at(turn["sums"], place) / turn["whole"]) for turn in taken["rounds"])
        for name, taken in one["schedules"].items()
    }


def sum_at(sums: Mapping[str, float], place: float) -> float:
    """The sum at n quarters of a doubling, by linear interpolation; constant beyond those measured."""
    quarters = sorted(map(int, sums))
    return float(np.interp(place, quarters, [sums[str(each)] for each in quarters]))


def percent(parts: Sequence[float]) -> str:
    return f"{mean(parts):.1%}" if parts else ""


if __name__ == "__main__":
    main()
