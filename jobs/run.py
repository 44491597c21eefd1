"""The job `run`: runs a model by its schedule on a device, or on plain onnxruntime if the schedule file says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from iosched.jobs.batching.check import member_checks
from iosched.jobs.fitting import fitted
from iosched.models.composition.members import Member, members_of
from iosched.models.model import Model
from iosched.profiler.devices.executor import Executor
from iosched.profiler.devices.resolve import runner
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.compare import Check, combine, compare, rtol_of
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION

__all__ = ["Executor", "RunResult", "open_executor", "run"]


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outputs and latencies of a model that was run.

    Attributes:
        outputs: the outputs of the first run by name.
        timing: the latency of the runs after the first one.
        check: how the outputs compare with those of onnxruntime; None if that was not asked for.
        description: a line that says how the model ran.
        notes: sentences that a user should read about how the model ran.
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
    members: Mapping[str, Model] = {},
    device: str = "auto",
    threads: int | None = None,
) -> RunResult:
    """Opens `model` by `open_executor`, runs it once, and then times `repeats` runs.

    Args:
        model: the model.
        document: its schedule; None if it has none.
        inputs: arrays by the names of inputs.
        repeats: how many runs are timed.
        reference: a model that onnxruntime runs on the same inputs, to compare the outputs with.
        members: where the file has several models, those that outputs are compared with instead, by their names in it.
        device: the device, as `--device` takes it.
        threads: the number of CPU cores to use; by default all that the process may use, as far as its quota goes.

    Raises:
        InvalidScheduleError: the schedule was made for another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device is not attached, or onnxruntime is not installed.
    """
    with closing(open_executor(model, document, device=device, threads=threads)) as executor:
        outputs, notes = executor.run(inputs), executor.notes
        rtol = rtol_of(DEFAULT_PRECISION if document is None else document.precision)
        check = None if reference is None else _compared(outputs, reference, inputs, rtol)
        if members:
            check = _compared_members(outputs, inputs, members, members_of(model.proto), rtol)
        return RunResult(outputs, summarize(executor.time(inputs, repeats)), check, executor.description, notes)


def _compared(outputs: Mapping[str, np.ndarray], reference: Model, inputs: Arrays, rtol: float) -> Check:
    with Reference(reference) as session:
        return compare(outputs, session.run(inputs), rtol=rtol)


def _compared_members(
    outputs: Mapping[str, np.ndarray],
    inputs: Arrays,
    models: Mapping[str, Model],
    members: Sequence[Member],
    rtol: float,
) -> Check:
    found = member_checks(outputs, inputs, models, members, rtol=rtol)
    return combine([replace(check, reasons=_named(member, check)) for member, check in found])


def _named(member: Member, check: Check) -> tuple[str, ...]:
    return tuple(f"model {member.name!r}: {reason}" for reason in check.reasons)


def open_executor(
    model: Model, document: ScheduleDocument | None, *, device: str = "auto", threads: int | None = None
) -> Executor:
    """Makes `model` ready to run by the schedule `document`, which may be of another model of the same structure.

    On a CPU, a model without a schedule runs on plain onnxruntime, and so does one whose schedule file says that plain
    onnxruntime ships. On a GPU that `device` names, a model without a schedule runs one operator after another.

    Raises:
        InvalidScheduleError: the schedule was made for another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device is not attached, or onnxruntime is not installed.
    """
    document = None if document is None else fitted(document, model)
    return runner(device, document).executor(model, document, threads)
