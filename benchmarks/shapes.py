"""Graphs that are hard to search: seconds, memory, and speedup over greedy.

    python benchmarks/shapes.py [--shapes "ladder of 2,000,chain of 5,000"] [-o F.json]

Operators are of five kinds on the simulated two-lane machine of `search.py`, with the limit on measurements that a CPU
has; each shape is searched in a process of its own. Only seconds and memory are measured.

Options:
    --one: search this shape in this process and print it as JSON
    --output: raw results as JSON
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from command_line import read_options
from result_tables import Table, print_table
from results_files import write_results
from search import TwoLanes, total_us

from iosched import ComputationGraph, Operator, TensorSpec, search
from iosched.profiler.devices.cpu.open import CPU_EFFORT
from iosched.scheduler.baselines import greedy, sequential

KINDS = 5
SEED = 0
_FLOPS = 2_000_000  # of an operator of the fastest kind
_HEADERS = ("graph", "seconds", "peak MiB", "over greedy", "over sequential")


def main(words: Sequence[str] | None = None) -> None:
    shapes = {"nargs": "*", "default": list(SHAPES), "choices": list(SHAPES)}
    options = read_options(__file__, words, shapes=shapes, one={"choices": list(SHAPES)}, output=Path)
    if options.one is not None:
        print(json.dumps(searched(options.one)))
        return
    found = [_in_a_process(name) for name in options.shapes]
    print_table(*table(found))
    write_results(options, {"shapes": found}, seeds={"graphs": SEED})


def searched(name: str) -> dict[str, object]:
    """One shape, searched in this process; the peak is that of the whole process."""
    graph = SHAPES[name]()
    cost = TwoLanes(graph)
    started = time.process_time()
    result = search(graph, cost, effort=CPU_EFFORT)
    seconds = time.process_time() - started
    return {
        "shape": name,
        "operators": len(graph.operators),
        "seconds": round(seconds, 2),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "measured": result.measured,
        "blocks": len(result.schedule.blocks),
        "found_us": round(total_us(cost, result.schedule), 1),
        "greedy_us": round(total_us(cost, greedy(graph)), 1),
        "sequential_us": round(total_us(cost, sequential(graph)), 1),
    }


def _in_a_process(name: str) -> dict[str, float | str]:
    words = [sys.executable, __file__, "--one", name]
    found: dict[str, float | str] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    print(f"{name}: {found['seconds']} s", file=sys.stderr, flush=True)
    return found


def table(found: Sequence[Mapping[str, float | str]]) -> Table:
    return _HEADERS, [_cells(each) for each in found]


def _cells(found: Mapping[str, float | str]) -> list[str]:
    gains = (float(found[key]) / float(found["found_us"]) for key in ("greedy_us", "sequential_us"))
    return [f"{found['shape']}", f"{found['seconds']:.1f}", f"{found['peak_mib']}", *(f"{gain:.2f}x" for gain in gains)]


def graph_of(n: int, edges: Iterable[tuple[int, int]]) -> ComputationGraph:
    """`n` operators of `KINDS` kinds in turn; those without a predecessor read the graph's input."""
    reads: list[list[str]] = [[] for _ in range(n)]
    for before, after in edges:
        reads[after].append(str(before))
    operators = tuple(
        Operator(
            str(index), "Op", (str(index),), tuple(reads[index]) or ("x",), (str(index),),
            attributes=(("kind", index % KINDS),), flops=_FLOPS * (1 + index % KINDS),
        )
        for index in range(n)
    )  # fmt: skip
    return ComputationGraph("shape", (TensorSpec("x", "float32", (1,)),), (str(n - 1),), operators, ())


def layers(count: int, width: int) -> ComputationGraph:
    """Every operator of a layer reads two random ones of the previous layer."""
    draw = random.Random(SEED)
    rows = [list(range(start, start + width)) for start in range(0, count * width, width)]
    edges = [(before, after) for above, below in pairwise(rows) for after in below for before in draw.sample(above, 2)]
    return graph_of(count * width, edges)


def scattered(n: int) -> ComputationGraph:
    """Every operator reads up to two of the previous twenty."""
    draw = random.Random(SEED)
    edges = {(draw.randrange(max(0, i - 20), i), i) for i in range(1, n) for _ in range(2) if draw.random() < 0.7}
    return graph_of(n, sorted(edges))


def towers(count: int, length: int, *, meet: bool, one_by_one: bool) -> ComputationGraph:
    """Chains side by side, listed one after the other or in turns; one operator reads all of their ends, or none."""

    def at(tower: int, step: int) -> int:
        return tower * length + step if one_by_one else step * count + tower

    edges = [(at(tower, step), at(tower, step + 1)) for tower in range(count) for step in range(length - 1)]
    ends = [(at(tower, length - 1), count * length) for tower in range(count)] if meet else []
    return graph_of(count * length + meet, sorted([*edges, *ends]))


def bipartite(count: int, width: int) -> ComputationGraph:
    """Every operator of a layer reads all of the previous layer."""
    steps = range((count - 1) * width)
    edges = ((before, (before // width + 1) * width + after) for before in steps for after in range(width))
    return graph_of(count * width, edges)


SHAPES: dict[str, Callable[[], ComputationGraph]] = {
    "10 layers of 20": lambda: layers(10, 20),
    "scattered, 200": lambda: scattered(200),
    "1,000 independent": lambda: graph_of(1000, []),
    "1,000 read by one": lambda: graph_of(1001, ((index, 1000) for index in range(1000))),
    "ladder of 2,000": lambda: graph_of(
        2000, [*((i, i + 2) for i in range(1998)), *((i, i + 3) for i in range(0, 1997, 2))]
    ),
    "two towers of 1,000 that meet": lambda: towers(2, 1000, meet=True, one_by_one=False),
    "the same, one listed after the other": lambda: towers(2, 1000, meet=True, one_by_one=True),
    "three towers of 300 that never meet": lambda: towers(3, 300, meet=False, one_by_one=False),
    "the same three, one after the other": lambda: towers(3, 300, meet=False, one_by_one=True),
    "10 complete bipartite layers of 20": lambda: bipartite(10, 20),
    "chain of 5,000": lambda: graph_of(5000, ((index, index + 1) for index in range(4999))),
}


if __name__ == "__main__":
    main()
