"""Schedules and other runtimes measured side by side, in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from iosched.jobs.effort import CPU_EFFORT, GPU_EFFORT
from iosched.jobs.fitting import fitted
from iosched.jobs.optimization import Observer, SearchProgress
from iosched.jobs.run import has_barriers, open_executor
from iosched.models.errors import DeviceError, UsageError
from iosched.models.graph import ComputationGraph
from iosched.models.model import Model
from iosched.profiler.devices.cpu.candidates import Budget, Runnable, close_all, measure_in_turn
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cuda.attached import AttachedGpu, attach, index_for
from iosched.profiler.devices.cuda.candidates import ready
from iosched.profiler.devices.cuda.cost import open_cost
from iosched.profiler.devices.cuda.session_note import session_notes
from iosched.profiler.devices.resolve import require_cpu
from iosched.profiler.measuring.interleave import compare, interleave
from iosched.profiler.measuring.statistics import LEAST_SAMPLES, Measurement
from iosched.profiler.peers.cpu import OPENERS
from iosched.profiler.peers.cuda import OPENERS as GPU_OPENERS
from iosched.profiler.peers.cuda import GpuPlace
from iosched.profiler.store.database import ProfileDatabase, default_path
from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.cuda.backend import CudaModel
from iosched.runtime.cuda.onnxruntime.provider import Provider
from iosched.runtime.inputs import random_inputs
from iosched.scheduler.baselines import sequential
from iosched.scheduler.cost import CostModel
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.effort import Effort
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import search
from iosched.scheduler.strategies import BASELINES, COMPARED, LIMITED, is_searched

_NO_SCHEDULE = "the model carries no schedule; make one with 'iosched optimize'"

NAMES = ("iosched", *COMPARED, *OPENERS, *GPU_OPENERS)

_FEW_ROUNDS = f"From fewer than {LEAST_SAMPLES} rounds it cannot be told which is faster: no speed-up is given."

_ON_REQUEST = (*LIMITED, "torch-compile")
"""What takes a search of its own, or minutes to be opened."""


@dataclass(frozen=True)
class BenchRow:
    """One alternative; latencies in microseconds, of runs in a row.

    `speedup` is against `sequential`, the median of ratios within rounds, and `speedup_low` and `speedup_high` are the
    ends of its confidence interval; None where there are too few rounds for one. `rested_us` is the median after a
    rest; None on a GPU.
    """

    name: str
    median_us: float
    p10_us: float
    p90_us: float
    min_us: float
    samples: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    rested_us: float | None = None


@dataclass(frozen=True)
class BenchResult:
    """All rows of one run, every sample, what was left out with the reason, and sentences on what should be known."""

    device: str
    rows: tuple[BenchRow, ...]
    samples_us: Mapping[str, tuple[float, ...]]
    missing: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def bench(
    model: Model,
    document: ScheduleDocument | None,
    *,
    names: Sequence[str] = (),
    device: str = "auto",
    threads: int | None = None,
    rounds: int = 50,
    profile_db: Path | None = None,
    observer: Observer | None = None,
) -> BenchResult:
    """Measures the alternatives `names` in turn, A B C A B C; `sequential` is always among them.

    Without names these are all that the device has, but for "dos" and what takes minutes to be opened. On a GPU,
    schedules are one CUDA graph each, and all is timed there.

    Raises:
        InvalidScheduleError: the schedule is one of another structure, shape or type.
        UsageError: a name is unknown, or the model's inputs cannot be made up.
        DeviceError: the device or onnxruntime is not there.
    """
    index = index_for(model, device)
    _check_names(names)
    document = None if document is None else fitted(document, model)
    peers = OPENERS if index is None else GPU_OPENERS
    usual = [name for name in ("iosched", *COMPARED, *peers) if name not in _ON_REQUEST]
    wanted = list(dict.fromkeys(("sequential", *(names or usual))))
    if index is not None:
        return _bench_on_gpu(model, document, wanted, index, rounds, profile_db, observer)
    require_cpu(device)
    with ProfileDatabase(profile_db or default_path()) as database, CpuBackend(model, lanes=threads) as backend:
        if not backend.is_supported():
            raise UsageError("this model's inputs have no fixed size, so there is no schedule to measure")
        cost = StageCost(backend, database)
        opened: dict[str, Runnable] = {}
        missing: list[tuple[str, str]] = []
        try:
            for name in wanted:
                try:
                    opened[name] = _open(name, model, document, backend, cost, observer)
                except DeviceError as error:
                    missing.append((name, str(error)))
            inputs = random_inputs(model.graph.inputs)
            found = measure_in_turn(opened, inputs, Budget(rounds, max_seconds=600.0), _told(observer))
        finally:
            close_all(list(opened.values()))
    return _result(cpu_name(), found, missing)


def _result(
    device: str, found: Mapping[str, Measurement], missing: Sequence[tuple[str, str]], notes: Sequence[str] = ()
) -> BenchResult:
    rows = tuple(_row(name, measured, found["sequential"]) for name, measured in found.items())
    samples_us = {name: measured.samples_us for name, measured in found.items()}
    few = () if len(samples_us["sequential"]) >= LEAST_SAMPLES else (_FEW_ROUNDS,)
    return BenchResult(device, rows, samples_us, tuple(missing), (*few, *notes))


def _bench_on_gpu(
    model: Model,
    document: ScheduleDocument | None,
    names: Sequence[str],
    index: int,
    rounds: int,
    profile_db: Path | None,
    observer: Observer | None,
) -> BenchResult:
    gpu = attach(index)
    precision = DEFAULT_PRECISION if document is None else document.precision
    inputs = random_inputs(model.graph.inputs)
    with ProfileDatabase(profile_db or default_path()) as database:
        cost = open_cost(gpu, model, precision, database)
        backend = cost.backend
        provider = Provider.cuda(index, backend.precision)
        place = GpuPlace(model, inputs, backend.precision, gpu.driver, provider)
        plain = backend.compile(sequential(backend.graph))
        runs = {"sequential": ready(plain, inputs)}
        missing: list[tuple[str, str]] = []
        for name in names:
            try:
                if name == "iosched":
                    runs[name] = ready(_shipped(gpu, model, document, precision), inputs)
                elif name in COMPARED and name not in runs:
                    schedule = schedule_named(name, backend.graph, cost, GPU_EFFORT, observer)
                    runs[name] = ready(backend.compile(schedule), inputs)
                elif name in GPU_OPENERS:
                    runs[name] = GPU_OPENERS[name](place)
                elif name in OPENERS:
                    missing.append((name, "runs on the CPU: use --device cpu"))
            except DeviceError as error:
                missing.append((name, str(error)))
        found = interleave(runs, rounds, observer=_told(observer))
    return _result(gpu.name, found, missing, session_notes(plain))


def _shipped(gpu: AttachedGpu, model: Model, document: ScheduleDocument | None, precision: str) -> CudaModel:
    if document is None:
        raise DeviceError(_NO_SCHEDULE)
    return gpu.backend(model, precision, gpu.plans_of(document)).compile(
        document.schedule, barriers=has_barriers(document)
    )


def _check_names(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"unknown alternative {unknown[0]!r}: choose from {', '.join(NAMES)}")


def _told(observer: Observer | None) -> Callable[[int, int], None] | None:
    if observer is None:
        return None
    return lambda done, total: observer.progress(done, total, "measuring in turn")


def _open(
    name: str,
    model: Model,
    document: ScheduleDocument | None,
    backend: CpuBackend,
    cost: StageCost,
    observer: Observer | None,
) -> Runnable:
    if name == "iosched":
        if document is None:
            raise DeviceError(_NO_SCHEDULE)
        return open_executor(model, document, threads=backend.lanes)
    if name in COMPARED:
        return backend.compile(schedule_named(name, backend.graph, cost, CPU_EFFORT, observer))
    if name in GPU_OPENERS:
        raise DeviceError("runs on a GPU: use --device cuda")
    return OPENERS[name](model, backend.lanes)


def schedule_named(
    name: str, graph: ComputationGraph, cost: CostModel, effort: Effort, observer: Observer | None = None
) -> Schedule:
    """The baseline or the best schedule of strategy `name`, in units of the graph that a backend schedules."""
    if not is_searched(name):
        return BASELINES[name](graph)
    progress = None if observer is None else SearchProgress(observer)
    return search(graph, cost, strategy=name, observer=progress, effort=effort).schedule


def _row(name: str, found: Measurement, baseline: Measurement) -> BenchRow:
    compared = compare(baseline, found)
    speedup = (None,) * 3 if compared is None else (compared.speedup, compared.low, compared.high)
    rested_us = None if found.rested is None else found.rested.median_us
    row = BenchRow(name, found.median_us, found.p10_us, found.p90_us, found.min_us, len(found.samples_us), *speedup)
    return replace(row, rested_us=rested_us)
