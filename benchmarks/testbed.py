"""Networks on devices, for scripts that measure or compute latencies of schedules."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from results_files import write_results

from iosched import Block, ComputationGraph, CostModel, Effort, Model, Schedule, Stage, load_model
from iosched.jobs.matrix_cells import measured_stage_us, stage_latency_us
from iosched.jobs.open_model import opened
from iosched.models import zoo
from iosched.profiler.devices.cpu.calibration_kernel import compile_calibration_kernel
from iosched.profiler.devices.cpu.device import CpuDevice
from iosched.profiler.devices.cpu.measured_cost import CpuStageCost
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.profiler.devices.gpus import GpuSpec, gpu_named
from iosched.profiler.devices.open_settings import DEFAULT_LAUNCH, LaunchName, OpenSettings
from iosched.profiler.devices.profiled_device import AttachedModel, Way
from iosched.profiler.devices.resolve import resolve
from iosched.profiler.measuring.interleaved_models import Budget, close_all, measure_interleaved
from iosched.profiler.measuring.statistics import Measurement
from iosched.profiler.store.database import ProfileDatabase
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName
from iosched.scheduler.pruning import DEFAULT_PRUNING, Pruning
from iosched.scheduler.search import SearchResult, search

CALIBRATION = "yardstick"
MAX_SECONDS = 300.0  # for interleaved whole schedules on the CPU


@dataclass(frozen=True)
class Turns:
    """Interleaved latencies of whole schedules, and the slowdown of the device since its profile began."""

    measured: list[Measurement]
    slowness: float = 1.0


InTurn = Callable[[Sequence[Schedule], int], Turns]


@dataclass(frozen=True, eq=False)
class Bed:
    """A network on a device: the scheduled graph, and the latencies of its schedules.

    Attributes:
        effort: how hard `optimize` searches there.
        in_turn: latencies of whole schedules, n samples of each, A B C A B C; None if nothing is measured.
        warm_stage_us: latency of a stage with warm caches; None except on the CPU.
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
    """`network` of the zoo on a GPU under the analytic model, or measured on this machine's CPU or GPU.

    Under the analytic model, kernels are launched one by one, as for the published figures, and
    measurements of other machines are ignored: results are the same on every machine.
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
            None if there.attached is None else partial(_in_turn, model, there.attached),
            partial(measured_stage_us, _warm(there.cost)) if isinstance(there, OpenOnCpu) else None,
        )


RowsOf = Callable[[str, int, Bed], Iterable[Any]]
Plot = Callable[[Path, str, Sequence[Any]], None]


def ablate(options: Namespace, rows_of: RowsOf, plot: Plot, batch_sizes: Sequence[int] = (1,)) -> list[Any]:
    """Stores and draws the rows of all requested networks; each is a dataclass."""
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
    """The same, but stages have warm caches."""
    return CpuStageCost(cost.backend, cost.database, flush_nbytes=0)


def _in_turn(model: Model, here: AttachedModel, schedules: Sequence[Schedule], rounds: int) -> Turns:
    inputs = random_inputs(model.graph.inputs)
    openers = {str(index): partial(here.ready, Way(schedule), inputs) for index, schedule in enumerate(schedules)}
    calibration = _calibration(here)
    found = in_turn(
        openers, Budget(rounds, MAX_SECONDS), lambda all_of, budget: here.in_turn({**all_of, **calibration}, budget)
    )
    begun = here.cost.database.calibration(here.cost.device) if calibration else None
    slowness = 1.0 if begun is None else found[CALIBRATION].median_us / begun.median_us
    return Turns([found[name] for name in openers], slowness)


def _calibration(here: AttachedModel) -> dict[str, Candidate]:
    """The CPU's calibration kernel, to be timed in turn with models; GPUs have none."""
    if not isinstance(here, OpenOnCpu):
        return {}
    stage = compile_calibration_kernel(here.cost.backend)
    return {CALIBRATION: Candidate(stage.time)}


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


def cost_text(bed: Bed) -> str:
    """Text of a chart's title."""
    how = "analytic model, not measured" if bed.cost_kind == "analytic" else "measured"
    return f"{bed.device} ({how})"
