"""Cost of measuring many variants of a space: seconds, and the share of stage latencies that are known.

    python benchmarks/exploring.py [--spaces mnasnet:64,inception:64] [--variants 100] [--minutes 5] [--list]
                                   [-o F.json]

Variants of each space are drawn like those of the sampler `random`, and made, searched and compared like a trial of
`iosched explore`, with one profile database per space, empty at first. Every fifth variant is searched twice more: with
an empty database of its own, and with the database of the space, which then has all of its stages. Whole models are
compared once, since no earlier variant saves that. Variants in the results file are not measured again: repeat the call
until it reports that nothing is missing. The databases are in `results/exploring/`.

Options:
    --spaces: built-in spaces, with pixels
    --variants: of each space
    --minutes: time limit of this call
    --list: print what is missing, and measure nothing
    --output: raw results as JSON
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from command_line import read_options
from result_tables import Table, interval_text, print_table
from results_files import RESULTS, resumed_results, write_results

from iosched import Model, OptimizeSettings, Variant, variant_of
from iosched.jobs.ranking.model_cost import ModelCost, model_cost
from iosched.models.spaces.space import PREFIX, Space, find_space
from iosched.profiler.measuring.statistics import quantile
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow

Observed = Mapping[str, Any]
"""Measurements of a variant: `samples_us` by way to run it, and results of searches with the database of the
space (`shared`), and for some also with an empty one (`alone`) and once more with that of the space (`again`)."""

Stages = dict[str, Mapping[str, int]]
Key = tuple[str, int]
LEAST_VARIANT_S = 40.0
ALONE_EVERY = 5
AT_A_TIME = 20  # variants in a row of the table


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, spaces=("mnasnet:64", "inception:64"), variants=100, threads=int, minutes=5.0, list=False,
        work=RESULTS / "exploring", output=Path,
    )  # fmt: skip
    known = resumed_results(options.output)
    found: dict[str, list[Observed]] = {name: [] for name in options.spaces} | known.get("spaces", {})
    left = missing({name: found[name] for name in options.spaces}, options.variants)
    if options.list:
        print("\n".join(f"{name} {number}" for name, number in left))
        return
    stages: Stages = known.get("stages", {})
    measure(found, stages, left, options)
    for made in (table(found), sharing_table(found), sizes_table(stages)):
        print_table(*made)
        print()


def missing(found: Mapping[str, Sequence[Observed]], variants: int) -> list[tuple[str, int]]:
    """Variants that were not measured, by space and number, with alternating spaces."""
    return [(name, number) for number in range(variants) for name in found if number >= len(found[name])]


def measure(found: Mapping[str, list[Observed]], stages: Stages, left: Sequence[Key], options: Namespace) -> None:
    """Measures missing variants within the time limit."""
    deadline = time.monotonic() + 60 * options.minutes
    options.work.mkdir(parents=True, exist_ok=True)
    trials = {name: Trials(find_space(PREFIX + name), options.work, options.threads) for name, _ in left}
    for name, number in left:
        if deadline - time.monotonic() < LEAST_VARIANT_S:
            print(f"time is up before {name} {number}; call again to go on", file=sys.stderr)
            return
        found[name].append(trials[name].observed(number))
        stages |= {name: trials[name].stages()}
        write_results(options, {"spaces": found, "stages": stages}, goes_on=True)
    print("nothing is missing", file=sys.stderr)


@dataclass(frozen=True, eq=False)
class Trials:
    """Variants of one space, and the profile database that they share."""

    space: Space
    work: Path
    threads: int | None = None

    @cached_property
    def base(self) -> Model:
        return self.space.base_model()

    @property
    def settings(self) -> OptimizeSettings:
        database = self.work / f"{self.space.name}-{self.space.pixels}.sqlite"
        return OptimizeSettings(device="cpu", threads=self.threads, profile_db=database)

    def stages(self) -> Mapping[str, int]:
        """Number of stages in the database, and their number if models of all sizes shared latencies."""
        with ProfileDatabase(self.settings.profile_db) as database:
            keys = {row.signature for row in database.rows() if isinstance(row, StageRow)}
        apart = {(lanes, rest) for lanes, _size, rest in (key.split(":", 2) for key in keys)}
        return {"measured": len(keys), "of any size": len(apart)}

    def observed(self, number: int) -> Observed:
        """Makes a variant, and reports the cost of its latency."""
        started = time.monotonic()
        variant = drawn(self.space, self.base, number)
        made_s = time.monotonic() - started
        cost = model_cost(variant.model, "models", self.settings)
        result = cost.result
        assert result is not None
        found = {
            "choices": dict(variant.choices),
            "operators": len(variant.model.graph.operators),
            "shipped": result.shipped,
            "samples_us": {name: [round(us, 2) for us in whole.samples_us] for name, whole in result.wholes.items()},
            "made_s": made_s,
            "comparison_s": cost.comparison_seconds,
            "shared": searched(cost),
        }
        if number % ALONE_EVERY:
            return found
        with tempfile.TemporaryDirectory() as folder:
            own = replace(self.settings, profile_db=Path(folder) / "profile.sqlite")
            found["alone"] = searched(model_cost(variant.model, "stages", own))
        return {**found, "again": searched(model_cost(variant.model, "stages", self.settings))}


def drawn(space: Space, base: Model, number: int) -> Variant:
    """A variant by its number: all candidates of a question are equally likely."""
    draw = Random(f"{space.name} {number}")
    return variant_of(base, space.mutators, lambda question: draw.randrange(len(question.candidates)))


def searched(cost: ModelCost) -> dict[str, float]:
    """Numbers of measured and of known stage latencies of a search, and its seconds."""
    return {"measured": cost.measurements, "known": cost.cache_hits, "seconds": cost.search_seconds}


def hit_rate(search: Mapping[str, float]) -> float:
    """The share of requested latencies that were known."""
    asked = search["measured"] + search["known"]
    return search["known"] / asked if asked else 1.0


def table(found: Mapping[str, Sequence[Observed]]) -> Table:
    """Medians over some variants at a time, with quartiles of the hit rate, as reports/exploring.md has them."""
    headers = ("space", "variants", "hit rate", "measurements", "made in", "search", "comparison")
    return headers, [
        row(name, first, variants[first : first + AT_A_TIME])
        for name, variants in found.items()
        for first in range(0, len(variants), AT_A_TIME)
    ]


def row(name: str, first: int, variants: Sequence[Observed]) -> tuple[str, ...]:
    hits = [hit_rate(one["shared"]) for one in variants]
    return (
        *(name, f"{first + 1} to {first + len(variants)}"),
        interval_text(median(hits), quantile(hits, 0.25), quantile(hits, 0.75), ".0%"),
        f"{median(one['shared']['measured'] for one in variants):.0f}",
        f"{median(one['made_s'] for one in variants):.2f} s",
        f"{median(one['shared']['seconds'] for one in variants):.1f} s",
        f"{median(one['comparison_s'] for one in variants):.1f} s",
    )


def sharing_table(found: Mapping[str, Sequence[Observed]]) -> Table:
    """Cost of searches that share nothing, share with earlier variants, or know all, as in reports/exploring.md."""
    rows = []
    for name, variants in found.items():
        tried = [one for one in variants if "alone" in one]
        if not tried:
            continue
        measured = [sum(one[how]["measured"] for one in tried) for how in ("alone", "shared")]
        seconds = [median(one[how]["seconds"] for one in tried) for how in ("alone", "shared", "again")]
        spent = [sum(one[how]["seconds"] for one in tried) for how in ("alone", "shared")]
        counts = (f"{count:.0f}" for count in measured)
        ratios = f"{measured[0] / max(measured[1], 1):.1f}", f"{spent[0] / spent[1]:.1f}"
        times = (f"{each:.1f} s" for each in seconds)
        rows.append((name, f"{len(tried)} of {len(variants)}", *counts, *times, *ratios))
    kinds = ("variants", "measurements, each alone", "shared", "search, each alone", "shared", "all known")
    return ("space", *kinds, "measurements, alone over shared", "seconds, alone over shared"), rows


def sizes_table(stages: Mapping[str, Mapping[str, int]]) -> Table:
    """Number of measured stages, and of those that differ by more than the size of their model."""
    rows = [(name, str(found["measured"]), str(found["of any size"])) for name, found in stages.items()]
    return ("space", "stages measured", "different but for the model's size"), rows


if __name__ == "__main__":
    main()
