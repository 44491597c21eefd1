"""The main job: search a schedule by measurement, compare it with what it has to beat, and decide what to ship."""

from __future__ import annotations

import time
from dataclasses import replace

from iosched.jobs.cpu_job import CpuJob
from iosched.jobs.cuda_job import CudaJob
from iosched.jobs.fitting import fitted
from iosched.jobs.optimization import (
    Interrupt,
    Observer,
    OptimizeResult,
    OptimizeSettings,
    Silence,
    Uninterrupted,
)
from iosched.jobs.plan import plan
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.cpu.cost import StageCost
from iosched.profiler.devices.cuda.attached import attach, index_for
from iosched.profiler.devices.cuda.cost import open_cost
from iosched.profiler.devices.resolve import planned_gpu
from iosched.profiler.store.database import MeasurementStore, ProfileDatabase, default_path
from iosched.profiler.store.refresh import Refreshed
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.strategies import NAMES

__all__ = ["OptimizeResult", "OptimizeSettings", "optimize"]


def optimize(
    model: Model,
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
) -> OptimizeResult:
    """Finds the fastest way to run `model` here, or on a GPU that is not here, by a model of it.

    On the CPU, the schedule found is measured in turn with the sequential and the greedy schedule and with plain
    onnxruntime in its best setting; the fastest is shipped, so the result is never slower than plain onnxruntime beyond
    noise. On a GPU it is measured in turn with the sequential schedule in one CUDA graph.

    With `settings.schedule_from`, nothing is searched: that schedule is what is compared and shipped.

    Raises:
        UsageError: a setting is wrong.
        InvalidScheduleError: the schedule to take is one of another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
        KeyboardInterrupt: `interrupt` was asked, and the best schedule known is not wanted.
    """
    if settings.strategy not in NAMES:
        raise UsageError(f"unknown strategy {settings.strategy!r}")
    gpu = planned_gpu(settings.device)
    observer, interrupt = observer or Silence(), interrupt or Uninterrupted()
    if settings.schedule_from is not None:
        settings = replace(settings, schedule_from=fitted(settings.schedule_from, model))
    index = index_for(model, settings.device)
    if index is not None:
        return _optimize_on_gpu(model, settings, index, observer, interrupt)
    if settings.barriers != "auto":
        raise UsageError("--barriers is for attached GPUs")
    if gpu is not None:
        return plan(model, gpu, settings, observer, interrupt)
    if settings.precision != DEFAULT_PRECISION:
        raise UsageError("--precision is for GPUs; the CPU computes in the model's own types")
    started = time.monotonic()
    with _database(settings) as database, CpuBackend(model, lanes=settings.threads) as backend:
        cost = StageCost(backend, _store(database, settings))
        return CpuJob(model, settings, backend, cost, observer, interrupt, started).run()


def _optimize_on_gpu(
    model: Model, settings: OptimizeSettings, index: int, observer: Observer, interrupt: Interrupt
) -> OptimizeResult:
    started = time.monotonic()
    gpu = attach(index)
    with _database(settings) as database:
        cost = open_cost(gpu, model, settings.precision, database, store=_store(database, settings))
        return CudaJob(model, settings, gpu, cost.backend, cost, observer, interrupt, started).run()


def _database(settings: OptimizeSettings) -> ProfileDatabase:
    return ProfileDatabase(settings.profile_db or default_path())


def _store(database: ProfileDatabase, settings: OptimizeSettings) -> MeasurementStore:
    return database if settings.resume else Refreshed(database)
