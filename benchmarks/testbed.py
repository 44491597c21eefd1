"""Shared code of the scripts: the command line, networks on devices, results with provenance, tables and charts."""

from __future__ import annotations

import ast
import hashlib
import json
import platform
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NoReturn

from iosched import Block, ComputationGraph, CostModel, Effort, Model, Schedule, Stage, load_model
from iosched.jobs.matrix_cells import measured_stage_us, stage_latency_us
from iosched.jobs.open_model import opened
from iosched.jobs.provenance import provenance
from iosched.models import zoo
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.devices.facts import package_version
from iosched.profiler.devices.gpus import GpuSpec, gpu_named
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName, OpenSettings
from iosched.profiler.devices.profiled_device import AttachedModel, Way
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.interleaved_models import Budget, close_all, measure_interleaved
from iosched.profiler.measuring.statistics import Interval, Measurement, median_interval, summarize
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import DEFAULT_SEED, random_inputs
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.search import SearchResult, search

RESULTS = Path(__file__).parent / "results"
MEASURING = ("models", "scheduler", "runtime", "profiler", "jobs")
SEEDS: Mapping[str, int] = {"inputs": DEFAULT_SEED}
YARDSTICK = "yardstick"
NAMES = {
    "squeezenet": "SqueezeNet", "googlenet": "GoogLeNet", "inception_v3": "Inception V3", "randwire": "RandWire",
    "resnet50": "ResNet-50", "densenet121": "DenseNet-121", "nasnet_a": "NASNet-A large",
    "nasnet_a@224": "NASNet-A, 224 pixels", "keras_nasnetmobile": "Keras: NASNet-Mobile",
    "keras_inceptionresnetv2": "Keras: Inception-ResNet V2", "keras_xception": "Keras: Xception",
    "keras_inceptionv3": "Keras: Inception V3", "keras_densenet121": "Keras: DenseNet-121",
    "keras_efficientnetb0": "Keras: EfficientNet-B0", "keras_mobilenetv2": "Keras: MobileNetV2",
}  # fmt: skip
"""Networks as tables name and order them."""
Given = Mapping[str, Any]
Table = tuple[Sequence[object], Sequence[Sequence[object]]]
NOTHING: Given = {}
OUTPUTS: Given = {"profile_db": Path, "output": Path, "plot": Path}
MAX_SECONDS = 300.0  # that whole schedules are measured in turn on the CPU


@dataclass(frozen=True)
class Turns:
    """Interleaved latencies of whole schedules, and the slowdown of the device since its profile began."""

    measured: list[Measurement]
    slowness: float = 1.0


InTurn = Callable[[Sequence[Schedule], int], Turns]


@dataclass(frozen=True, eq=False)
class Bed:
    """A network on a device: the graph that is scheduled there, and what its schedules take.

    Attributes:
        effort: how hard `optimize` searches there.
        in_turn: latencies of whole schedules, n samples of each, A B C A B C; None where nothing is measured.
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


RowsOf = Callable[[str, int, Bed], Iterable[Any]]
Plot = Callable[[Path, str, Sequence[Any]], None]


def ablate(options: Namespace, rows_of: RowsOf, plot: Plot, batch_sizes: Sequence[int] = (1,)) -> list[Any]:
    """The rows of all networks that are asked for, kept and drawn; each is a dataclass."""
    rows: list[Any] = []
    for network, batch_size in product(options.networks, batch_sizes):
        with open_bed(network, options.device, batch_size, options.profile_db) as bed:
            title = cost_text(bed)
            rows += rows_of(network, batch_size, bed)
    write_results(options, {"device": title, "rows": list(map(asdict, rows))})
    if options.plot is not None:
        plot(options.plot, title, rows)
    return rows


def _warm(cost: CpuStageCost) -> CpuStageCost:
    """The same, but stages find all that they touch in the caches."""
    return CpuStageCost(cost.backend, cost.database, sweep_nbytes=0)


def _in_turn(model: Model, here: AttachedModel, schedules: Sequence[Schedule], rounds: int) -> Turns:
    inputs = random_inputs(model.graph.inputs)
    openers = {str(index): partial(here.ready, Way(schedule), inputs) for index, schedule in enumerate(schedules)}
    yardstick = _yardstick(here)
    found = in_turn(
        openers, Budget(rounds, MAX_SECONDS), lambda all_of, budget: here.in_turn({**all_of, **yardstick}, budget)
    )
    begun = here.cost.database.calibration(here.cost.device) if yardstick else None
    slowness = 1.0 if begun is None else found[YARDSTICK].median_us / begun.median_us
    return Turns([found[name] for name in openers], slowness)


def _yardstick(here: AttachedModel) -> dict[str, Candidate]:
    """The CPU's yardstick, to be timed in turn with models; GPUs have none."""
    if not isinstance(here, OpenOnCpu):
        return {}
    stage = compile_calibration_kernel(here.cost.backend)
    return {YARDSTICK: Candidate(stage.time)}


def zoo_model(network: str, batch_size: int = 1) -> Model:
    return load_model(zoo.build(network).SerializeToString(), name=network, batch_size=batch_size)


def gpu_spec(name: str) -> GpuSpec:
    """The specification of a GPU.

    Raises:
        SystemExit: there is no such GPU.
    """
    if (found := gpu_named(name)) is None:
        raise SystemExit(f"no GPU named {name}")
    return found


@contextmanager
def open_on_cpu(model: Model) -> Iterator[OpenOnCpu]:
    """The model on this CPU with an empty profile database."""
    with ProfileDatabase(None) as database, closing(CpuDevice().open(model, OpenSettings(), database)) as there:
        yield there


Openers = Mapping[str, Callable[[], Candidate]]
Measure = Callable[[Mapping[str, Candidate], Budget], Mapping[str, Measurement]]


def in_turn(openers: Openers, budget: Budget, measure: Measure = measure_interleaved) -> dict[str, Measurement]:
    """Opens candidates, measures them interleaved, and closes them."""
    candidates: dict[str, Candidate] = {}
    try:
        candidates |= ((name, opener()) for name, opener in openers.items())
        return dict(measure(candidates, budget))
    finally:
        close_all(candidates.values())


def read_options(file: str, words: Sequence[str] | None = None, takes: Given = NOTHING, /, **options: Any) -> Namespace:
    """The command line of a script, whose docstring is the help; `command` is kept with the results.

    A value of `takes` (arguments) or `options` is the default and tells the type: a type alone has the default None,
    False makes a flag, a list takes several words and a tuple several values separated by commas. A dict holds the
    keywords of `ArgumentParser.add_argument`.

    Args:
        file: `__file__` of the script.
        words: the words of the command line; those of this process by default.
    """
    text = ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8")))
    parser = ArgumentParser(description=text, formatter_class=RawDescriptionHelpFormatter)
    for name, value in takes.items():
        parser.add_argument(name, **_keywords(value))
    for name, value in options.items():
        parser.add_argument(*["-o"] * (name == "output"), f"--{name.replace('_', '-')}", **_keywords(value))
    own = sys.argv[1:] if words is None else list(words)
    return parser.parse_args(own, Namespace(command=["python", f"benchmarks/{Path(file).name}", *own]))


def _keywords(value: Any) -> dict[str, Any]:
    match value:
        case dict():
            return value
        case False:
            return {"action": "store_true"}
        case tuple():
            kind = type(value[0]) if value else str
            return {"type": lambda text: [kind(each) for each in text.split(",")], "default": list(value)}
        case list():
            return {"nargs": "*", "type": type(value[0]) if value else str, "default": value}
        case _ if callable(value):
            return {"type": value}
    return {"type": type(value), "default": value}


def refuse(text: str) -> NoReturn:
    """Ends a script whose command line is wrong, as argparse does."""
    print(f"error: {text}", file=sys.stderr)
    raise SystemExit(2)


def known_results(path: Path | None) -> dict[str, Any]:
    """Content of a results file; empty if there is none."""
    found: dict[str, Any] = {} if path is None or not path.exists() else json.loads(path.read_text(encoding="utf-8"))
    return found


def resumed_results(path: Path | None) -> dict[str, Any]:
    """Content of a results file to resume; empty if there is none.

    Ends with an error if the product, the machine or a library was another one: rows of a table share them.
    """
    found = known_results(path)
    if found and (
        differing := [name for name, value in _shared(origin()).items() if _shared(found).get(name) != value]
    ):
        print(f"{path} was measured with another {', '.join(differing)}: write to another file", file=sys.stderr)
        raise SystemExit(2)
    return found


def _shared(content: Mapping[str, Any]) -> dict[str, object]:
    """Common properties of all rows of a file; unknown for a file without provenance."""
    if "provenance" not in content:
        return {}
    whole = content["provenance"]
    libraries = {name: version for name, version in whole["versions"].items() if name not in ("iosched", "commit")}
    machine = whole["machine"]
    return {
        "product": content.get("digest"),
        "machine": (machine["cpu"], machine["design"], len(machine["cores"]), machine["quota"]),
        "library": libraries,
    }


@cache
def product_digest() -> str:
    """SHA-256 of the code that runs and measures models, without comments and docstrings or the command line."""
    found = hashlib.sha256()
    for name in MEASURING:
        folder = Path(str(import_module(f"iosched.{name}").__file__)).parent
        for path in sorted(each for each in folder.rglob("*") if each.suffix in (".py", ".cpp", ".hpp", ".json")):
            found.update(f"{name}/{path.relative_to(folder)}\n".encode() + _code(path))
    return found.hexdigest()


def _code(path: Path) -> bytes:
    if path.suffix != ".py":
        return path.read_bytes()
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).encode()


def _is_text(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant and isinstance(statement.value.value, str)


@cache
def results(name: str) -> dict[str, Any]:
    """A committed results file by its name without suffix."""
    return known_results(RESULTS / f"{name}.json")


def write_results(options: Namespace, content: Mapping[str, object], **more: Any) -> None:
    """Raw results where `-o` says, as `keep_results` writes them; `more` are arguments of that."""
    if options.output is None:
        return
    keep_results(options.output, content, command=options.command, **more)
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
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]] if command is None else list(command)
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
        "digest": product_digest(),
        "provenance": asdict(whole),
    }


def _earlier(path: Path, here: Mapping[str, object]) -> list[object]:
    """Provenance of earlier calls in the file; equal ones count once."""
    known = json.loads(path.read_text(encoding="utf-8"))
    last = {key: known[key] for key in here if key in known}
    found = [*known.get("earlier", []), *([last] if last else [])]
    calls = [_call(each) for each in (*found, json.loads(json.dumps(here)))]
    return [each for index, each in enumerate(found) if calls[index] not in calls[index + 1 :]]


def _call(where: Mapping[str, Any]) -> object:
    """The distinguishing properties of a script's calls: all but the time."""
    return {**where["provenance"], "time": None} if "provenance" in where else where


def _in_lines(record: Mapping[str, object]) -> str:
    """JSON with a line for each item of a list or of an object; those of the first level take more lines."""
    return "{" + ",\n".join(f"{json.dumps(key)}: {_lines(value)}" for key, value in record.items()) + "}"


def _lines(value: object) -> str:
    if isinstance(value, Mapping) and value:
        items = [f"{json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
        return "{\n " + ",\n ".join(items) + "}"
    if isinstance(value, list) and value:
        return "[\n " + ",\n ".join(map(json.dumps, value)) + "]"
    return json.dumps(value)


def markdown_table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table as Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (headers, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(headers)}", *lines[1:]])


def table_of(rows: Sequence[Mapping[str, object]]) -> Table:
    """Rows whose keys are the headers."""
    return list(rows[0]), [list(row.values()) for row in rows]


def print_table(headers: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout as Markdown."""
    print(markdown_table(headers, rows), flush=True)


def compared(samples_us: Mapping[str, Sequence[float]], base: str) -> dict[str, Interval]:
    """Comparison of each alternative with `base`, if both were measured."""
    measured = {name: summarize(samples) for name, samples in samples_us.items()}
    found = {name: compare(measured[base], each) for name, each in measured.items() if name != base}
    return {name: each for name, each in found.items() if each is not None}


def within_rounds(samples_us: Mapping[str, Sequence[float]], base: str, name: str) -> Interval:
    """The median of the speedups within rounds, with its interval; for a machine whose speed changes between rounds."""
    ratios = [before / after for before, after in zip(samples_us[base], samples_us[name], strict=True)]
    return Interval(median(ratios), *median_interval(ratios))


def interval_text(value: float, low: float, high: float, form: str = ".2f") -> str:
    return f"{value:{form}} ({low:{form}} to {high:{form}})"


def range_text(values: Sequence[float], form: str) -> str:
    """The median, and in parentheses the lowest and the highest where they differ."""
    text = interval_text(median(values), min(values), max(values), form)
    return text.split()[0] if f"{min(values):{form}}" == f"{max(values):{form}}" else text


def ratio_text(found: Interval | None, form: str = ".2f") -> str:
    """A comparison in a table; nothing where there is none."""
    return "" if found is None else interval_text(found.value, found.low, found.high, form)


def speedup_text(found: Interval | None) -> str:
    """The same behind a latency."""
    return "" if found is None else f", {ratio_text(found)}"


def latency_cells(samples_us: Mapping[str, Sequence[float]], base: str, *, in_rounds: bool = False) -> list[str]:
    """For each alternative its median in milliseconds, and its speedup over `base`, also as `within_rounds` has it."""
    against = compared(samples_us, base)
    if in_rounds:
        against = {name: within_rounds(samples_us, base, name) for name in against}
    return [f"{median(each) / 1e3:.2f}{speedup_text(against.get(name))}" for name, each in samples_us.items()]


def cost_text(bed: Bed) -> str:
    """Text of a chart's title."""
    how = "analytic model, not measured" if bed.cost_kind == "analytic" else "measured"
    return f"{bed.device} ({how})"


@contextmanager
def chart(path: Path, *counts: int, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes, which are written to an SVG or PNG file; the same data make the same file."""
    import matplotlib

    kind = path.suffix.removeprefix(".")
    matplotlib.use({"png": "agg"}.get(kind, kind))
    matplotlib.rcParams["svg.hashsalt"] = "iosched"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*counts, **settings)
    yield figure, axes
    if "layout" not in settings:
        figure.tight_layout()
    settings = {"dpi": 110, "metadata": {"Software": None}} if kind == "png" else {"metadata": {"Date": None}}
    figure.savefig(path, **settings)
