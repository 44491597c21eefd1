"""Compares ways to order small networks by latency: FLOPs, sequential latency, sums of stages, and measured latency.

    python benchmarks/rank.py [--variants 60] [--size 64] [--passes 9] [--minutes 5] [-o F.json]

Networks are sampled from a space around MobileNetV2 (`models/zoo/mnasnet.py`). Each is optimized as `iosched optimize`
does it, with one profile database for all. `optimize` measures two networks minutes apart, and the speed of a shared
machine changes by a quarter in that time. So the true latency is measured separately: the shipped schedule of each
network runs interleaved with its sequential schedule and the calibration kernel, in several passes over all networks,
and is divided by the latency of the kernel.

Kendall's tau measures how well an order agrees with that of these latencies: 1 is the same order, 0 is no relation. Its
interval has the percentiles of bootstrap samples of the networks. Networks in the results file are not measured again:
repeat the call until it reports that nothing is missing. The database and the schedules are in `results/rank/`.

Options:
    --size: pixels of an image's side
    --minutes: time limit of this call
    --passes: repetitions of the true latency
    --output: raw results as JSON
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from command_line import read_options
from result_tables import Table, print_table
from results_files import RESULTS, resumed_results, write_results
from testbed import CALIBRATION, in_turn

from iosched import Model, OptimizeSettings, ScheduleDocument, load_model
from iosched.jobs.open_model import opened
from iosched.jobs.optimize import optimize
from iosched.jobs.ranking.model_cost import calibrated, model_cost
from iosched.models.zoo.mnasnet import sampled
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import quantile
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import WholeRow
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs

Variant = Mapping[str, Any]
LEAST_VARIANT_S, LEAST_PASS_S = 35.0, 8.0
PASS_ROUNDS = 3
FOR_NEW = 0.6  # share of a call's time for networks that are not optimized yet
RESAMPLES = 2000
LEVEL = 0.95
AT_A_TIME = 20  # networks per row of the table of seconds


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, variants=60, size=64, threads=int, minutes=5.0, passes=9, work=RESULTS / "rank", output=Path
    )
    started = time.monotonic()
    known = resumed_results(options.output)
    variants: dict[str, Variant] = known.get("variants", {})
    options.work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.size, OptimizeSettings("cpu", options.threads, profile_db=options.work / "profile.sqlite"))

    def taken(seeds: Sequence[int], share: float, least_s: float) -> None:
        """Measures these networks for that share of the time."""
        for seed in seeds:
            if started + share * 60 * options.minutes - time.monotonic() < least_s:
                print(f"time is up before {title(seed)}; call again to go on", file=sys.stderr)
                return
            before = variants.get(title(seed))
            variants[title(seed)] = bench.observed(seed) if before is None else bench.passed(seed, before)
            write_results(options, {"variants": variants}, goes_on=True)

    taken(missing(variants, options.variants), FOR_NEW, LEAST_VARIANT_S)
    taken(passes_left(variants, options.passes), 1.0, LEAST_PASS_S)
    if not missing(variants, options.variants) and not passes_left(variants, options.passes):
        print("nothing is missing", file=sys.stderr)
    print_table(*orders_table(variants))
    print_table(*seconds_table(variants))


def title(seed: int) -> str:
    return f"mnasnet-{seed}"


def missing(variants: Mapping[str, Variant], count: int) -> list[int]:
    """The networks that were not optimized yet."""
    return [seed for seed in range(count) if title(seed) not in variants]


def passes_left(variants: Mapping[str, Variant], passes: int) -> list[int]:
    """The networks in the order of further passes, each as often as it has fewer than that number."""
    seeds = [int(name.removeprefix(title(0)[:-1])) for name in variants]
    done = {seed: len(variants[title(seed)]["passes"]) for seed in seeds}
    return [seed for number in range(passes) for seed in seeds if done[seed] <= number]


@dataclass(frozen=True)
class Bench:
    """Conditions of the measurements."""

    size: int
    settings: OptimizeSettings

    def observed(self, seed: int) -> Variant:
        """Measurements of one network: all samples, the sums of its stages, and the seconds of the search."""
        started = time.monotonic()
        model = self.model(seed)
        loaded = time.monotonic()
        cost = model_cost(model, "models", self.settings)
        result, row = cost.result, newest(self.settings)
        assert result is not None
        self.document_path(seed).write_text(result.document.to_json())
        seconds = {"search": cost.search_seconds, "comparison": cost.comparison_seconds}
        return {
            "flops": model.flops,
            "params": model.n_parameters,
            "operators": len(model.graph.operators),
            "shipped": result.shipped,
            "stages": row.stages,
            "sum_us": row.sum_us,
            "sequential_sum_us": row.sequential_sum_us,
            "samples_us": {
                name.replace("iosched", "measured"): rounded(whole.samples_us) for name, whole in result.wholes.items()
            },
            "measurements": result.measurements,
            "cache_hits": result.cache_hits,
            "seconds": {"load": loaded - started, **seconds},
            "passes": [],
        }

    def passed(self, seed: int, before: Variant) -> Variant:
        """The same with one more pass: shipped plan, sequential schedule and calibration kernel, interleaved."""
        model, settings = self.model(seed), self.settings
        path = self.document_path(seed)
        document = ScheduleDocument.from_json(path.read_text()) if path.exists() else optimize(model, settings).document
        path.write_text(document.to_json())
        device, inputs = CpuDevice(), random_inputs(model.graph.inputs)
        with opened(device, model, settings.opening, settings.profile_db) as there:
            assert isinstance(there, OpenOnCpu)
            openers = {
                "shipped": lambda: device.executor(model, document, settings.threads).ready(inputs),
                "sequential": lambda: there.ready(there.one_after_another()["sequential"], inputs),
                CALIBRATION: lambda: Candidate(compile_calibration_kernel(there.cost.backend).time),
            }
            found = in_turn(openers, Budget(PASS_ROUNDS, 10.0, PASS_ROUNDS), there.in_turn)
            reference = there.cost.database.calibration(there.cost.device)
        assert reference is not None
        samples_us = {name: rounded(each.samples_us) for name, each in found.items()}
        return {**before, "passes": [*before["passes"], {**samples_us, "reference_us": reference.median_us}]}

    def model(self, seed: int) -> Model:
        return load_model(sampled(seed, self.size).SerializeToString(), name=title(seed))

    def document_path(self, seed: int) -> Path:
        assert self.settings.profile_db is not None
        return self.settings.profile_db.with_name(f"{title(seed)}.json")


def rounded(samples_us: Sequence[float]) -> list[float]:
    """Samples without insignificant digits."""
    return [round(us, 2) for us in samples_us]


def newest(settings: OptimizeSettings) -> WholeRow:
    """The whole model that was measured last."""
    with ProfileDatabase(settings.profile_db) as database:
        rows = [row for row in database.rows() if isinstance(row, WholeRow)]
    return max(rows, key=lambda row: row.measured_at)


def shipped_us(one: Variant) -> float:
    """The latency of the shipped plan, at the speed of the machine's first measurements."""
    return steadied_us(one, "shipped")


def steadied_us(one: Variant, name: str, passes: slice = slice(None)) -> float:
    """The median over the passes of the latency over that of the calibration kernel."""
    taken = one["passes"][passes]
    return float(median(each["reference_us"] * median(each[name]) / median(each[CALIBRATION]) for each in taken))


def halves(variants: Sequence[Variant]) -> tuple[list[float], list[float]]:
    """The true latencies from two disjoint sets of passes; no order can agree better with either."""
    some = [one for one in variants if len(one["passes"]) > 1]
    first, second = ([steadied_us(one, "shipped", slice(start, None, 2)) for one in some] for start in (0, 1))
    return first, second


def first_us(one: Variant) -> float:
    """The latency of the shipped plan as measured by `optimize`, at the speed of the machine at that time."""
    return float(median(one["samples_us"][one["shipped"].replace("iosched", "measured")]))


def anchored_us(one: Variant) -> float:
    """The sequential latency of the whole model, times the gain of the schedule by sums."""
    return steadied_us(one, "sequential") * float(one["sum_us"]) / float(one["sequential_sum_us"])


COUNTS: Mapping[str, Callable[[Variant], float]] = {
    "parameters": lambda one: float(one["params"]), "FLOPs": lambda one: float(one["flops"]),
}  # fmt: skip
SUM = "sum of stages"
LATENCIES: Mapping[str, Callable[[Variant], float]] = {
    "sum of operators": lambda one: float(one["sequential_sum_us"]),
    SUM: lambda one: float(one["sum_us"]),
    "both sums, geometric mean": lambda one: math.sqrt(one["sum_us"] * one["sequential_sum_us"]),
    "sequential latency": lambda one: steadied_us(one, "sequential"),
    "sequential latency x stages / operators": anchored_us,
    "what ships, as `optimize` measured it": first_us,
}


def orders_table(every: Mapping[str, Variant]) -> Table:
    """Agreement of each order with that of the shipped plans; for latencies also the factor and the remaining error."""
    variants = [one for one in every.values() if one["passes"]]
    truth = [shipped_us(one) for one in variants]
    sums = [LATENCIES[SUM](one) for one in variants]
    rows: list[tuple[str, ...]] = []
    for name, order in {**COUNTS, **LATENCIES}.items():
        values = [order(one) for one in variants]
        less = "" if name == SUM else ends_text(*interval(lambda a, b, t: tau(a, t) - tau(b, t), values, sums, truth))
        error = error_text(values, truth) if name in LATENCIES else ""
        rows.append((name, tau_text(values, truth), less, error))
    for text, some in by_stages(variants).items():
        some_sums, some_truth = [LATENCIES[SUM](one) for one in some], [shipped_us(one) for one in some]
        rows.append((f"{SUM}, {len(some)} schedules of {text}", tau_text(some_sums, some_truth), "", ""))
    rows.append(("what ships, by every other pass", tau_text(*halves(variants)), "", ""))
    return ("order by", "tau with what ships", f"less that of the {SUM}", "factor, and off by at most"), rows


def by_stages(variants: Sequence[Variant]) -> Mapping[str, Sequence[Variant]]:
    """The networks whose schedules are one stage, a session over all cores, and the others."""
    one, several = ([one for one in variants if (one["stages"] > 1) is many] for many in (False, True))
    return {text: some for text, some in (("one stage", one), ("several", several)) if some}


def tau_text(values: Sequence[float], truth: Sequence[float]) -> str:
    """Kendall's tau with its interval."""
    return f"{tau(values, truth):.2f} ({ends_text(*interval(tau, values, truth))})"


def ends_text(low: float, high: float) -> str:
    """The ends of an interval."""
    return f"{low:.2f} to {high:.2f}"


def error_text(values: Sequence[float], truth: Sequence[float]) -> str:
    """The factor from latencies to true ones, and the error that 90 % of them then stay within."""
    found = calibrated(list(zip(values, truth, strict=True)))
    return "" if found.error is None else f"{found.factor:.2f}, {found.error - 1:.0%}"


def tau(values: Sequence[float], truth: Sequence[float]) -> float:
    """Kendall's tau over the pairs without a tie: concordant less discordant, over their number; O(n^2)."""
    first, second = (np.sign(np.subtract.outer(each, each)) for each in (np.array(values), np.array(truth)))
    agreed = first * second
    return float(agreed.sum() / max(np.abs(agreed).sum(), 1))


def interval(figure: Callable[..., float], *columns: Sequence[float]) -> tuple[float, float]:
    """Percentiles of a figure of these columns over bootstrap samples of the networks; the same at each call."""
    table = np.array(columns)
    places = np.random.default_rng(0).integers(0, table.shape[1], (RESAMPLES, table.shape[1]))
    found = [figure(*table[:, each]) for each in places]
    return quantile(found, (1 - LEVEL) / 2), quantile(found, (1 + LEVEL) / 2)


def seconds_table(every: Mapping[str, Variant]) -> Table:
    """Medians over twenty networks at a time: the share of known stages, and seconds."""
    variants, rows = list(every.values()), []
    for first in range(0, len(variants), AT_A_TIME):
        some = variants[first : first + AT_A_TIME]
        hits = [one["cache_hits"] / (one["cache_hits"] + one["measurements"]) for one in some]
        seconds = (median(one["seconds"][name] for one in some) for name in ("search", "comparison"))
        shipped = Counter(str(one["shipped"]) for one in some)
        cells = f"{first + 1} to {first + len(some)}", f"{median(hits):.0%}"
        measured = f"{median(one['measurements'] for one in some):.0f}"
        ships = ", ".join(f"{name} {count}" for name, count in sorted(shipped.items()))
        rows.append((*cells, measured, *(f"{each:.1f} s" for each in seconds), ships))
    return ("networks", "hit rate", "stages measured", "search", "comparison", "shipped"), rows


if __name__ == "__main__":
    main()
