"""Ships plain onnxruntime if our own plan of a model fails, and names the operator at which it fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace

from iosched.jobs.optimizing.result import OptimizeResult, result_of
from iosched.jobs.optimizing.verdict import Verdict, with_setting
from iosched.jobs.schedule_file import document_from
from iosched.jobs.schedules import unsearched
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import IoschedError, PlanError, UsageError
from iosched.models.graph import Operator
from iosched.models.model import Model
from iosched.models.probing import extracted_operators
from iosched.profiler.devices.profiled_device import ProfiledDevice, Running
from iosched.runtime.faults import NOT_THE_MODEL, Faults, named, plan_error, summary
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.baselines import sequential
from iosched.scheduler.unit_graph import join_units

_LOCATING_S, _LEAST_S = 20.0, 2.0
"""Maximum seconds for trying operators alone, and the minimum even if the budget is spent."""


def shipped_plain(
    error: Exception, model: Model, settings: OptimizeSettings, device: ProfiledDevice, started: float
) -> OptimizeResult:
    """The result of `optimize` if our own plan fails with `error`: plain onnxruntime ships, which runs the model.

    Nothing is measured. The reason and a note name the operator at which the plan fails.

    Args:
        started: when the job began, by `time.monotonic`.
    """
    plain = device.plain(model, settings.opening)
    if plain is None:
        raise error
    _run_plain(model)
    place, cause = (error.place, error.__cause__ or error) if isinstance(error, PlanError) else ("", error)
    left_s = _LOCATING_S if settings.budget_s is None else started + settings.budget_s - time.monotonic()
    fault = plan_error(place or _failing_operator(model, device, settings.threads, left_s), cause)
    attempt = Faults()
    with attempt.contained("the model to be written"):
        _run_plain(replace(model, original=None))
    if settings.strict or attempt.found:
        raise fault from cause
    fails = f"iosched's own plan fails{f' at {fault.place}' if fault.place else ''} ({summary(cause)})"
    reason = f"{fails}: please report it"
    runtime = {"lanes": plain.threads, "reason": reason}
    running = Running(None, runtime, (f"Plain onnxruntime ships: {fails}. {NOT_THE_MODEL}",))
    units = join_units(model.graph, settings.opening.units)
    found = unsearched(units.expanded(sequential(units.graph)))
    verdict = Verdict(
        shipped="reference",
        reason=reason,
        schedule=found.schedule,
        kernels_before=None,
        running=with_setting(running, plain.settings[0]),
    )
    return result_of(model, settings, device, None, found, verdict, None, time.monotonic() - started)


def _run_plain(model: Model) -> None:
    with Reference(model) as reference, suppress(UsageError):
        reference.run(random_inputs(model.graph.inputs))


def _failing_operator(model: Model, device: ProfiledDevice, threads: int | None, left_s: float) -> str:
    """The first operator whose plan fails alone or with its predecessors; empty if none is found in time."""
    end = time.monotonic() + min(max(left_s, _LEAST_S), _LOCATING_S)
    for operator in model.graph.operators:
        before = [model.graph.by_name[name] for name in model.graph.predecessors[operator.name]]
        if time.monotonic() > end:
            break
        if any(_fails_alone(model, part, device, threads) for part in ([operator], [*before, operator])):
            return named([operator])
    return ""


def _fails_alone(model: Model, operators: Sequence[Operator], device: ProfiledDevice, threads: int | None) -> bool:
    returned = {*model.graph.outputs, *operators[-1].outputs}
    outputs = [tensor for operator in operators for tensor in operator.outputs if tensor in returned]
    preparing, running = Faults(), Faults()
    with suppress(IoschedError), preparing.contained("operators extracted from the model"):
        part = extracted_operators(model, [operator.name for operator in operators], outputs)
        inputs = random_inputs(part.graph.inputs)
        with Reference(part) as reference:
            reference.run(inputs)
        document = document_from(part, device, None, sequential(part.graph))
        with running.contained(part.name), closing(device.executor(part, document, threads)) as executor:
            executor.run(inputs)
    return bool(running.found)
