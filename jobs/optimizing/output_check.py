"""Compares outputs with plain onnxruntime, which ships instead if they differ."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from iosched.jobs.bisect_mismatch import (
    FirstDifference,
    MismatchCase,
    Original,
    first_difference,
    lines,
    mismatch_text,
    sentence,
)
from iosched.jobs.optimizing.result import OptimizeResult
from iosched.models.composition.values import is_random
from iosched.models.errors import DeviceError, MismatchError
from iosched.models.model import Model
from iosched.models.wiring import nodes_within
from iosched.runtime.compare import Check, compare, rtol_of
from iosched.runtime.device import Device
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference

_OURS = ("iosched", "sequential")
"""Alternatives of our runtime. OpenVINO and teams of cores are compared before they are timed."""


def checked(
    result: OptimizeResult, model: Model, device: Device, threads: int | None, *, strict: bool = False
) -> OptimizeResult:
    """The result with a check of its outputs on seeded inputs against plain onnxruntime.

    If they differ by more than rounding, plain onnxruntime ships and the reason names the first operator that differs.
    Nothing is compared on simulated devices, for other runtimes, for random results, or without onnxruntime.
    """
    document = result.document
    is_compared = document.teams is not None and document.device_kind == "cpu"
    if document.cost != "measured" or result.shipped not in _OURS or is_compared:
        return result
    if any(map(is_random, nodes_within(model.proto.graph))):
        return result
    case = MismatchCase(
        model,
        document,
        device,
        random_inputs(model.graph.inputs),
        [Original(model, {spec.name: spec.name for spec in model.graph.inputs})],
        rtol_of(document.precision),
        threads,
    )
    try:
        check = _compared(case)
    except DeviceError:  # onnxruntime is not installed alongside a GPU's own libraries
        return result
    if check.passed:
        return replace(result, check=check)
    return _differing(replace(result, check=check), check, first_difference(case), strict=strict)


def _compared(case: MismatchCase) -> Check:
    with Reference(case.model) as reference:
        expected = reference.run(case.inputs)
    with closing(case.device.executor(case.model, case.document, case.threads)) as executor:
        return compare(executor.run(case.inputs), expected, rtol=case.rtol)


def _differing(result: OptimizeResult, check: Check, found: FirstDifference | None, *, strict: bool) -> OptimizeResult:
    result = replace(result, first_difference=found)
    if found is not None and found.cause == "rounding":
        note = (
            f"Outputs on random inputs differ from those of onnxruntime by more than the tolerance: {sentence(found)}."
        )
        return replace(result, notes=(*result.notes, note, *lines(found)[1:]))
    if strict or result.reference_us is None:
        raise MismatchError(mismatch_text(check.reasons, found))
    return replace(
        result,
        document=replace(result.document, shipped="reference"),
        shipped="reference",
        kernels_after=result.kernels_before,
        reason="outputs of the schedule found differ from those of onnxruntime",
        notes=(*result.notes, *check.reasons, *lines(found)),
    )
