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

from iosched.jobs.costing import measured_stage_us, stage_latency_us
from iosched.jobs.opening import opened
from iosched.jobs.provenance import provenance
from iosched.models import zoo
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cpu.cost import CpuStageCost
from iosched.profiler.devices.cpu.device import OpenOnCpu
from iosched.profiler.devices.cpu.yardstick import compile_yardstick
from iosched.profiler.devices.device import OpenModelHere
from iosched.profiler.devices.launch import DEFAULT_LAUNCH, LaunchName
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.devices.ways import Way
from iosched.profiler.measuring.in_turn import Budget, Candidate, close_all
from iosched.profiler.measuring.interleave import Comparison, compare
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.inputs import DEFAULT_SEED, random_inputs
from iosched.runtime.processor import cpu_name
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
    """`network` of the zoo on a GPU under the analytic model, or measured: on this machine's CPU or a GPU of it.

    Under the analytic model, kernels are launched one by one, as where the figures that are compared were measured, and
    nothing is taken that was measured elsewhere: results are the same on every machine.
    """
    model = zoo_model(network, batch_size)
    where = resolve(device)
    measures = where.cost_kind == "measured"
    launch: LaunchName = DEFAULT_LAUNCH if measures else "streams"
    settings = OpenSettings(precision=precision, launch=launch, resume=measures)
    with opened(where, model, settings, profile_db) as there:
        yield Bed(
            there.graph,
            where.name,
            where.cost_kind,
            there.cost,
            partial(stage_latency_us, there),
            there.effort,
            None if there.here is None else partial(_in_turn, model, there.here),
            partial(measured_stage_us, _warm(there.cost)) if isinstance(there, OpenOnCpu) else None,
        )


def _warm(cost: CpuStageCost) -> CpuStageCost:
    """The same, but stages find all that they touch in the caches."""
    return CpuStageCost(cost.backend, cost.database, sweep_nbytes=0)


def _in_turn(model: Model, here: OpenModelHere, schedules: Sequence[Schedule], rounds: int) -> Turns:
    inputs = random_inputs(model.graph.inputs)
    candidates: dict[str, Candidate] = {}
    try:
        candidates |= {str(index): here.ready(Way(schedule), inputs) for index, schedule in enumerate(schedules)}
        yardstick = _yardstick(here)
        found = here.in_turn({**candidates, **yardstick}, Budget(rounds, MAX_SECONDS))
    finally:
        close_all(candidates.values())
    begun = here.cost.database.yardstick(here.cost.device) if yardstick else None
    slowness = 1.0 if begun is None else found[YARDSTICK].median_us / begun.median_us
    return Turns([found[name] for name in candidates], slowness)


def _yardstick(here: OpenModelHere) -> dict[str, Candidate]:
    """The CPU's yardstick, to be timed in turn with models; GPUs have none."""
    if not isinstance(here, OpenOnCpu):
        return {}
    stage = compile_yardstick(here.cost.backend)
    return {YARDSTICK: Candidate(stage.time)}


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
        **machine_and_versions(),
        **content,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"raw results: {options.output}", file=sys.stderr)


def machine_and_versions(*rivals: str) -> dict[str, dict[str, object]]:
    """What a results file says of the machine, and of packages; `rivals` are others that may not be installed.

    All of it, with the commit and the time, is under "provenance", as `--json` has it.
    """
    installed = {each.name for each in metadata.distributions()}
    names = ("iosched", "onnxruntime", "onnx", "numpy", *(name for name in rivals if name in installed))
    return {
        "machine": {
            "processor": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": f"{platform.system()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "versions": {name: metadata.version(name) for name in names},
        "provenance": provenance({"inputs": DEFAULT_SEED}, ["python", *sys.argv]).as_object(),
    }


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    return "\n".join(
        [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}", *(f"| {' | '.join(r)} |" for r in rows)]
    )


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout as Markdown."""
    print(markdown_table(headers, rows), flush=True)


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
