"""Transfers a schedule to another model of the same structure, or to another batch size.

Models of one structure may differ in weights, names and the order of nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from iosched.models.errors import InvalidScheduleError
from iosched.models.structure import Structure, first_difference
from iosched.scheduler.document import ScheduleDocument, check_dtype, check_operators, check_shapes, check_units
from iosched.scheduler.schedule import Schedule, Stage

if TYPE_CHECKING:
    from iosched.models.model import Model  # this imports onnx


def fitted(document: ScheduleDocument, model: Model) -> ScheduleDocument:
    """The document for a model of equal structure: its schedules name that model's operators.

    `document` may be of a model with other weights or names. Complexity: O(operators + edges).

    Raises:
        InvalidScheduleError: names the first difference of the structures; or the digests differ and the document has
            no structure.
    """
    if document.sha256 == model.digest or document.structure is None:
        document.validate_for(model.graph, model.digest, model.bindings)
        return document
    if document.inputs.keys() == model.bindings.keys():
        check_shapes(document.inputs, model.bindings)  # first, since its error says how to bind them
    check_dtype(document.dtype, model.graph)
    if (difference := first_difference(document.structure, model.structure)) is not None:
        raise InvalidScheduleError(
            f"the schedule was made for {document.model!r}, which has another structure: {difference}; "
            "optimize this model"
        )
    names = _names(document.structure, model.structure)
    alternatives = tuple(replace(each, schedule=_renamed(each.schedule, names)) for each in document.alternatives)
    return replace(_of_model(document, _renamed(document.schedule, names), model, names), alternatives=alternatives)


def rebatched(document: ScheduleDocument, model: Model) -> ScheduleDocument:
    """The document for the same model at another batch size: the same stages, without latencies.

    `document` may be of a model with other weights or names. Complexity: O(operators + edges).

    Raises:
        InvalidScheduleError: the models differ in more than the batch, or a stage cannot be merged at this batch size.
    """
    check_dtype(document.dtype, model.graph)
    if not _differ_in_batch(document.inputs, model.bindings):
        check_shapes(document.inputs, model.bindings)
    schedule, names = _unmeasured(document.schedule), dict[str, str]()
    if document.structure is not None:
        names = _names_beyond_sizes(document.model, document.structure, model.structure)
        schedule = _renamed(schedule, names)
    return replace(_of_model(document, schedule, model, names), proven=None, latency_us={}, alternatives=())


def _of_model(
    document: ScheduleDocument, schedule: Schedule, model: Model, names: Mapping[str, str]
) -> ScheduleDocument:
    check_operators(schedule, model.graph)
    units = tuple(tuple(names.get(name, name) for name in unit) for unit in document.units)
    check_units(units, model.graph)
    return replace(
        document,
        model=model.name,
        sha256=model.digest,
        inputs=dict(model.bindings),
        schedule=schedule,
        structure=model.structure,
        units=units,
    )


def _differ_in_batch(there: Mapping[str, tuple[int, ...]], here: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether only one size, somewhere in first position, is replaced by one other. Renamed inputs are ignored."""
    both = [(there[name], here[name]) for name in there.keys() & here.keys()]
    if any(len(theirs) != len(ours) for theirs, ours in both):
        return False
    firsts = {(theirs[0], ours[0]) for theirs, ours in both if theirs and theirs[0] != ours[0]}
    changed = {pair for theirs, ours in both for pair in zip(theirs, ours, strict=True) if pair[0] != pair[1]}
    return len(changed) <= 1 and changed <= firsts


def _names_beyond_sizes(name: str, theirs: Structure, ours: Structure) -> dict[str, str]:
    """As `_names`, after checking that types and wiring are equal; errors call their model `name`."""
    wirings = [
        [(each.form.type, [node.type for node in each.form.nodes], each.reads) for each in one.operators]
        for one in (theirs, ours)
    ]
    if wirings[0] != wirings[1] or theirs.outputs != ours.outputs:
        raise InvalidScheduleError(
            f"the schedule was made for {name!r}, which has another structure: the operators or their order"
            " differ; optimize this model"
        )
    return _names(theirs, ours)


def _names(theirs: Structure, ours: Structure) -> dict[str, str]:
    return {one.name: other.name for one, other in zip(theirs.operators, ours.operators, strict=True)}


def _unmeasured(schedule: Schedule) -> Schedule:
    return Schedule(
        tuple(
            replace(
                block,
                stages=tuple(replace(stage, predicted_us=None, measured_us=None) for stage in block.stages),
                optimal=False,
            )
            for block in schedule.blocks
        )
    )


def _renamed(schedule: Schedule, names: Mapping[str, str]) -> Schedule:
    return Schedule(
        tuple(replace(block, stages=tuple(_stage(stage, names) for stage in block.stages)) for block in schedule.blocks)
    )


def _stage(stage: Stage, names: Mapping[str, str]) -> Stage:
    missing = [name for name in stage.operators if name not in names]
    if missing:
        raise InvalidScheduleError(f"the schedule names operator {missing[0]!r}, which its own structure does not have")
    return stage.renamed(names)
