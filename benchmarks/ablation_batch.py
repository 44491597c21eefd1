"""Effect of the batch size on the speedup (thesis, figure 4.9): sequential, greedy and the schedule found.

    python benchmarks/ablation_batch.py [--networks inception_v3] [--device v100|cpu] [--batch-sizes 1,2,4,…]
                                        [-o F.json] [--plot F.svg]

Each batch size has a separate search. On the CPU, every size is measured, so choose small ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line import OUTPUTS, read_options
from result_tables import Table, chart, print_table
from testbed import Bed, ablate

from iosched.scheduler.baselines import greedy, sequential

HEADERS = ("network", "batch", "sequential ms", "greedy ms", "both ms", "both images/s", "speed-up", "over greedy")


@dataclass(frozen=True)
class Row:
    """One network at one batch size; latencies in microseconds."""

    network: str
    batch_size: int
    sequential_us: float
    greedy_us: float
    both_us: float
    optimal: bool


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(
        __file__, words, networks=("inception_v3",), batch_sizes=(1, 2, 4, 8, 16, 32, 64, 128), device="v100", **OUTPUTS
    )
    print_table(*table(map(asdict, ablate(options, _rows, _plot, options.batch_sizes))))


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    return HEADERS, [_cells(Row(**row)) for row in rows]


def _rows(network: str, batch_size: int, bed: Bed) -> Iterator[Row]:
    found = bed.search()
    schedules = (sequential(bed.graph), greedy(bed.graph), found.schedule)
    latencies_us = (round(bed.latency_us(each), 2) for each in schedules)
    yield Row(network, batch_size, *latencies_us, optimal=found.proven == "whole")


def _cells(row: Row) -> list[str]:
    latencies = [f"{latency_us / 1e3:.3f}" for latency_us in (row.sequential_us, row.greedy_us, row.both_us)]
    speedups = [f"{other / row.both_us:.2f}" for other in (row.sequential_us, row.greedy_us)]
    return [row.network, str(row.batch_size), *latencies, f"{row.batch_size / row.both_us * 1e6:.0f}", *speedups]


def _plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    with chart(path, figsize=(6.5, 3.8)) as (_, axis):
        sizes = [row.batch_size for row in rows]
        for name, colour in (("sequential", "#8a8f98"), ("greedy", "#e08a3c"), ("both", "#4c78a8")):
            images = [row.batch_size / getattr(row, f"{name}_us") * 1e6 for row in rows]
            axis.plot(sizes, images, "o-", c=colour, label=name)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.set(xlabel="batch size", ylabel="images/s", ylim=(0, None), title=f"{rows[0].network}, {title}")
        axis.title.set_fontsize(10)
        axis.legend()


if __name__ == "__main__":
    main()
