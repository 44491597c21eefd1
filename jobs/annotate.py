"""A model together with its schedule, as the annotated ONNX that is written."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from iosched.jobs.fitting import fitted
from iosched.models.export import NodeNote, annotate
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule, Stage, Strategy


def annotated(model: Model, document: ScheduleDocument) -> onnx.ModelProto:
    """`model` in schedule order, its merge stages merged, with the schedule as metadata of the model and its nodes.

    Where plain onnxruntime is shipped, nothing is merged: the file is then for plain onnxruntime.

    Raises:
        InvalidScheduleError: the schedule was made for a model of another structure.
    """
    document = fitted(document, model)
    return annotate(
        model,
        order=[name for stage in document.schedule.stages for name in stage.operators],
        notes=notes_of(document.schedule),
        merges=() if document.shipped == "reference" else tuple(merges_of(document.schedule)),
        schedule_json=document.to_json(),
        version=iosched_version(),
    )


def notes_of(schedule: Schedule) -> dict[str, NodeNote]:
    """Where every operator stands; stages are counted within their block, latencies are those of the whole stage."""
    return {
        name: NodeNote(block.index, stage_index, group_index, stage.strategy.value, _latency_us(stage))
        for block in schedule.blocks
        for stage_index, stage in enumerate(block.stages)
        for group_index, group in enumerate(stage.groups)
        for name in group
    }


def merges_of(schedule: Schedule) -> Iterator[tuple[str, ...]]:
    """The operators of each stage that becomes one operator in the file.

    A device may have grouped an operator with others that cannot be merged; the file then keeps them apart, which
    computes the same.
    """
    for stage in schedule.stages:
        if (
            stage.strategy is Strategy.MERGE
            and len(stage.groups) > 1
            and all(len(group) == 1 for group in stage.groups)
        ):
            yield stage.operators


def _latency_us(stage: Stage) -> float | None:
    return stage.predicted_us if stage.measured_us is None else stage.measured_us
