"""Counts the questions of each round of a search, which limit the speedup by several machines.

    python benchmarks/rounds.py MODEL... -o results/rounds.json     # zoo:NAME, light_NAME, or a file; adds to results
    python benchmarks/rounds.py --cpu MODEL... -o results/rounds.json

Latencies are those of the analytic model of a V100, and of two simulated lanes with noise under the effort that
`optimize` makes on a CPU. With `--cpu` they are measured on this CPU, which takes as long as a search. A round is the
set of questions that a search announces at once (`Prefetchable`), without those that an earlier round or another stage
with the same signature has answered.

The limit for n workers assumes equally long answers, no overlap of rounds, and no other cost: it is the number of
questions divided by the sum of ceil(round / n).

Options:
    models: zoo:NAME, light_NAME of the onnx package, or a file
    --cpu: measure on this CPU
    --output: raw results as JSON; those in it are kept
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from command_line import read_options
from cpu_models import cpu_model, short_name
from result_tables import Table, interval_text
from results_files import resumed_results, write_results
from search import NOISE, Analytic, Timed, TwoLanes

from iosched import ComputationGraph, Effort, Stage, search
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import CPU_EFFORT
from iosched.profiler.measuring.statistics import quantile
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.cost import CostQuestion
from iosched.scheduler.signature import stage_signature

WORKERS = (2, 4, 16, 64)
V100, LANES, CPU = "analytic V100", "two lanes with noise", "measured on a CPU"
TITLES = {
    "squeezenet": "SqueezeNet", "googlenet": "GoogLeNet", "inception_v3": "Inception V3", "randwire": "RandWire",
    "nasnet_a": "NASNet-A", "resnet50": "ResNet-50", "vgg16": "VGG-16", "densenet121": "DenseNet-121",
    "light_shufflenet": "ShuffleNet (onnx)", "light_inception_v2": "Inception V2 (onnx)",
    "keras_nasnetmobile": "Keras: NASNet-Mobile", "keras_inceptionv3": "Keras: Inception V3",
    "keras_efficientnetb0": "Keras: EfficientNet-B0", "keras_mobilenetv2": "Keras: MobileNetV2",
}  # fmt: skip

Key = tuple[str, str]
Row = Mapping[str, Any]


class NoisyLanes(TwoLanes):
    """Two lanes with noise: another measurement of a stage has another latency."""

    def __init__(self, graph: ComputationGraph) -> None:
        super().__init__(graph)
        self.graph = graph

    def remeasure(self, stage: Stage) -> float:
        key = stage_signature(self.graph, stage, lambda operator: self.operator_key(operator.name))
        return self.stage_latency_us(stage) * max(random.Random(f"again {key}").gauss(1.0, NOISE), 0.5)


class Measured(Timed):
    """This CPU; repeated questions are measured once."""

    def __init__(self, cost: CpuStageCost) -> None:
        super().__init__(cost)
        self.graph = cost.backend.graph
        self._asked: set[str] = set()

    @property
    def signatures(self) -> int:
        """Number of distinct stages requested."""
        return len(self._asked)

    def stage_latency_us(self, stage: Stage) -> float:
        self._asked.add(stage_signature(self.graph, stage, lambda operator: self.operator_key(operator.name)))
        return super().stage_latency_us(stage)


Cost = Analytic | TwoLanes | Measured


@dataclass(eq=False)
class Workers:
    """Receives whole rounds.

    Attributes:
        sizes: number of new questions in each round.
    """

    graph: ComputationGraph
    operator_key: Callable[[str], str]
    sizes: list[int] = field(default_factory=list)
    known: set[Key] = field(default_factory=set)

    def prefetch(self, questions: Sequence[CostQuestion]) -> None:
        if new := set(map(self.key, questions)) - self.known:
            self.known |= new
            self.sizes.append(len(new))

    def key(self, question: CostQuestion) -> Key:
        """Equal for questions that one measurement answers: a single operator is a stage."""
        kind = "latency" if question.kind == "operator" else question.kind
        return kind, stage_signature(self.graph, question.stage, lambda operator: self.operator_key(operator.name))

    @property
    def n_stages(self) -> int:
        """Number of stages whose first latency was requested."""
        return sum(kind == "latency" for kind, _ in self.known)


@dataclass(frozen=True)
class Found:
    """The rounds of one search; answers of the same round ruled out `in_vain` of its questions."""

    model: str
    cost: str
    blocks: int
    in_vain: int
    seconds: float
    sizes: list[int]


def rounds_of(
    model: str, cost_name: str, graph: ComputationGraph, cost_of: Callable[[], Cost], effort: Effort
) -> Found:
    """Searches, and records the rounds."""
    cost = cost_of()
    workers = Workers(graph, cost.operator_key)
    started = time.perf_counter()
    result = search(graph, cost, effort=effort, ahead=workers)
    measuring_s = cost.seconds if isinstance(cost, Timed) else 0.0
    seconds, in_vain = time.perf_counter() - started - measuring_s, workers.n_stages - cost.signatures
    return Found(model, cost_name, len(result.schedule.blocks), in_vain, round(seconds, 2), workers.sizes)


def all_of(name: str) -> Iterator[Found]:
    """The rounds of a model under both kinds of costs."""
    model = cpu_model(name)
    yield rounds_of(short_name(name), V100, model.graph, lambda: Analytic(model.graph, "v100"), Effort())
    with CpuBackend(model) as backend:
        graph = backend.graph
        yield rounds_of(short_name(name), LANES, graph, lambda: NoisyLanes(graph), CPU_EFFORT)


def measured(name: str) -> Iterator[Found]:
    """The rounds of a model on this CPU."""
    with CpuBackend(cpu_model(name)) as backend, ProfileDatabase(None) as database:
        cost = CpuStageCost(backend, database)  # one for all searches, so that all get the same answers
        yield rounds_of(short_name(name), CPU, backend.graph, lambda: Measured(cost), CPU_EFFORT)


def table(rows: Sequence[Row], cost: str) -> Table:
    """The rows of one kind of costs, in the order of `TITLES`."""
    order = list(TITLES)
    ordered = sorted(rows, key=lambda row: order.index(row["model"]))
    return _headers(cost), [_cells(row) for row in ordered if row["cost"] == cost]


def _headers(cost: str) -> list[str]:
    first = [cost, "questions", "in vain", "rounds", "a round: median (quartiles), largest"]
    return [*first, *(f"{workers} workers" for workers in WORKERS)]


def _cells(row: Row) -> list[str]:
    sizes = row["sizes"]
    asked = sum(sizes) - row["in_vain"]
    low, middle, high = (quantile(sizes, part) for part in (0.25, 0.5, 0.75))
    counts = f"{asked:,}", str(row["in_vain"]), str(len(sizes))
    gains = (f"{asked / sum(ceil(size / workers) for size in sizes):.1f}" for workers in WORKERS)
    return [TITLES[row["model"]], *counts, f"{interval_text(middle, low, high, 'g')}, {max(sizes)}", *gains]


def main(words: Sequence[str] | None = None) -> None:
    """Searches each named model."""
    options = read_options(__file__, words, {"models": []}, cpu=False, output=Path)
    rows: list[Row] = []
    for name in options.models:
        found_now = list(measured(name) if options.cpu else all_of(name))
        rows += map(asdict, found_now)
        print(f"{name}: {[len(found.sizes) for found in found_now]} rounds", file=sys.stderr, flush=True)
    if rows and options.output:
        names = {(row["model"], row["cost"]) for row in rows}
        rows = [row for row in _rows(options.output) if (row["model"], row["cost"]) not in names] + rows
        write_results(options, {"noise": NOISE, "rows": rows}, goes_on=True)


def _rows(path: Path) -> list[Row]:
    return list(resumed_results(path).get("rows", []))


if __name__ == "__main__":
    main()
