"""Savings and cost of pruning (thesis, figure 4.6): search effort and latency for limits r and s.

    python benchmarks/ablation_pruning.py [--networks inception_v3,nasnet_a] [--device v100|cpu]
                                          [-o F.json] [--plot F.svg]

For each limit, it reports all stages of the search space, the stages that the lazy search measured, its seconds, and
the latency of the schedule found. On the CPU, searches share one profile database so that latencies of stages agree;
the seconds then include only stages that no earlier search measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from command_line import OUTPUTS, read_options
from result_tables import Table, chart, print_table
from testbed import Bed, ablate

from iosched.scheduler.pruning import Pruning

LIMITS = ((1, 3), (1, 8), (2, 3), (2, 8), (3, 3), (3, 8))
HEADERS = ("network", "r", "s", "transitions", "stages", "asked for", "seconds", "latency ms", "over best")


@dataclass(frozen=True)
class Row:
    """One search; `stages` is the number of stages that a full search measures."""

    network: str
    r: int
    s: int
    transitions: int
    stages: int
    asked: int
    seconds: float
    latency_us: float
    gap: float


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, networks=("inception_v3", "nasnet_a"), device="v100", **OUTPUTS)
    rows = ablate(options, lambda network, _, bed: (_searched(network, bed, r, s) for r, s in LIMITS), _plot)
    print_table(*table(list(map(asdict, rows))))


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    best_us: dict[str, float] = {}
    for row in rows:
        best_us[row["network"]] = min(row["latency_us"], best_us.get(row["network"], inf))
    return HEADERS, [_cells(Row(**row), best_us[row["network"]]) for row in rows]


def _searched(network: str, bed: Bed, r: int, s: int) -> Row:
    started = time.perf_counter()
    found = bed.search(Pruning(r, s))
    seconds = round(time.perf_counter() - started, 2)
    latency_us = round(bed.latency_us(found.schedule), 2)
    return Row(network, r, s, found.transitions, found.stages, found.measured, seconds, latency_us, round(found.gap, 4))


def _cells(row: Row, best_us: float) -> list[str]:
    counts = [f"{count:,}" for count in (row.transitions, row.stages, row.asked)]
    latency = [f"{row.latency_us / 1e3:.3f}", f"{100 * (row.latency_us / best_us - 1):+.2f} %"]
    return [row.network, str(row.r), str(row.s), *counts, f"{row.seconds:.1f}", *latency]


def _plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    major = {"major_locator": LogLocator(subs=(1, 2, 5)), "major_formatter": StrMethodFormatter("{x:,.0f}")}
    networks = list(dict.fromkeys(row.network for row in rows))
    with chart(path, 1, len(networks), figsize=(4.6 * len(networks), 3.8), squeeze=False) as (figure, axes):
        for axis, network in zip(axes[0], networks, strict=True):
            for s, colour in ((3, "#e08a3c"), (8, "#4c78a8")):
                here = [row for row in rows if row.network == network and row.s == s]
                latencies_ms = [row.latency_us / 1e3 for row in here]
                axis.plot([row.stages for row in here], latencies_ms, "o-", c=colour, label=f"s = {s}")
                for row in here:
                    axis.annotate(f" r={row.r}", (row.stages, row.latency_us / 1e3), fontsize=8)
            axis.set(xscale="log", xlabel="stages in the search", ylabel="latency, ms", title=network)
            axis.xaxis.set(minor_locator=NullLocator(), **major)
            axis.margins(0.12)
            axis.legend()
        figure.suptitle(title, fontsize=10)


if __name__ == "__main__":
    main()
