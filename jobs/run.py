"""Runs a model by its schedule on a device, or on plain onnxruntime where that is what was shipped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from iosched.jobs.fitting import fitted
from iosched.models.model import Model
from iosched.profiler.devices.executor import Executor
from iosched.profiler.devices.resolve import runner
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.compare import Check, compare
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument

__all__ = ["Executor", "RunResult", "open_executor", "run"]


@dataclass(frozen=True, eq=False)
class RunResult:
    """What running a model gave.

    Attributes:
        outputs: of the first run, by name.
        timing: of the runs after it.
        check: how the outputs compare with those of onnxruntime; None where that was not asked for.
        description: a line that says how the model ran.
        notes: sentences on what is amiss.
    """

    outputs: Mapping[str, np.ndarray]
    timing: Measurement
    check: Check | None
    description: str
    notes: tuple[str, ...]


def run(
    model: Model,
    document: ScheduleDocument | None,
    inputs: Arrays,
    *,
    repeats: int = 1,
    reference: Model | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> RunResult:
    """Runs `model` once, as `open_executor` opens it, and times `repeats` runs after that.

    Args:
        model: the model.
        document: its schedule; None for plain onnxruntime.
        inputs: arrays by the names of inputs.
        repeats: how many runs are timed.
        reference: a model that onnxruntime runs on the same inputs, to compare outputs with.
        device: as `--device` takes it.
        threads: cores to use on a CPU; all that the process may use by default.

    Raises:
        InvalidScheduleError: the schedule is one of another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
    """
    with closing(open_executor(model, document, device=device, threads=threads)) as executor:
        outputs, notes = executor.run(inputs), executor.notes
        check = None if reference is None else _compared(outputs, reference, inputs)
        return RunResult(outputs, summarize(executor.time(inputs, repeats)), check, executor.description, notes)


def _compared(outputs: Mapping[str, np.ndarray], reference: Model, inputs: Arrays) -> Check:
    with Reference(reference) as session:
        return compare(outputs, session.run(inputs))


def open_executor(
    model: Model, document: ScheduleDocument | None, *, device: str = "auto", threads: int | None = None
) -> Executor:
    """Opens `model` under `document`; without one, or where it says so, on plain onnxruntime.

    The schedule may be one of another model of the same structure. On a GPU that was asked for, a model without a
    schedule runs one operator after another.

    Raises:
        InvalidScheduleError: the schedule is one of another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device or onnxruntime is not there.
    """
    document = None if document is None else fitted(document, model)
    return runner(device, document).executor(model, document, threads)
