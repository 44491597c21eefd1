"""Several models in one file: latency of `batch`, compared with one model after another and with all concurrently.

    python benchmarks/batching.py [--families mnasnet-224,mnasnet-64,squeezenet,heads] [--counts 2,4,8,16] [--minutes 5]
                                  [--list] [-o F.json]
    python benchmarks/batching.py --paper [--device p100] [--models 1000] [--together 100] [--images 8] [-o F.json]

The first form measures on this machine (`--device cpu`). Networks of the family `mnasnet-SIZE` are sampled from a space
around MobileNetV2. `squeezenet` is one network with other weights in each model. `heads` is one network with another
last layer in each model, on one image. A case is a family and a number of models. Cases in the results file are not
measured again: repeat the call until it reports that nothing is missing. Stage latencies are in `results/batching/`; an
unfinished case continues with them in the next call.

The second form plans the setting of DPBat (1,000 sampled networks, a hundred together, eight images each) for a GPU
that is not attached: the sequential latency of all operators by the analytic model, with kernels launched one by one,
by policy and by type of operator, and the time of planning. Batches in the results file are not planned again. With
`--alike same`, all networks are one network with weights of its own each, the most similar case. With `--alike frozen`,
all weights are equal except squeeze and excitation and the last layer, as for adapters of one network. Policies are
compared with concurrent models, each on a stream of its own (`packed`). `--alike heads` runs `batch` on heads on one
backbone, one image of 224 pixels.

Options:
    --counts: numbers of models
    --device: 'cpu', or a GPU to plan for with --paper; by default 'cpu' and 'p100'
    --minutes: time limit of this call
    --list: print what is missing, and measure nothing
    --size: pixels of an image's side, with --paper
    --alike: with --paper
    --output: raw results as JSON
"""

from __future__ import annotations

import math
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from command_line import read_options
from onnx import numpy_helper
from result_tables import interval_text, print_table
from results_files import RESULTS, resumed_results, write_results

from iosched import Model, load_model
from iosched.jobs.batch import CUT_SHORT, BatchResult, BatchSettings, batch
from iosched.jobs.batching.batch_baselines import OpenComposition, packed_schedule
from iosched.jobs.batching.model_clusters import Cluster, composed
from iosched.jobs.batching.sampled_costs import SampledCosts
from iosched.jobs.schedules import priced
from iosched.models import zoo
from iosched.models.batching.rewrite import weightless
from iosched.models.zoo.mnasnet import sampled
from iosched.profiler.devices.analytic.kernels import kernels_of
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.profiled_device import OpenModel
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import summarize
from iosched.scheduler.baselines import sequential
from iosched.scheduler.batching.costs import interpolated

Result = TypeVar("Result")
LEAST_CASE_S = 60.0
LEAST_MANY = 4  # minimum number of models for which concurrency should pay
MOST_CALLS = 3  # for one case; each resumes the measurements of the previous one
PolicyResult = dict[str, Any]
"""A policy's result for some models: `latency_us` by type of operator, how many `kernels` that is, what the plan is
worth by its own prices (`worth_us`), `seconds` of planning, and how many operators are `batched` in `groups`."""

_EXCITED = 1  # the network of the settings in which all are one
SMALL = 64
"""Smaller floating-point constants are parameters of an operator, not learned weights."""

POLICIES = ("serial", "fcfs", "greedy", "dpbat")
PUBLISHED = {"serial": 2.1, "fcfs": 1.92, "greedy": 1.25}
"""DPBat's speedup over these, by the paper's evaluation; its abstract has 3.7 over one."""


def main() -> None:
    alike = {"choices": ("sampled", "same", "frozen", "heads"), "default": "sampled"}
    options = read_options(
        __file__, families=("mnasnet-224", "mnasnet-64", "squeezenet", "heads"), counts=(2, 4, 8, 16), device=str,
        threads=int, minutes=5.0, list=False, work=RESULTS / "batching", paper=False, models=1000, together=100,
        images=8, size=224, alike=alike, output=Path,
    )  # fmt: skip
    on_paper(options) if options.paper else measured(options)


def measured(options: Namespace) -> None:
    deadline = time.monotonic() + 60 * options.minutes
    known = resumed_results(options.output)
    cases: dict[str, dict[str, Any]] = known.get("cases", {})
    asked = [(family, int(count)) for family in options.families for count in options.counts]
    missing = [(family, count) for family, count in asked if is_missing(cases.get(title(family, count)))]
    for family, count in missing:
        name = title(family, count)
        if options.list:
            print(name)
        while not options.list and is_missing(cases.get(name)):
            if deadline - time.monotonic() < LEAST_CASE_S:
                print(f"time is up before {name}; call again to go on", file=sys.stderr)
                return
            cases[name] = case(family, count, options, deadline, cases.get(name))
            write_results(options, {"cases": cases}, goes_on=True)
    if options.list:
        return
    print_table(*table(cases))
    print(summary(cases))
    print("nothing is missing", file=sys.stderr)


def table(cases: Mapping[str, Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The measurements of reports/batching.md; `over the better` is of one after another and all concurrently."""
    titles = ("models", "serial", "packed", "batched", "mixed", "shipped", "over the better", "over serial", "seconds")
    return (*titles, "weights"), [row(name, found) for name, found in cases.items()]


def summary(cases: Mapping[str, Mapping[str, Any]]) -> str:
    """Geometric means over the cases of unequal weights of `over the better`, and from 4 models on of `over serial`."""
    unequal = {name: found for name, found in cases.items() if not name.startswith("heads")}
    many = {name: found for name, found in unequal.items() if int(name.rpartition(" ")[2]) >= LEAST_MANY}
    over_better, over_serial = (
        mean_text([gain(found, over) for found in each.values() if len(found["clusters"]) == 1])
        for each, over in ((unequal, ("serial", "packed")), (many, ("serial",)))
    )
    return (
        f"For models of unequal weights, the geometric mean over the better is {over_better}. "
        f"From {LEAST_MANY} models on, it is {over_serial} over serial."
    )


def mean_text(gains: Sequence[tuple[float, float, float]]) -> str:
    """The geometric mean of separately measured ratios, and its interval from independent logarithms."""
    if not gains:
        return "nothing"
    logs = np.log(np.array(gains)).reshape(-1, 3)
    middle = logs[:, 0].mean()
    below, above = (np.sqrt(((logs[:, end] - logs[:, 0]) ** 2).sum()) / len(logs) for end in (1, 2))
    low, mean, high = np.exp([middle - below, middle, middle + above])
    return f"{interval_text(mean, low, high, '.3f')} in {len(logs)} cases"


def title(family: str, count: int) -> str:
    return f"{family} x {count}"


def is_missing(found: Mapping[str, Any] | None) -> bool:
    """Whether a case was not measured, or its calls ran out of time for its prices and searches."""
    return found is None or (len(found["calls"]) < MOST_CALLS and bool(found["calls"][-1]["cut_short"]))


def case(
    family: str, count: int, options: Namespace, deadline: float, before: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Measurements of a case: all samples, and the time of planning, searching and comparing, call by call."""
    models = {f"m{seed}": load_model(proto.SerializeToString()) for seed, proto in enumerate(networks(family, count))}
    options.work.mkdir(parents=True, exist_ok=True)
    budget_s = deadline - time.monotonic()
    settings = BatchSettings(
        device=options.device or "cpu", threads=options.threads, budget_s=budget_s,
        profile_db=options.work / "profile.sqlite", shared_inputs=("input",) if family == "heads" else (),
    )  # fmt: skip
    found: BatchResult = batch(models, settings)
    cut_short = any(CUT_SHORT in each.notes for each in found.clusters)
    calls = [] if before is None else before["calls"]
    return {
        "clusters": [
            {
                "models": len(each.members),
                "shipped": each.shipped,
                "samples_us": {one.name: one.latency.samples_us for one in each.rows},
                "rested_us": {one.name: one.rested_us for one in each.rows},
                "how": {one.name: one.how for one in each.rows},
                "batched": each.batched,
                "shared": each.shared,
            }
            for each in found.clusters
        ],
        "notes": [*found.notes, *(note for each in found.clusters for note in each.notes)],
        "weights_nbytes": [found.memory.alone_nbytes, found.memory.together_nbytes],
        "calls": [*calls, {"seconds": found.seconds, "budget_s": budget_s, "cut_short": cut_short}],
    }


def networks(family: str, count: int) -> Iterator[onnx.ModelProto]:
    """A number of networks of a family."""
    for seed in range(count):
        if family.startswith("mnasnet-"):
            yield sampled(seed, int(family.removeprefix("mnasnet-")))
        elif family == "squeezenet":
            yield reweighted(zoo.build("squeezenet"), seed, lambda name: True)
        else:
            yield reweighted(sampled(0), seed, lambda name: name.startswith("output"))


def reweighted(proto: onnx.ModelProto, seed: int, is_own: Callable[[str], bool]) -> onnx.ModelProto:
    """The network with permuted elements of its own large weights."""
    random = np.random.default_rng(seed)
    for tensor in proto.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if is_own(tensor.name) and values.dtype.kind == "f" and values.size >= SMALL:
            mixed = random.permutation(values.reshape(-1)).reshape(values.shape)
            tensor.CopyFrom(numpy_helper.from_array(mixed, tensor.name))
    return proto


def row(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """A case in a table; for several clusters, which have no common rounds, only sums of medians."""
    clusters = found["clusters"]
    samples = [each["samples_us"] for each in clusters]
    rows = {way: sum(summarize(each[way]).median_us for each in samples) for way in samples[0]}
    shown = [f"{rows[way] / 1e3:.2f} ms" if way in rows else "" for way in ("serial", "packed", "batched", "mixed")]
    shipped = ", ".join(dict.fromkeys(each["shipped"] for each in clusters))
    over = ["", ""]
    if len(clusters) == 1:
        over = [ratio_text(gain(found, ways)) for ways in (("serial", "packed"), ("serial",))]
    weights = " of ".join(f"{each / 1e6:.1f} MB" for each in reversed(found["weights_nbytes"]))
    return name, *shown, shipped, *over, f"{sum(each['seconds'] for each in found['calls']):.0f}", weights


def gain(found: Mapping[str, Any], over: Sequence[str]) -> tuple[float, float, float]:
    """Speedup of what ships over the faster of the rows `over`, with its interval: 1 if the same, NaN without one.

    Args:
        found: a case of one cluster.
    """
    (cluster,) = found["clusters"]
    samples, shipped = cluster["samples_us"], cluster["shipped"]
    rows = {way: summarize(samples[way]) for way in over if way in samples}
    base = min(rows, key=lambda way: rows[way].median_us, default=None)
    compared = None if base in (None, shipped) else compare(rows[base], summarize(samples[shipped]))
    if compared is not None:
        return compared.value, compared.low, compared.high
    return (1.0, 1.0, 1.0) if base == shipped else (math.nan, math.nan, math.nan)


def ratio_text(ratio: tuple[float, float, float]) -> str:
    if math.isnan(ratio[0]):
        return ""
    return "1" if set(ratio) == {1} else interval_text(*ratio, ".3f")


def on_paper(options: Namespace) -> None:
    known = resumed_results(options.output)
    batches: dict[str, dict[str, PolicyResult]] = known.get("batches", {})
    for first in range(0, options.models, options.together):
        seeds = range(first, min(first + options.together, options.models))
        shape = f"{options.device or 'p100'}: {len(seeds)} {options.alike}, {options.images} x {options.size} pixels"
        name = f"{seeds[0]} to {seeds[-1]}, {shape}"
        if name not in batches:
            batches[name] = heads(seeds, options) if options.alike == "heads" else together(seeds, options)
            write_results(options, {"published": PUBLISHED, "batches": batches}, seeds={}, goes_on=True)


def together(seeds: range, options: Namespace) -> dict[str, PolicyResult]:
    """The plan of each policy for some networks, their concurrent latency, and the seconds of `composing` them."""
    models = {f"m{seed}": network(seed, options) for seed in seeds}
    cluster, seconds = timed(lambda: composed(models))
    light = Cluster(replace(cluster.composition, model=weightless(cluster.model)), cluster.ensemble)
    found = {policy: planned(light, policy, options.device or "p100") for policy in POLICIES}
    found["packed"] = packed(light, options.device or "p100")
    return {**found, "composing": {"seconds": seconds, "weights_nbytes": astuple(cluster.composition.weights)}}


def heads(seeds: range, options: Namespace) -> dict[str, PolicyResult]:
    """The rows of `batch` for heads on one backbone."""
    protos = zip(seeds, networks("heads", len(seeds)), strict=True)
    models = {f"m{seed}": load_model(proto.SerializeToString()) for seed, proto in protos}
    settings = BatchSettings(device=options.device or "p100", launch="streams", shared_inputs=("input",))
    found = batch(models, settings)
    return {"rows": {"latency_us": {row.name: row.latency_us for row in found.rows}, "shipped": found.shipped}}


def network(seed: int, options: Namespace) -> Model:
    """Network `seed` of the setting: all are sampled, or one network with individual or frozen weights."""
    if options.alike == "sampled":
        proto = sampled(seed, options.size)
    else:
        is_own = {"same": lambda name: True, "frozen": lambda name: "/excite" in name or name.startswith("output")}
        proto = reweighted(sampled(_EXCITED, options.size), seed, is_own[options.alike])
    return load_model(proto.SerializeToString(), batch_size=options.images)


def planned(cluster: Cluster, policy: str, device: str) -> PolicyResult:
    """Microseconds of all operators by type, launched one after another, with the kernels and the plan's own prices."""
    costs = SampledCosts(cluster.model, cluster.ensemble, lambda model: types_us(device, model).total(), in_turn=True)
    prices = interpolated(costs, len(cluster.composition.members))
    plan, seconds = timed(lambda: cluster.plan(policy, prices))
    model = cluster.batched(plan)
    kernels = sum(len(kernels_of(model.graph, operator)) for operator in model.graph.operators)
    found = {"latency_us": types_us(device, model), "kernels": kernels, "worth_us": plan.value_us(), "seconds": seconds}
    return {**found, "batched": len(plan.groups), "groups": len(plan.all_groups())}


def packed(cluster: Cluster, device: str) -> PolicyResult:
    """Microseconds of all networks concurrently, each one operator after another on its own stream."""
    with closing(launching(device, cluster.model)) as opened:
        found = packed_schedule(OpenComposition(cluster.model, cluster.composition.members, opened))
    return {"latency_us": found.schedule.predicted_us}


def launching(device: str, model: Model) -> OpenModel:
    """A model on a simulated GPU whose kernels are launched one by one."""
    return resolve(device).open(model, OpenSettings(launch="streams"), None)


def types_us(device: str, model: Model) -> Counter[str]:
    """Microseconds of all operators by type, one after another."""
    found: Counter[str] = Counter()
    with closing(launching(device, model)) as opened:
        for stage in priced(opened, sequential(opened.graph)).stages:
            found[opened.graph.by_name[stage.operators[0]].type] += stage.predicted_us or 0.0
    return found


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    """The result of `work`, and its seconds."""
    began = time.monotonic()
    return work(), time.monotonic() - began


if __name__ == "__main__":
    main()
