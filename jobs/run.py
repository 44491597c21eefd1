"""The job `run`: runs a model by its schedule on a device, or on plain onnxruntime if the schedule file says so."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from iosched.models.errors import OtherDeviceWarning, UsageError
from iosched.models.log import logger
from iosched.models.model import Model
from iosched.models.wiring import nodes_within
from iosched.profiler.devices.resolve import runner, runner_design, runner_name
from iosched.profiler.measuring.statistics import Measurement, summarize
from iosched.runtime.compare import Check, combine, compare, rtol_of
from iosched.runtime.executor import Executor, TracedRuns
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.precision import DEFAULT_PRECISION
from iosched.scheduler.transfer import fitted

if TYPE_CHECKING:
    from onnx import NodeProto

    from iosched.jobs.bisect_mismatch import FirstDifference, Original
    from iosched.models.composition.members import Member
    from iosched.runtime.plan_files import PlanModel

_log = logger(__name__)

__all__ = ["Executor", "RunResult", "open_executor", "run"]


@dataclass(frozen=True, eq=False)
class RunTrace:
    """The schedule that a model ran by, in the names of its operators, and when each task ran."""

    document: ScheduleDocument
    runs: TracedRuns


@dataclass(frozen=True, eq=False)
class RunResult:
    """The outputs and latencies of a model that was run.

    Attributes:
        outputs: the outputs of the first run by name.
        timing: the latency of the runs after the first one.
        check: how the outputs compare with those of onnxruntime; None if that was not asked for, or if they differ from
            run to run.
        description: how the model ran.
        notes: notes about how the model ran.
        trace: when each task of one of the timed runs ran; None if that was not asked for.
        first_difference: the first operator that computes other values than onnxruntime, where outputs differ; None if
            none does, or if outputs were correct in another run.
    """

    outputs: Mapping[str, np.ndarray]
    timing: Measurement
    check: Check | None
    description: str
    notes: tuple[str, ...]
    trace: RunTrace | None = None
    first_difference: FirstDifference | None = None


def _silent(_: str) -> None:
    """Ignores the text."""


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
    by_schedule: bool = False,
    trace: bool = False,
    plan: PlanModel | None = None,
    tell: Callable[[str], None] = _silent,
) -> RunResult:
    """Opens `model` by `open_executor`, runs it once, and then times `repeats` runs.

    If outputs differ, searches for the first operator that differs, which runs the model several more times.

    Args:
        document: its schedule; None if it has none.
        repeats: the number of timed runs.
        reference: a model that onnxruntime runs on the same inputs, to compare the outputs with. If it is `model`, and
            plain onnxruntime runs that, nothing is compared.
        members: the models to compare with instead, by name, if the file has several.
        device: the device, as for `--device`.
        threads: the number of CPU cores; by default all of one socket that affinity and quota allow.
        by_schedule: whether to run the schedule even if a library ships.
        trace: whether to trace the tasks of the timed runs; implies `by_schedule`.
        plan: an open plan file with a program for this model, which runs instead of `document`; it is closed.
        tell: is called with messages about slow steps.

    Raises:
        InvalidScheduleError: the schedule was made for another structure, shape or type.
        InvalidModelError: onnxruntime refuses the model.
        DeviceError: the device is not attached, or onnxruntime is not installed.
        UsageError: the model cannot run by its schedule, or cannot be traced.
    """
    shipped = document
    if by_schedule or trace:
        document = _as_scheduled(document)
    if trace and document is not None and document.teams is not None:
        raise UsageError(f"a model that runs in {document.teams.text} cannot be traced: optimize it for latency")
    document = None if document is None else fitted(document, model)
    rtol = rtol_of(DEFAULT_PRECISION if document is None else document.precision)
    own = _members(model) if members else ()
    with closing(_planned(plan, model) or open_executor(model, document, device=device, threads=threads)) as executor:
        if trace and executor.traced is None:
            raise UsageError(f"runs on {executor.description} cannot be traced: only those on lanes of a CPU")
        if by_schedule and executor.by != "schedule":
            raise UsageError(
                "the schedule cannot be checked: the model has no plan and runs on"
                f" {executor.description}. Remove --check-schedule."
            )
        outputs, notes = executor.run(inputs), executor.notes
        if reference is not None and (drawn := _drawn(reference)):
            notes = (*notes, f"Outputs were not compared: {drawn.op_type} {drawn.output[0]!r} differs from run to run.")
            reference = None
        if reference is model and executor.by == "reference":
            way = "" if document is None else " --check-schedule checks the schedule in the file."
            notes = (*notes, f"Nothing to compare: plain onnxruntime runs this model.{way}")
            reference = None
        check = None if reference is None else _compared(outputs, reference, inputs, rtol)
        if members:
            check = _compared_members(outputs, inputs, members, own, rtol)
        traced = None
        if document is not None and trace and executor.traced is not None:
            traced = RunTrace(fitted(shipped or document, model), executor.traced(inputs, repeats))
        samples_us = executor.time(inputs, repeats) if traced is None else traced.runs.times_us
        result = RunResult(outputs, summarize(samples_us), check, executor.description, notes, traced)
    if check is None or check.passed:
        return result
    from iosched.jobs.bisect_mismatch import MismatchCase, first_difference

    tell("Outputs differ from onnxruntime's: searching for the first operator that differs.")
    originals = _originals(reference, members, own)
    case = MismatchCase(model, document, runner(device, document), inputs, originals, rtol, threads)
    return replace(result, first_difference=first_difference(case))


def _planned(plan: PlanModel | None, model: Model) -> Executor | None:
    """The model's program in the plan."""
    number = None if plan is None else plan.number_of(model.bindings)
    return None if plan is None or number is None else replace(plan.executor(number), frees=plan.close)


def _originals(reference: Model | None, members: Mapping[str, Model], own: Sequence[Member]) -> list[Original]:
    from iosched.jobs.bisect_mismatch import Original

    if not members and reference is not None:
        return [Original(reference, {spec.name: spec.name for spec in reference.graph.inputs})]
    return [Original(members[each.name], each.inputs, f"{each.name}/") for each in own if each.name in members]


def _as_scheduled(document: ScheduleDocument | None) -> ScheduleDocument:
    """The document as one whose schedule our runtime runs, even if a library ships."""
    if document is None:
        raise UsageError("the model has no schedule: create one with 'iosched optimize'")
    others = ("by", "precision") if document.is_on_openvino else ("by",)  # its schedule is for fp32
    runtime = {key: value for key, value in document.runtime.items() if key not in others}
    return replace(document, shipped="iosched", runtime=runtime)


def _members(model: Model) -> Sequence[Member]:
    from iosched.models.composition.members import members_of

    return members_of(model.proto)


def _drawn(model: Model) -> NodeProto | None:
    from iosched.models.composition.values import is_random

    return next(filter(is_random, nodes_within(model.proto.graph)), None)


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
    from iosched.jobs.batching.member_checks import member_checks

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

    Warns:
        OtherDeviceWarning: the schedule was made for another device.
    """
    if document is not None:
        document = fitted(document, model)
        warn_of_other_device(document, device)
    executor = runner(device, document).executor(model, document, threads)
    _log.info("%r runs on %s", model.name, executor.description)
    return executor


CONSEQUENCE = "it runs, but another schedule may be faster on this device"


def other_device(document: ScheduleDocument, device: str) -> str | None:
    """A clause that names the other device; None if the schedule was measured on the device that `--device` names.

    Raises:
        UsageError: there is no such device.
    """
    made_for, here = document.device.get("name"), runner_name(device, document)
    if document.cost == "analytic":
        return f"This schedule was made for {made_for} by the analytic model"
    if here and made_for != here:
        return f"This schedule was made for {made_for}, not for {here}"
    if here and (others := _differences(document.device, runner_design(device, document))):
        return f"This schedule was made for another {here} ({others})"
    return None


def warn_of_other_device(document: ScheduleDocument, device: str) -> None:
    """Warns, at the user's line of code, if a shipped schedule was made for another device."""
    runs = document.is_shipped or document.shipped == "tensorrt"  # on another kind of device, by the schedule
    if runs and (text := other_device(document, device)) is not None:
        warnings.warn(f"{text}: {CONSEQUENCE}.", OtherDeviceWarning, stacklevel=users_level())


def users_level() -> int:
    """The `stacklevel` of the first frame of the user's code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("iosched.", "contextlib")):
        frame, level = frame.f_back, level + 1
    return level


def _differences(made_for: Mapping[str, str], here: Mapping[str, str]) -> str:
    keys = [key for key in here if made_for.get(key, here[key]) != here[key]]
    texts = [
        "different instructions" if key == "instructions" else f"{key} {made_for[key]}, not {here[key]}" for key in keys
    ]
    return "; ".join(texts)
