"""The annotated ONNX model that is written: a model with its schedule as metadata."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from iosched.models.dynamic_batch import DynamicBatchModel
from iosched.models.export import NodeNote, annotate, with_schedules
from iosched.models.metadata import METADATA_PREFIX
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.scheduler.batch_schedules import BatchSchedules
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule, Stage, Strategy
from iosched.scheduler.transfer import fitted


def annotated(model: Model, document: ScheduleDocument) -> onnx.ModelProto:
    """`model` with its nodes in schedule order, merge stages merged, and the schedule as metadata of model and nodes.

    If plain onnxruntime or OpenVINO ships, nothing is merged, since these run the original graph.
    """
    document = fitted(document, model)
    return annotate(
        model,
        order=[name for stage in document.schedule.stages for name in stage.operators],
        notes=notes_of(document.schedule),
        merges=tuple(merges_of(document.schedule)) if document.is_shipped else (),
        schedule_json=document.to_json(),
        version=iosched_version(),
    )


def annotated_batches(model: DynamicBatchModel, schedules: BatchSchedules) -> onnx.ModelProto:
    """`model` with its batch dynamic, its nodes as they were, and the schedules for several batch sizes as metadata."""
    found = {size: fitted(document, model.at(size)) for size, document in schedules.by_size.items()}
    text = BatchSchedules(model.name, model.inputs, found).to_json()
    return with_schedules(model, schedules.batch_sizes, text, iosched_version())


def placed_nodes(model: Model, document: ScheduleDocument) -> Iterator[tuple[onnx.NodeProto, tuple[int, int, int]]]:
    """The nodes of the annotated model, including merged ones, each with its block, stage in the block, and group.

    Nodes that belong to no operator are left out.
    """
    for node in annotated(model, document).graph.node:
        notes = {item.key.removeprefix(METADATA_PREFIX): item.value for item in node.metadata_props}
        if "group" in notes:
            yield node, (int(notes["block"]), int(notes["stage"]), int(notes["group"]))


def notes_of(schedule: Schedule) -> dict[str, NodeNote]:
    """The position and stage latency of each operator in the schedule; stages are numbered within their block."""
    return {
        name: NodeNote(block.index, stage_index, group_index, stage.strategy.value, _latency_us(stage))
        for block in schedule.blocks
        for stage_index, stage in enumerate(block.stages)
        for group_index, group in enumerate(stage.groups)
        for name in group
    }


def merges_of(schedule: Schedule) -> Iterator[tuple[str, ...]]:
    """The operators of each merge stage that becomes one operator in the file.

    A unit of a device may contain operators that cannot be merged. The operators of such a stage stay separate in the
    file, which computes the same.
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
