"""The job `optimize` for several batch sizes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from iosched.jobs.annotate import annotated_batches
from iosched.jobs.observer import Interrupt, Observer, Silence, Uninterrupted
from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.jobs.schedule_selection import taken_over
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.time_budget import share_s
from iosched.models.dynamic_batch import DynamicBatchModel
from iosched.models.errors import DeviceError, ExecutionError, UsageError
from iosched.models.export import write_model
from iosched.models.model import Model
from iosched.models.source import StrPath
from iosched.scheduler.batch_schedules import MAX_SIZES, BatchSchedules
from iosched.scheduler.document import ScheduleDocument

OptimizeOne = Callable[[Model, OptimizeSettings, Observer, Interrupt], OptimizeResult]
"""Optimizes the model at one batch size."""


@dataclass(frozen=True)
class _Prefixed:
    observer: Observer
    batch_size: int

    def progress(self, done: int, total: int | None, text: str) -> None:
        self.observer.progress(done, total, f"batch {self.batch_size}: {text}")


@dataclass(frozen=True)
class BatchesResult:
    """The results by batch size.

    Attributes:
        schedules: the schedules of those that succeeded.
        results: their results by batch size, ascending.
        failed: errors by batch size.
        left: the batch sizes that had not begun when the user interrupted.
    """

    model: DynamicBatchModel
    schedules: BatchSchedules
    results: Mapping[int, OptimizeResult]
    failed: Mapping[int, Exception]
    left: tuple[int, ...]

    def save(self, path: StrPath) -> None:
        """Writes the model with its batch dynamic and the schedules inside; the file is written whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        write_model(annotated_batches(self.model, self.schedules), self.model.unbound.weights, path)


def optimize_batches(
    model: DynamicBatchModel,
    batch_sizes: Sequence[int],
    settings: OptimizeSettings,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    schedules_from: ScheduleDocument | BatchSchedules | None = None,
    one: OptimizeOne = optimize,
) -> BatchesResult:
    """Finds the fastest way to run `model` at each batch size, one after another, the smallest first.

    Args:
        batch_sizes: two or more.
        settings: what to optimize for; `budget_s` is shared by all batch sizes. `schedule_from` is ignored, see
            `schedules_from`.
        interrupt: defers interruptions; no further size is begun if the user accepts the best known schedules.
        schedules_from: schedules of a model of the same structure, the nearest of which is used at each batch size
            instead of searching for one.
        one: optimizes the model at one batch size; by default `optimize`.

    Raises:
        UsageError: a setting is wrong, or there are too many batch sizes.
        InvalidModelError: the model cannot run at one of the batch sizes; nothing is searched then.
        InvalidScheduleError: `schedules_from` were made for another structure, shape or type; likewise.
        Errors of `optimize`, if no batch size succeeds or the user interrupts.
    """
    sizes = sorted(set(batch_sizes))
    if not sizes or sizes[0] < 1 or len(sizes) > MAX_SIZES:
        raise UsageError(f"expected 1 to {MAX_SIZES} positive batch sizes")
    models = {size: model.at(size) for size in sizes}  # fails before anything is measured
    sources = {size: None if schedules_from is None else taken_over(schedules_from, models[size]) for size in sizes}
    observer, held = observer or Silence(), interrupt or Uninterrupted()
    results: dict[int, OptimizeResult] = {}
    failed: dict[int, Exception] = {}
    started = time.monotonic()
    for number, size in enumerate(sizes):
        budget_s = share_s(settings.budget_s, started, len(sizes) - number)
        own, shown = replace(settings, budget_s=budget_s, schedule_from=sources[size]), _Prefixed(observer, size)
        try:
            results[size] = one(models[size], own, shown, held)
        except (DeviceError, ExecutionError, MemoryError) as error:
            failed[size] = error
        if held.accepted:
            break
    if not results:
        raise next(iter(failed.values()))
    documents = {size: result.document for size, result in results.items()}
    left = tuple(size for size in sizes if size not in results and size not in failed)
    return BatchesResult(model, BatchSchedules(model.name, model.inputs, documents), results, failed, left)
