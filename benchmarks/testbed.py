"""What the ablations share: a network on a device, and the file that results go to."""

from __future__ import annotations

import json
import os
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np

from iosched.jobs.costing import measured_stage_us
from iosched.jobs.effort import CPU_EFFORT, GPU_EFFORT
from iosched.models import zoo
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.analytic import AnalyticCost
from iosched.profiler.devices.cpu.candidates import Arrays, Budget, Runnable, close_all, measure_in_turn
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cpu.yardstick import compile_yardstick
from iosched.profiler.devices.cuda import candidates as cuda_candidates
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach
from iosched.profiler.devices.cuda.cost import open_cost
from iosched.profiler.devices.resolve import attached_index, planned_gpu
from iosched.profiler.measuring.interleave import Comparison, compare
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.profiler.store.database import ProfileDatabase, default_path
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.cost import CostModel
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.search import SearchResult, search

RESULTS = Path(__file__).parent / "results"
YARDSTICK = "yardstick"
MAX_SECONDS = 300.0  # that whole schedules are measured in turn on the CPU


@dataclass(frozen=True)
class Turns:
    """What whole schedules took in turn, and how much slower the device was than when its profile was begun."""

    measured: list[Measurement]
    slowness: float = 1.0


InTurn = Callable[[Sequence[Schedule], int], Turns]


@dataclass(frozen=True, eq=False)
class Bed:
    """A network on a device: the graph that is scheduled there, and what its schedules take.

    Attributes:
        effort: how hard `optimize` searches there.
        in_turn: latencies of whole schedules, so many samples of each, A B C A B C; None where nothing is measured.
        warm_stage_us: latency of a stage that finds all that it touches in the caches; None but on the CPU.
    """

    graph: ComputationGraph
    device: str
    cost_kind: str
    cost: CostModel
    stage_us: Callable[[Stage], float]
    effort: Effort = Effort()
    in_turn: InTurn | None = None
    warm_stage_us: Callable[[Stage], float] | None = None

    def search(self, pruning: Pruning = DEFAULT_PRUNING) -> SearchResult:
        """The best schedule, with the effort that `optimize` makes."""
        return search(self.graph, self.cost, pruning=pruning, effort=self.effort)

    def latency_us(self, schedule: Schedule) -> float:
        return sum(map(self.block_us, schedule.blocks))

    def block_us(self, block: Block) -> float:
        return sum(map(self.stage_us, block.stages))


@contextmanager
def open_bed(
    network: str,
    device: str,
    batch_size: int = 1,
    profile_db: Path | None = None,
    precision: PrecisionName = DEFAULT_PRECISION,
) -> Iterator[Bed]:
    """`network` of the zoo on a GPU under the analytic model, or measured: on this machine's CPU or a GPU of it."""
    model = zoo_model(network, batch_size)
    index, gpu = attached_index(device), planned_gpu(device)
    if index is None and gpu is not None:
        cost = AnalyticCost(model.graph, gpu, precision)
        yield Bed(model.graph, gpu.name, "analytic", cost, cost.stage_latency_us)
        return
    with ProfileDatabase(profile_db or default_path()) as database:
        if index is not None:
            yield _gpu_bed(model, attach(index), precision, database)
            return
        with CpuBackend(model) as backend:
            measured = StageCost(backend, database)
            stage_us = partial(measured_stage_us, measured)
            warm_us = partial(measured_stage_us, StageCost(backend, database, sweep_nbytes=0))
            in_turn = partial(_in_turn_on_cpu, model, measured)
            yield Bed(backend.graph, cpu_name(), "measured", measured, stage_us, CPU_EFFORT, in_turn, warm_us)


@dataclass(frozen=True)
class _Yardstick:
    """The yardstick as if it were a model, to be timed in turn with models."""

    stage: CompiledStage

    def run(self, inputs: Arrays) -> dict[str, np.ndarray]:
        raise NotImplementedError("the yardstick is only timed")

    def time(self, inputs: Arrays, repeats: int) -> tuple[float, ...]:
        del inputs
        return self.stage.time(repeats)

    def close(self) -> None:
        self.stage.executor.close()


def _in_turn_on_cpu(model: Model, cost: StageCost, schedules: Sequence[Schedule], rounds: int) -> Turns:
    opened: dict[str, Runnable] = {}
    try:
        opened |= {str(index): cost.backend.compile(schedule) for index, schedule in enumerate(schedules)}
        timed = {**opened, YARDSTICK: _Yardstick(compile_yardstick(cost.backend))}
        found = measure_in_turn(timed, random_inputs(model.graph.inputs), Budget(rounds, MAX_SECONDS))
    finally:
        close_all(list(opened.values()))
    begun = cost.database.yardstick(cost.device)
    slowness = 1.0 if begun is None else found[YARDSTICK].median_us / begun.median_us
    return Turns([found[name] for name in opened], slowness)


def _gpu_bed(model: Model, gpu: AttachedGpu, precision: PrecisionName, database: ProfileDatabase) -> Bed:
    measured = open_cost(gpu, model, precision, database)
    backend = measured.backend
    stage_us = partial(measured_stage_us, measured)
    in_turn = partial(_in_turn_on_gpu, model, backend)
    return Bed(backend.graph, gpu.name, "measured", measured, stage_us, GPU_EFFORT, in_turn)


def _in_turn_on_gpu(model: Model, backend: CudaBackend, schedules: Sequence[Schedule], rounds: int) -> Turns:
    opened = {str(index): backend.compile(schedule) for index, schedule in enumerate(schedules)}
    try:
        found = cuda_candidates.measure_in_turn(opened, random_inputs(model.graph.inputs), rounds)
    finally:
        for each in opened.values():
            each.close()
    return Turns([found[name] for name in opened])


def zoo_model(network: str, batch_size: int = 1) -> Model:
    return load_model(zoo.build(network).SerializeToString(), name=network, batch_size=batch_size)


def option_parser(text: str | None, *, networks: str, device: str = "v100") -> ArgumentParser:
    """The options that all ablations take; `text` is the script's own account of itself."""
    parser = ArgumentParser(description=(text or "").splitlines()[0])
    parser.add_argument("--networks", default=networks, help="comma-separated names from `iosched zoo list`")
    parser.add_argument("--device", default=device, help="a GPU, by the analytic model; 'cpu' or 'cuda', measured")
    parser.add_argument("--profile-db", type=Path, help="profile database of what is measured")
    parser.add_argument("-o", "--output", type=Path, help="raw results as JSON")
    parser.add_argument("--plot", type=Path, metavar="F.svg", help="draw a chart (needs matplotlib)")
    return parser


def write_results(options: Namespace, script: str, words: Sequence[str], content: dict[str, object]) -> None:
    """Raw results with the machine and the versions, where `-o` says."""
    if options.output is None:
        return
    record = {
        "command": f"python benchmarks/{script}.py {' '.join(words)}".strip(),
        "machine": {
            "processor": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "versions": {name: metadata.version(name) for name in ("iosched", "onnxruntime", "onnx", "numpy")},
        **content,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"raw results: {options.output}", file=sys.stderr)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout as Markdown."""
    print(f"| {' | '.join(headers)} |")
    print(f"|{'---|' * len(headers)}")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def compared(samples_us: Mapping[str, Sequence[float]], base: str) -> dict[str, Comparison]:
    """How each alternative that was measured in turn with `base` compares with it, where that can be told."""
    measured = {name: summarize(samples) for name, samples in samples_us.items()}
    found = {name: compare(measured[base], each) for name, each in measured.items() if name != base}
    return {name: each for name, each in found.items() if each is not None}


def speedup_text(found: Comparison | None) -> str:
    """A comparison in a table, behind a latency; nothing where there is none."""
    return "" if found is None else f", {found.speedup:.2f} ({found.low:.2f} to {found.high:.2f})"


def cost_text(bed: Bed) -> str:
    """What stands in a chart's title."""
    how = "analytic model, not measured" if bed.cost_kind == "analytic" else "measured"
    return f"{bed.device} ({how})"
