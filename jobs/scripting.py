"""`iosched.optimize`: the job as a script calls it, by the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypedDict, Unpack

from iosched.jobs import optimize as job
from iosched.jobs.interrupt import Interrupt
from iosched.jobs.loaded import Source, read
from iosched.jobs.optimized_model import OptimizedModel
from iosched.jobs.progress import Observer
from iosched.jobs.result import OptimizeResult
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.model import Model
from iosched.profiler.devices.open_settings import Barriers, LayoutName
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.strategy_names import StrategyName
from iosched.scheduler.teams import Objective


class OptimizeWords(TypedDict, total=False):
    """The options of `iosched optimize`, as `OptimizeSettings` has them; `budget` is its `budget_s`."""

    device: str
    threads: int | None
    strategy: StrategyName
    r: int | None
    s: int | None
    budget: float | None
    profile_db: Path | None
    precision: str
    exhaustive: bool
    resume: bool
    barriers: Barriers
    layout: LayoutName
    launch: str
    objective: Objective
    schedule_from: ScheduleDocument | None


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
    """Finds the fastest way to run a model on a device of this machine or, by the analytic model, on another GPU.

    >>> result = iosched.optimize("model.onnx", device="v100", batch_size=1)
    >>> result.cost
    'analytic'
    >>> result.save("fast.onnx")
    >>> result.run({"x": np.ones((1, 8, 6, 6), np.float32)})["y"].shape
    (1, 16, 6, 6)
    >>> result.close()

    Args:
        model: a path, the bytes of a file, or a model that is loaded.
        settings: what to optimize for, and how hard to try; or `words` instead.
        observer: is shown the progress.
        interrupt: holds back interruptions of the search; by default they are raised at once.
        batch_size: the first dimension of every input, for a model that is not loaded yet.
        input_shapes: full shapes of inputs by name, for a model that is not loaded yet.
        **words: options of the command line: `device="cpu"`, `threads=2`, `budget=60`, and so on.

    Raises:
        UsageError: a setting is wrong, or there are settings and words.
        InvalidScheduleError: the given schedule was made for another structure, shape or type.
        InvalidModelError: the file is no model that can be run, or onnxruntime refuses it.
        DeviceError: the device is not attached, onnxruntime is not installed, or the memory of a GPU is too small.
        ExecutionError: a kernel fails on a GPU.
        KeyboardInterrupt: the user interrupts, and does not want the best schedule known.
    """
    asked = _settings(settings, words)
    loaded = read(model, batch_size=batch_size, input_shapes=input_shapes)
    result = job.optimize(loaded, asked, observer, interrupt)
    return replace(result, model=OptimizedModel(loaded, asked.threads))


def _settings(settings: OptimizeSettings | None, words: OptimizeWords) -> OptimizeSettings:
    if settings is not None and words:
        raise UsageError(f"settings and {min(words)}= are both given: put it into the settings")
    named: dict[str, object] = dict(words)
    if "budget" in named:
        named["budget_s"] = named.pop("budget")
    return settings or replace(OptimizeSettings(), **named)  # type: ignore[arg-type]
