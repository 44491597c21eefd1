"""What the ablations share: a network on a device, and the file that results go to."""

from __future__ import annotations

import json
import platform
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from iosched.jobs.matrix_cells import measured_stage_us, stage_latency_us
from iosched.jobs.open_model import opened
from iosched.jobs.provenance import provenance
from iosched.models import zoo
from iosched.models.graph import ComputationGraph
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.devices.device import AttachedModel, Way
from iosched.profiler.devices.facts import package_version
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName, OpenSettings
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.interleaved_models import Budget, close_all
from iosched.profiler.measuring.statistics import Interval, Measurement, summarize
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import DEFAULT_SEED, random_inputs
from iosched.scheduler.cost import CostModel
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.schedule import Block, Schedule, Stage
from iosched.scheduler.search import SearchResult, search

RESULTS = Path(__file__).parent / "results"
SEEDS: Mapping[str, int] = {"inputs": DEFAULT_SEED}
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
    measures = where.info.cost_kind == "measured"
    launch: LaunchName = DEFAULT_LAUNCH if measures else "streams"
    settings = OpenSettings(precision=precision, launch=launch, resume=measures)
    with opened(where, model, settings, profile_db) as there:
        yield Bed(
            there.graph,
            where.info.name,
            where.info.cost_kind,
            there.cost,
            partial(stage_latency_us, there),
            there.effort,
            None if there.here is None else partial(_in_turn, model, there.here),
            partial(measured_stage_us, _warm(there.cost)) if isinstance(there, OpenOnCpu) else None,
        )


def _warm(cost: CpuStageCost) -> CpuStageCost:
    """The same, but stages find all that they touch in the caches."""
    return CpuStageCost(cost.backend, cost.database, sweep_nbytes=0)


def _in_turn(model: Model, here: AttachedModel, schedules: Sequence[Schedule], rounds: int) -> Turns:
    inputs = random_inputs(model.graph.inputs)
    candidates: dict[str, Candidate] = {}
    try:
        candidates |= {str(index): here.ready(Way(schedule), inputs) for index, schedule in enumerate(schedules)}
        yardstick = _yardstick(here)
        found = here.in_turn({**candidates, **yardstick}, Budget(rounds, MAX_SECONDS))
    finally:
        close_all(candidates.values())
    begun = here.cost.database.calibration(here.cost.device) if yardstick else None
    slowness = 1.0 if begun is None else found[YARDSTICK].median_us / begun.median_us
    return Turns([found[name] for name in candidates], slowness)


def _yardstick(here: AttachedModel) -> dict[str, Candidate]:
    """The CPU's yardstick, to be timed in turn with models; GPUs have none."""
    if not isinstance(here, OpenOnCpu):
        return {}
    stage = compile_calibration_kernel(here.cost.backend)
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


def write_results(
    options: Namespace, script: str, words: Sequence[str], content: Mapping[str, object], **more: Any
) -> None:
    """Raw results where `-o` says, as `keep_results` writes them; `more` are arguments of that."""
    if options.output is None:
        return
    keep_results(options.output, content, command=("python", f"benchmarks/{script}.py", *words), **more)
    print(f"raw results: {options.output}", file=sys.stderr)


def keep_results(
    path: Path,
    content: Mapping[str, object],
    *,
    seeds: Mapping[str, int] = SEEDS,
    command: Sequence[str] | None = None,
    rivals: Sequence[str] = (),
    goes_on: bool = False,
    in_lines: bool = False,
) -> None:
    """Writes what was found with where it comes from; every results file is written here, and never by half.

    Args:
        content: what was found. A key of its own that is also one of `origin` wins.
        seeds: what random numbers were drawn from, by what they are for; by default those of random inputs.
        command: the words of the command; those of this process by default.
        rivals: packages that take part, beside those that are always named.
        goes_on: whether results of earlier calls are in the content. Where those come from is kept under "earlier".
        in_lines: whether each item of what is found stands on a line of its own, for files of many rows.
    """
    here = origin(seeds, command, rivals)
    earlier = {"earlier": _earlier(path, here)} if goes_on and path.exists() else {}
    record = {**here, **earlier, **content}
    text = _in_lines(record) if in_lines else json.dumps(record, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def origin(
    seeds: Mapping[str, int] = SEEDS, command: Sequence[str] | None = None, rivals: Sequence[str] = ()
) -> dict[str, object]:
    """Where results come from that are made here and now: the command, the machine and the versions in short.

    All of it, with the seeds, the commit and the time, is under "provenance", as `--json` has it.
    """
    words = _own_command() if command is None else list(command)
    whole = provenance(seeds, words)
    names = ("iosched", "onnxruntime", "onnx", "numpy", *rivals)
    return {
        "command": " ".join(words),
        "machine": {
            "processor": whole.machine.cpu,
            "cores": len(whole.machine.cores),
            "system": f"{whole.machine.system} {whole.machine.architecture}",
            "python": platform.python_version(),
        },
        "versions": {name: version for name in names if (version := package_version(name))},
        "provenance": asdict(whole),
    }


def _own_command() -> list[str]:
    return ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]


def _earlier(path: Path, here: Mapping[str, object]) -> list[object]:
    """Where the results of earlier calls come from, as far as the file says it; calls that say the same count once."""
    known = json.loads(path.read_text(encoding="utf-8"))
    last = {key: known[key] for key in here if key in known}
    found = [*known.get("earlier", []), *([last] if last else [])]
    calls = [_call(each) for each in (*found, json.loads(json.dumps(here)))]
    return [each for index, each in enumerate(found) if calls[index] not in calls[index + 1 :]]


def _call(where: Mapping[str, Any]) -> object:
    """What tells the calls of a script apart: all but the time."""
    return {**where["provenance"], "time": None} if "provenance" in where else where


def _in_lines(record: Mapping[str, object]) -> str:
    """JSON with a line for each item of a list or of an object; those of the first level stand on more lines."""
    return "{" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in record.items()) + "}"


def _lines(value: object) -> str:
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
        return "{\n " + ",\n ".join(items) + "}"
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(json.dumps, value)) + "]"
    return json.dumps(value)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown."""
    return "\n".join(
        [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}", *(f"| {' | '.join(r)} |" for r in rows)]
    )


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout as Markdown."""
    print(markdown_table(headers, rows), flush=True)


def compared(samples_us: Mapping[str, Sequence[float]], base: str) -> dict[str, Interval]:
    """How each alternative that was measured in turn with `base` compares with it, where that can be told."""
    measured = {name: summarize(samples) for name, samples in samples_us.items()}
    found = {name: compare(measured[base], each) for name, each in measured.items() if name != base}
    return {name: each for name, each in found.items() if each is not None}


def ratio_text(found: Interval | None) -> str:
    """A comparison in a table; nothing where there is none."""
    return "" if found is None else f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def speedup_text(found: Interval | None) -> str:
    """The same behind a latency."""
    return "" if found is None else f", {ratio_text(found)}"


def cost_text(bed: Bed) -> str:
    """What stands in a chart's title."""
    how = "analytic model, not measured" if bed.cost_kind == "analytic" else "measured"
    return f"{bed.device} ({how})"
