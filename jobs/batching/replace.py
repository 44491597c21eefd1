"""The job `batch --replace`: other weights in models of a file, without a search."""

from __future__ import annotations

from collections.abc import Mapping

from iosched.jobs.batching.member_checks import check_members
from iosched.models.batching.replacement import replaced
from iosched.models.composition.members import members_of
from iosched.models.errors import MismatchError
from iosched.models.model import Model
from iosched.runtime.compare import compare
from iosched.runtime.inputs import random_inputs
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.transfer import fitted


def replace_members(
    whole: Model, document: ScheduleDocument, models: Mapping[str, Model]
) -> tuple[Model, ScheduleDocument, Mapping[str, tuple[str, ...]]]:
    """The file with the weights of `models` in the members of these names, and its schedule; nothing is searched.

    Outputs of new models are compared with onnxruntime on each, those of all others with the file before. Also returns,
    by model, the weights that are no longer shared.

    Raises:
        UsageError: there is no such member, or its weights cannot be replaced.
        InvalidScheduleError: the schedule is not of this file.
        MismatchError: a member computes other values than it should.
        DeviceError: onnxruntime is not installed.
    """
    model, unshared = whole, {}
    for name, new in models.items():
        model, unshared[name] = replaced(model, name, new)
    _check(whole, model, models)
    return model, fitted(document, model), unshared


def _check(before: Model, after: Model, models: Mapping[str, Model]) -> None:
    inputs = random_inputs(before.graph.inputs)
    with Reference(before) as old, Reference(after) as new:
        expected, outputs = old.run(inputs), new.run(inputs)
    members = members_of(after.proto)
    check_members(outputs, inputs, models, members)
    kept = {name for member in members if member.name not in models for name in member.outputs.values()}
    found = compare({name: outputs[name] for name in kept}, {name: expected[name] for name in kept})
    if not found.passed:
        raise MismatchError(f"outputs of models that were not replaced have changed: {found.reasons[0]}")
