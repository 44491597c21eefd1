"""Which operators of the model each task of a plan works for, and in which stage of the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from iosched.runtime.cpu.lower import Lowering
from iosched.runtime.cpu.ownership import CoarseGraph
from iosched.runtime.traced import TaskOrigin
from iosched.scheduler.schedule import Stage


def task_origins(
    lowering: Lowering,
    coarse: CoarseGraph,
    stages: Sequence[tuple[int, Stage]],
    nodes: Mapping[str, tuple[int, ...]],
) -> tuple[TaskOrigin, ...]:
    """What each task of the plan is of, in the order of the plan's `tasks`.

    A node belongs to all operators of its unit: onnxruntime fuses across them.

    Args:
        lowering: of these stages.
        coarse: the graph of units.
        stages: stages of units, each with its number in the schedule; a task's own stage is an index into them.
        nodes: for each unit its nodes. Where several run as one, the first has the nodes of all, and the others none.
    """
    operators = {
        node: tuple(name for unit in units for name in coarse.units.members[unit])
        for _, stage in stages
        for units in _together(coarse, stage, nodes)
        for node in nodes[units[0]]
    }
    lanes = [lane for lane, tasks in enumerate(lowering.plan.lanes) for _ in tasks]
    return tuple(
        TaskOrigin(
            task.name, lane, stages[task.stage][0], tuple(dict.fromkeys(o for node in own for o in operators[node]))
        )
        for lane, task, own in zip(lanes, lowering.plan.tasks, lowering.nodes, strict=True)
    )


def _together(coarse: CoarseGraph, stage: Stage, nodes: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[str, ...]]:
    """The units of a stage, those that run as one together."""
    gone = tuple(unit for unit in stage.operators if coarse.nodes[unit] and not nodes[unit])
    if gone:
        yield stage.operators
        return
    yield from ((unit,) for unit in stage.operators)
