"""Speedup of each block of a network (thesis, figure 4.8): the schedule found over sequential execution.

    python benchmarks/ablation_blocks.py [--networks inception_v3] [--device v100|cpu] [-o F.json] [--plot F.svg]

A block's latency is the sum of its stages. Blocks that are a chain are omitted, since nothing in them can run
concurrently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from command_line import OUTPUTS, read_options
from result_tables import Table, chart, print_table
from testbed import Bed, ablate

from iosched.scheduler.schedule import Block, Stage, Strategy

HEADERS = ("network", "block", "ends with", "operators", "stages", "sequential ms", "found ms", "speed-up")


@dataclass(frozen=True)
class Row:
    """One block; latencies in microseconds."""

    network: str
    block: int
    last: str
    operators: int
    stages: int
    sequential_us: float
    found_us: float


def main(words: Sequence[str] | None = None) -> None:
    options = read_options(__file__, words, networks=("inception_v3",), device="v100", **OUTPUTS)
    print_table(*table(map(asdict, ablate(options, _rows, _plot))))


def table(rows: Iterable[Mapping[str, Any]]) -> Table:
    return HEADERS, [_cells(Row(**row)) for row in rows]


def _rows(network: str, _: int, bed: Bed) -> Iterator[Row]:
    place = {operator.name: index for index, operator in enumerate(bed.graph.operators)}
    for block in bed.search().schedule.blocks:
        names = sorted((name for stage in block.stages for name in stage.operators), key=place.__getitem__)
        if _is_chain(bed, names):
            continue
        alone = Block(0, tuple(Stage(Strategy.CONCURRENT, ((name,),)) for name in names))
        sequential_us, found_us = round(bed.block_us(alone), 2), round(bed.block_us(block), 2)
        yield Row(network, block.index, names[-1], len(names), len(block.stages), sequential_us, found_us)


def _is_chain(bed: Bed, names: Sequence[str]) -> bool:
    return all(before in bed.graph.predecessors[name] for before, name in pairwise(names))


def _cells(row: Row) -> list[str]:
    latencies = [f"{latency_us / 1e3:.3f}" for latency_us in (row.sequential_us, row.found_us)]
    speedup = f"{row.sequential_us / row.found_us:.2f}"
    return [row.network, str(row.block), row.last, str(row.operators), str(row.stages), *latencies, speedup]


def _plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    with chart(path, figsize=(7.5, 3.4)) as (_, axis):
        axis.bar([str(row.block) for row in rows], [row.sequential_us / row.found_us for row in rows], color="#4c78a8")
        axis.axhline(1, c="#1d242d", lw=0.8)
        axis.set(xlabel="block", ylabel="speed-up over sequential", title=f"{rows[0].network}, {title}")
        axis.title.set_fontsize(10)


if __name__ == "__main__":
    main()
