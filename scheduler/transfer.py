"""A schedule taken over by another model of the same structure: other weights, other names, nodes in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from iosched.models.errors import InvalidScheduleError
from iosched.models.graph import ComputationGraph
from iosched.models.structure import Structure, first_difference
from iosched.scheduler.checks import check_dtype, check_operators, check_shapes
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule, Stage


def transferred(
    document: ScheduleDocument,
    graph: ComputationGraph,
    digest: str,
    bindings: Mapping[str, tuple[int, ...]],
    structure: Callable[[], Structure],
) -> ScheduleDocument:
    """The document for a model of equal structure: its schedules name that model's operators.

    Args:
        document: the schedule of this model, or of one with other weights or names.
        graph, digest, bindings: those of the model that takes the schedule.
        structure: makes its structure; asked only where the digests differ.

    Raises:
        InvalidScheduleError: the structures differ, and how the first operator that differs does so; or the digests do,
            and the document is of a version that kept no structure.

    Complexity: O(operators + edges).
    """
    if document.sha256 == digest or document.structure is None:
        document.validate_for(graph, digest, bindings)
        return document
    if document.inputs.keys() == bindings.keys():
        check_shapes(document.inputs, bindings)  # first, since its error says how to bind them
    check_dtype(document.dtype, graph)
    ours = structure()
    if (difference := first_difference(document.structure, ours)) is not None:
        raise InvalidScheduleError(
            f"the schedule was made for another structure, that of {document.model!r}: {difference}; "
            "optimize this model"
        )
    pairs = zip(document.structure.operators, ours.operators, strict=True)
    names = {theirs.name: mine.name for theirs, mine in pairs}
    schedule = _renamed(document.schedule, names)
    check_operators(schedule, graph)
    return replace(
        document,
        sha256=digest,
        inputs=dict(bindings),
        schedule=schedule,
        structure=ours,
        alternatives=tuple(replace(each, schedule=_renamed(each.schedule, names)) for each in document.alternatives),
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
