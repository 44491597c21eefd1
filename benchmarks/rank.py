"""Which of many small networks are fast: by FLOPs, by sequential latency, by sums of stages, and in truth.

    python benchmarks/rank.py [--variants 60] [--size 64] [--minutes 5] [-o F.json]

Networks are sampled from a space around MobileNetV2 (`models/zoo/mnasnet.py`). Each is optimized as `iosched optimize`
does it, with one profile database for all: what ships is measured as a whole, in turn with its rivals. Kendall's tau
says how well an order agrees with that of these latencies: 1 is the same order, 0 is none. Its interval is that of the
percentiles of bootstrap samples of the networks. Networks that the file of results has are not measured again: call the
script until it says that nothing is missing. The database lies in `results/rank/`.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from testbed import RESULTS, print_table, write_results

from iosched.jobs.ranking.calibration import calibrated
from iosched.jobs.ranking.cost import model_cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.load import load_model
from iosched.models.zoo.mnasnet import sampled
from iosched.profiler.measuring.statistics import quantile
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import WholeRow

Variant = Mapping[str, Any]
LEAST_VARIANT_S = 40.0
RESAMPLES = 2000
LEVEL = 0.95
AT_A_TIME = 20  # networks in a row of the table of seconds


def main(words: Sequence[str]) -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--variants", type=int, default=60)
    parser.add_argument("--size", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long this call may take")
    parser.add_argument("--work", type=Path, metavar="FOLDER", default=RESULTS / "rank")
    parser.add_argument("-o", "--output", type=Path, help="raw results as JSON")
    options = parser.parse_args(words)
    deadline = time.monotonic() + 60 * options.minutes
    known = {} if options.output is None or not options.output.exists() else json.loads(options.output.read_text())
    variants: dict[str, Variant] = known.get("variants", {})
    options.work.mkdir(parents=True, exist_ok=True)
    settings = OptimizeSettings(device="cpu", threads=options.threads, profile_db=options.work / "profile.sqlite")
    for seed in range(options.variants):
        if f"mnasnet-{seed}" in variants:
            continue
        if deadline - time.monotonic() < LEAST_VARIANT_S:
            print(f"time is up before mnasnet-{seed}; call again to go on", file=sys.stderr)
            break
        variants[f"mnasnet-{seed}"] = observed(seed, options.size, settings)
        written = ["--variants", str(options.variants), "--size", str(options.size)]
        write_results(options, Path(__file__).stem, written, {"variants": variants})
    else:
        print("nothing is missing", file=sys.stderr)
    print_table(*orders_table(list(variants.values())))
    print()
    print_table(*seconds_table(list(variants.values())))


def observed(seed: int, size: int, settings: OptimizeSettings) -> Variant:
    """What one network took: all samples, the sums of its stages, and the time that it took to find out."""
    started = time.monotonic()
    model = load_model(sampled(seed, size).SerializeToString(), name=f"mnasnet-{seed}")
    loaded = time.monotonic()
    cost = model_cost(model, "models", settings)
    result, row = cost.result, newest(settings)
    assert result is not None
    return {
        "flops": model.flops,
        "params": model.n_parameters,
        "operators": len(model.graph.operators),
        "shipped": result.shipped,
        "stages": row.stages,
        "sum_us": row.sum_us,
        "sequential_sum_us": row.sequential_sum_us,
        "samples_us": {name: [round(us, 2) for us in whole.samples_us] for name, whole in result.wholes.items()},
        "measurements": result.measurements,
        "cache_hits": result.cache_hits,
        "seconds": {
            "load": loaded - started,
            "search": cost.search_seconds,
            "comparison": cost.comparison_seconds,
        },
    }


def newest(settings: OptimizeSettings) -> WholeRow:
    """The whole model that was measured last."""
    with ProfileDatabase(settings.profile_db) as database:
        rows = [row for row in database.rows() if isinstance(row, WholeRow)]
    return max(rows, key=lambda row: row.measured_at)


def shipped_us(one: Variant) -> float:
    """The latency of what ships, which is the truth that orders are held against."""
    return whole_us(one, "measured" if one["shipped"] == "iosched" else one["shipped"])


def found_us(one: Variant) -> float:
    """The latency of the schedule found, as a whole."""
    return whole_us(one, "measured")


def whole_us(one: Variant, name: str) -> float:
    """The median of a whole model's samples."""
    return median(one["samples_us"][name])


def anchored_us(one: Variant) -> float:
    """The sequential latency of the whole model, times what the sums say that a schedule gains."""
    return whole_us(one, "sequential") * float(one["sum_us"]) / float(one["sequential_sum_us"])


COUNTS: Mapping[str, Callable[[Variant], float]] = {
    "parameters": lambda one: float(one["params"]),
    "FLOPs": lambda one: float(one["flops"]),
}
LATENCIES: Mapping[str, Callable[[Variant], float]] = {
    "sum of operators": lambda one: float(one["sequential_sum_us"]),
    "sequential latency": lambda one: whole_us(one, "sequential"),
    "sum of stages": lambda one: float(one["sum_us"]),
    "sequential latency x stages / operators": anchored_us,
    "schedule found, whole": found_us,
}


def orders_table(variants: Sequence[Variant]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """How well each order agrees with that of what ships; of latencies, how far one is off times the usual factor."""
    rows = []
    for name, order in {**COUNTS, **LATENCIES}.items():
        values = [order(one) for one in variants]
        taus = (tau_text(values, [truth(one) for one in variants]) for truth in (shipped_us, found_us))
        rows.append((name, *taus, error_text(values, variants) if name in LATENCIES else ""))
    return ("order by", "tau with what ships", "tau with the schedule found", "factor, off by at most"), rows


def tau_text(values: Sequence[float], truth: Sequence[float]) -> str:
    """Kendall's tau with its interval."""
    low, high = tau_interval(values, truth)
    return f"{tau(values, truth):.2f} ({low:.2f} to {high:.2f})"


def error_text(values: Sequence[float], variants: Sequence[Variant]) -> str:
    """By what factor latencies are multiplied to be those of what ships, and within what the most of them then are."""
    found = calibrated([(value, shipped_us(one)) for value, one in zip(values, variants, strict=True)])
    return "" if found.error is None else f"{found.factor:.2f}, {found.error - 1:.0%}"


def tau(values: Sequence[float], truth: Sequence[float]) -> float:
    """Kendall's tau over the pairs that neither order has as equal: concordant less discordant, over both; O(n^2)."""
    first, second = (np.sign(np.subtract.outer(each, each)) for each in (np.array(values), np.array(truth)))
    agreed = first * second
    return float(agreed.sum() / max(np.abs(agreed).sum(), 1))


def tau_interval(values: Sequence[float], truth: Sequence[float]) -> tuple[float, float]:
    """Percentiles of tau over bootstrap samples of the networks; the same at each call."""
    draw = np.random.default_rng(0)
    pairs = np.array([values, truth])
    places = draw.integers(0, len(values), (RESAMPLES, len(values)))
    found = [tau(*pairs[:, each]) for each in places]
    return quantile(found, (1 - LEVEL) / 2), quantile(found, (1 + LEVEL) / 2)


def seconds_table(variants: Sequence[Variant]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Medians over twenty networks at a time: what was known of their stages, and how long they took."""
    rows = []
    for first in range(0, len(variants), AT_A_TIME):
        some = variants[first : first + AT_A_TIME]
        hits = [one["cache_hits"] / (one["cache_hits"] + one["measurements"]) for one in some]
        seconds = (median(one["seconds"][name] for one in some) for name in ("search", "comparison"))
        shipped = Counter(str(one["shipped"]) for one in some)
        rows.append(
            (
                f"{first + 1} to {first + len(some)}",
                f"{median(hits):.0%}",
                f"{median(one['measurements'] for one in some):.0f}",
                *(f"{each:.1f} s" for each in seconds),
                ", ".join(f"{name} {count}" for name, count in sorted(shipped.items())),
            )
        )
    return ("networks", "hit rate", "stages measured", "search", "comparison", "shipped"), rows


if __name__ == "__main__":
    main(sys.argv[1:])
