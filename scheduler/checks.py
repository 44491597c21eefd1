"""Checks that a schedule is one of a model: of its operators, its input shapes, and the type that it computes in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosched.models.errors import InvalidScheduleError, UsageError
from iosched.models.graph import ComputationGraph
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.strategies import STAGES
from iosched.scheduler.unit_graph import Unit, join_units


def model_dtype(graph: ComputationGraph) -> str:
    """The element type that a graph computes in: that of its first floating-point input, or of its first input."""
    types = [spec.dtype for spec in graph.inputs]
    floating = [dtype for dtype in types if "float" in dtype]
    return next(iter([*floating, *types]), "float32")


def check_operators(schedule: Schedule, graph: ComputationGraph) -> None:
    """Checks that the schedule runs every operator once, after what it reads from, and merges what may be merged.

    Raises:
        InvalidScheduleError: names the operator.
    """
    place: dict[str, tuple[int, int]] = {}
    for position, stage in enumerate(schedule.stages):
        _check_strategy(stage, graph)
        for group_index, group in enumerate(stage.groups):
            for name in group:
                if name not in graph.by_name:
                    raise InvalidScheduleError(f"the schedule names operator {name!r}, which the model does not have")
                _check_place(name, (position, group_index), place, graph)
                place[name] = position, group_index
    missing = [name for name in graph.by_name if name not in place]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InvalidScheduleError(f"the schedule leaves out operator {missing[0]!r}{more} of the model")


def check_units(units: Sequence[Unit], graph: ComputationGraph) -> None:
    """Checks that the units of a schedule are units of its graph.

    Raises:
        InvalidScheduleError: says which is not, and why.
    """
    try:
        join_units(graph, units)
    except UsageError as error:
        raise InvalidScheduleError(f"of the schedule's units, {error}") from None


def _check_strategy(stage: Stage, graph: ComputationGraph) -> None:
    known = [name for name in stage.operators if name in graph.by_name]
    reason = STAGES[stage.strategy].refusal(graph, known) if len(known) > 1 else None
    if reason is not None:
        raise InvalidScheduleError(f"the schedule has a {stage.strategy} stage that cannot be: {reason}")


def _check_place(
    name: str, here: tuple[int, int], place: Mapping[str, tuple[int, int]], graph: ComputationGraph
) -> None:
    if name in place:
        raise InvalidScheduleError(f"the schedule runs operator {name!r} twice")
    for before in graph.predecessors[name]:
        if before not in place:
            raise InvalidScheduleError(f"the schedule runs operator {name!r} before {before!r}, whose output it reads")
        if place[before][0] == here[0] and place[before] != here:
            raise InvalidScheduleError(
                f"the schedule runs operator {name!r} beside {before!r}, whose output it reads, in stage {here[0]}"
            )


def check_shapes(made_for: Mapping[str, tuple[int, ...]], bindings: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that a model's inputs have the names and shapes that a schedule was made for.

    Raises:
        InvalidScheduleError: names the first input that differs.
    """
    for name in sorted({*made_for, *bindings}):
        ours, theirs = bindings.get(name), made_for.get(name)
        if ours is None:
            raise InvalidScheduleError(f"the schedule was made for a model with input {name!r}, which is not here")
        if theirs is None:
            raise InvalidScheduleError(f"the schedule knows no input {name!r} of the model")
        if tuple(ours) != tuple(theirs):
            raise InvalidScheduleError(
                f"the schedule was made for input {name!r} of shape {_shape(theirs)}, not {_shape(ours)}; "
                f"bind --input-shape {name}={_shape(theirs)} or optimize for this shape"
            )


def check_dtype(made_for: str, graph: ComputationGraph) -> None:
    """Checks that a model computes in the type that a schedule was made for.

    Raises:
        InvalidScheduleError: it does not.
    """
    if graph.inputs and made_for != model_dtype(graph):
        raise InvalidScheduleError(f"the schedule was made for {made_for}, and the model is {model_dtype(graph)}")


def _shape(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"
