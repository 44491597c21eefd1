"""What finding the latencies of many variants of a space takes: seconds, and how much is known already.

    python benchmarks/exploring.py [--spaces mnasnet:64,inception:64] [--variants 100] [--minutes 5] [--list]
                                   [-o F.json]

Variants of each space are drawn as the sampler `random` does, each candidate as likely as the others. Each is made,
searched and compared as a trial of `iosched explore` is, with one profile database for the space, which is empty at
first. Every fifth is then searched again: with an empty database of its own, which is what it takes where nothing is
shared, and with the space's, which has all of it by now. Whole models are compared once only: no other variant's
comparison saves that. Variants that the file of results has are not measured again: call the script until it says that
nothing is missing. The databases lie in `results/exploring/`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from testbed import RESULTS, print_table, write_results

from iosched.jobs.ranking.model_cost import ModelCost, model_cost
from iosched.jobs.settings import OptimizeSettings
from iosched.models.model import Model
from iosched.models.mutation.variant import Variant, variant_of
from iosched.models.spaces.space import PREFIX, Space, find_space
from iosched.profiler.measuring.statistics import quantile
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.tables import StageRow

Observed = Mapping[str, Any]
"""What a variant took: its `samples_us` by way to run it, and what `searched` says of searches with the database of the
space (`shared`), and for some also with an empty one (`alone`) and once more with that of the space (`again`)."""

LEAST_VARIANT_S = 40.0
ALONE_EVERY = 5
AT_A_TIME = 20  # variants in a row of the table


def main(words: Sequence[str]) -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spaces", default="mnasnet:64,inception:64", help="of those in the box, with pixels")
    parser.add_argument("--variants", type=int, default=100, help="of each space")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long this call may take")
    parser.add_argument("--list", action="store_true", help="say what is missing, and measure nothing")
    parser.add_argument("--work", type=Path, metavar="FOLDER", default=RESULTS / "exploring")
    parser.add_argument("-o", "--output", type=Path, help="raw results as JSON")
    options = parser.parse_args(words)
    known = {} if options.output is None or not options.output.exists() else json.loads(options.output.read_text())
    found: dict[str, list[Observed]] = {name: [] for name in options.spaces.split(",")} | known.get("spaces", {})
    left = missing({name: found[name] for name in options.spaces.split(",")}, options.variants)
    if options.list:
        print("\n".join(f"{name} {number}" for name, number in left))
        return
    stages: dict[str, Mapping[str, int]] = known.get("stages", {})
    measure(found, stages, left, options)
    print_table(*table(found))
    print()
    print_table(*sharing_table(found))
    print()
    print_table(*sizes_table(stages))


def missing(found: Mapping[str, Sequence[Observed]], variants: int) -> list[tuple[str, int]]:
    """The variants that were not measured, by space and number, the spaces in turn."""
    return [(name, number) for number in range(variants) for name in found if number >= len(found[name])]


def measure(
    found: Mapping[str, list[Observed]],
    stages: dict[str, Mapping[str, int]],
    left: Sequence[tuple[str, int]],
    options: Namespace,
) -> None:
    """Measures what is left, in the time that there is."""
    deadline = time.monotonic() + 60 * options.minutes
    options.work.mkdir(parents=True, exist_ok=True)
    trials = {name: Trials(find_space(PREFIX + name), options.work, options.threads) for name, _ in left}
    for name, number in left:
        if deadline - time.monotonic() < LEAST_VARIANT_S:
            print(f"time is up before {name} {number}; call again to go on", file=sys.stderr)
            return
        found[name].append(trials[name].observed(number))
        stages |= {name: trials[name].stages()}
        words, content = ["--spaces", options.spaces], {"spaces": found, "stages": stages}
        write_results(options, Path(__file__).stem, words, content, goes_on=True)
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
        """How many stages the database has, and how many would differ if models of all sizes shared their latencies."""
        with ProfileDatabase(self.settings.profile_db) as database:
            keys = {row.signature for row in database.rows() if isinstance(row, StageRow)}
        apart = {(lanes, rest) for lanes, _size, rest in (key.split(":", 2) for key in keys)}
        return {"measured": len(keys), "of any size": len(apart)}

    def observed(self, number: int) -> Observed:
        """Makes a variant, and says what finding its latency took."""
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
    """A variant by its number: each candidate of a question is as likely as the others."""
    draw = Random(f"{space.name} {number}")
    return variant_of(base, space.mutators, lambda question: draw.randrange(len(question.candidates)))


def searched(cost: ModelCost) -> dict[str, float]:
    """How many latencies of stages a search measured, how many it knew, and its seconds."""
    return {"measured": cost.measurements, "known": cost.cache_hits, "seconds": cost.search_seconds}


def hit_rate(search: Mapping[str, float]) -> float:
    """The part of the latencies asked for that were known."""
    asked = search["measured"] + search["known"]
    return search["known"] / asked if asked else 1.0


def table(found: Mapping[str, Sequence[Observed]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
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
        name,
        f"{first + 1} to {first + len(variants)}",
        f"{median(hits):.0%} ({quantile(hits, 0.25):.0%} to {quantile(hits, 0.75):.0%})",
        f"{median(one['shared']['measured'] for one in variants):.0f}",
        f"{median(one['made_s'] for one in variants):.2f} s",
        f"{median(one['shared']['seconds'] for one in variants):.1f} s",
        f"{median(one['comparison_s'] for one in variants):.1f} s",
    )


def sharing_table(found: Mapping[str, Sequence[Observed]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """What searches take that share nothing, share with earlier variants, and know all, as in reports/exploring.md."""
    rows = []
    for name, variants in found.items():
        tried = [one for one in variants if "alone" in one]
        if not tried:
            continue
        measured = [sum(one[how]["measured"] for one in tried) for how in ("alone", "shared")]
        seconds = [median(one[how]["seconds"] for one in tried) for how in ("alone", "shared", "again")]
        spent = [sum(one[how]["seconds"] for one in tried) for how in ("alone", "shared")]
        rows.append(
            (
                name,
                f"{len(tried)} of {len(variants)}",
                *(f"{count:.0f}" for count in measured),
                *(f"{each:.1f} s" for each in seconds),
                f"{measured[0] / max(measured[1], 1):.1f}",
                f"{spent[0] / spent[1]:.1f}",
            )
        )
    kinds = ("variants", "measurements, each alone", "shared", "search, each alone", "shared", "all known")
    return ("space", *kinds, "measurements, alone over shared", "seconds, alone over shared"), rows


def sizes_table(stages: Mapping[str, Mapping[str, int]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """How many stages were measured, and how many of them differ in more than the size of the model they are of."""
    rows = [(name, str(found["measured"]), str(found["of any size"])) for name, found in stages.items()]
    return ("space", "stages measured", "different but for the model's size"), rows


if __name__ == "__main__":
    main(sys.argv[1:])
