"""`iosched.optimize`: the job for scripts, with the options of the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from iosched.jobs import optimize as job
from iosched.jobs import optimize_batches as job_batches
from iosched.jobs.loading.loaded_model import read
from iosched.jobs.observer import Interrupt, Observer
from iosched.jobs.optimize_batches import BatchesResult
from iosched.jobs.optimizing.result import OptimizedModel, OptimizeResult
from iosched.jobs.settings import OptimizeSettings
from iosched.models.dynamic_batch import with_dynamic_batch
from iosched.models.errors import UsageError
from iosched.models.load import read_unbound
from iosched.models.model import Model
from iosched.models.source import Source, StrPath
from iosched.profiler.devices.open_settings import Barriers, LayoutName
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.strategies import StrategyName
from iosched.scheduler.teams import Objective


class OptimizeWords(TypedDict, total=False):
    """The options of `iosched optimize`, as `OptimizeSettings` has them with units (`budget_s`, `gap_percent`)."""

    device: str
    threads: int | None
    strategy: StrategyName
    r: int | None
    s: int | None
    budget: float | None
    profile_db: StrPath | None
    precision: str
    exhaustive: bool
    resume: bool
    barriers: Barriers
    layout: LayoutName
    launch: str
    objective: Objective
    strict: bool
    gap: float | None
    schedule_from: ScheduleDocument | None
    units: Sequence[Sequence[str]]


def optimize(
    model: Source | Model,
    settings: OptimizeSettings | None = None,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    *,
    batch_size: int | None = None,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    **words: Unpack[OptimizeWords],
) -> OptimizeResult:
    """Finds the fastest way to run a model on an attached device or, by the analytic model, on another GPU.

    >>> result = iosched.optimize("model.onnx", device="v100", batch_size=1)
    >>> result.cost
    'analytic'
    >>> result.save("fast.onnx")
    >>> result.run({"x": np.ones((1, 8, 6, 6), np.float32)})["y"].shape
    (1, 16, 6, 6)
    >>> result.close()

    Args:
        model: a path, the bytes of a file, or a model that is loaded.
        settings: the settings; or `words` instead.
        interrupt: defers interruptions of the search; by default they are raised at once.
        batch_size: the first dimension of every input, for a model that is not loaded yet.
        input_shapes: full shapes of inputs by name, for a model that is not loaded yet.
        **words: options of the command line: `device="cpu"`, `threads=2`, `budget=60`, and so on.

    Raises:
        UsageError: a setting is wrong, or there are settings and words.
        InvalidScheduleError: the given schedule was made for another structure, shape or type.
        InvalidModelError: the file is no model that can be run, or onnxruntime refuses it.
        DeviceError: the device is not attached, onnxruntime is not installed, or the memory of a GPU is too small.
        ExecutionError: a kernel fails on a GPU.
        KeyboardInterrupt: the user interrupts and declines the best schedule known.
    """
    asked = _settings(settings, words)
    loaded = read(model, batch_size=batch_size, input_shapes=input_shapes)
    result = job.optimize(loaded, asked, observer, interrupt)
    return replace(result, model=OptimizedModel(loaded, asked.threads))


def optimize_batches(
    source: Source,
    batch_sizes: Sequence[int],
    settings: OptimizeSettings | None = None,
    observer: Observer | None = None,
    interrupt: Interrupt | None = None,
    *,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    schedules_from: ScheduleDocument | BatchSchedules | None = None,
    **words: Unpack[OptimizeWords],
) -> BatchesResult:
    """Finds the fastest way to run a model at each of several batch sizes; see `optimize`.

    >>> found = iosched.optimize_batches("model.onnx", (1, 4), device="v100")
    >>> found.save("several.iosched.onnx")
    >>> with iosched.load_batches("several.iosched.onnx", device="cpu", threads=1) as model:
    ...     model.run({"x": np.ones((4, 8, 6, 6), np.float32)})["y"].shape
    (4, 16, 6, 6)

    Args:
        source: the path of a model, or the bytes of one. Its batch is the first dimension of its inputs.
        settings, observer, interrupt, words: as `optimize` takes them; a budget is for all batch sizes together.
        input_shapes: full shapes of inputs by name, as they are at one of the batch sizes.
        schedules_from: schedules of a model of the same structure, the nearest of which is used at each batch size
            instead of searching for one.

    Raises:
        UsageError: a setting is wrong, or the model has no batch.
        InvalidModelError: the file is no model that can be run at these batch sizes.
        InvalidScheduleError: the given schedules were made for another structure, shape or type.
        DeviceError, ExecutionError: no batch size succeeded; partial failures are in the result.
        KeyboardInterrupt: the user interrupts and declines the best schedules known.
    """
    asked = _settings(settings, words)
    unbound = read_unbound(source)
    model = with_dynamic_batch(unbound, sorted(set(batch_sizes)), input_shapes)
    return job_batches.optimize_batches(
        *(model, batch_sizes, asked, observer, interrupt), schedules_from or asked.schedule_from
    )


def _settings(settings: OptimizeSettings | None, words: OptimizeWords) -> OptimizeSettings:
    if settings is not None and words:
        raise UsageError(f"settings and {min(words)}= are both given: set it in the settings")
    fields = {"budget": "budget_s", "gap": "gap_percent"}
    named = {fields.get(name, name): value for name, value in words.items()}
    if (database := words.get("profile_db")) is not None:
        named["profile_db"] = Path(database)
    if (units := words.get("units")) is not None:
        named["units"] = tuple(map(tuple, units))
    return settings or replace(OptimizeSettings(), **named)  # type: ignore[arg-type]
