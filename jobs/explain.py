"""Why an operator is where it is: the latencies of its other places, from the database, this machine, or the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from iosched.jobs.fitting import fitted
from iosched.jobs.opening import opened
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph, Operator
from iosched.models.model import Model
from iosched.profiler.devices.cost import MeasuredCosts, known_us
from iosched.profiler.devices.resolve import recorded
from iosched.profiler.devices.throughput import Throughputs
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.elsewhere import Places, places_of
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.strategy_names import is_searched

MEASUREMENTS = 50
"""What is not in the database is measured up to so many times, some seconds in all."""


@dataclass(frozen=True)
class Considered:
    """Where the operator is in another schedule that was considered, and what the whole of that takes."""

    name: str
    latency_us: float | None
    stage: Stage


@dataclass(frozen=True)
class Explained:
    """An explanation and where its latencies come from.

    Attributes:
        operator: the operator that was asked for.
        together: the operators that the device runs as one with it, itself included.
        device_name: the device whose latencies these are.
        cost: "measured" or "analytic".
        tolerance: differences below this part of a latency mean nothing.
        throughputs: says of the stages named here what they compute and how fast.
        measurements: stages that were measured for this.
        considered: the operator in the other schedules that `optimize` compared, in terms of the model's operators.
    """

    operator: Operator
    together: tuple[str, ...]
    explanation: Places
    device_name: str
    cost: str
    tolerance: float
    throughputs: Throughputs
    measurements: int = 0
    considered: tuple[Considered, ...] = ()


def explain_operator(
    model: Model,
    document: ScheduleDocument,
    name: str,
    *,
    measurements: int = MEASUREMENTS,
    profile_db: Path | None = None,
) -> Explained:
    """Weighs every other place of the operator `name` under the cost that `document` was made with.

    Args:
        model: the model of the schedule.
        document: the schedule, of this model or of another one of the same structure.
        name: an operator, or a node or tensor inside one.
        measurements: how many stages may be measured where the database does not know them.
        profile_db: the database; the user's own by default.

    Raises:
        UsageError: no such operator; names what comes close.
        InvalidScheduleError: the schedule is one of another structure.
        DeviceError: the schedule is for a device that latencies are neither measured nor modelled of, or for a GPU that
            is not here.
    """
    document = fitted(document, model)
    operator = find_operator(model.graph, name)
    found = _weighed(model, document, operator, measurements, profile_db)
    return replace(found, considered=tuple(_considered(document, operator.name)))


def _considered(document: ScheduleDocument, operator: str) -> Iterator[Considered]:
    for alternative in document.alternatives:
        for stage in alternative.schedule.stages:
            if operator in stage.operators:
                yield Considered(alternative.name, alternative.latency_us, stage)


def _weighed(
    model: Model, document: ScheduleDocument, operator: Operator, measurements: int, profile_db: Path | None
) -> Explained:
    device, settings = recorded(document)
    with opened(device, model, settings, profile_db) as there:
        known = None if there.here is None else _SparingCosts(there.here.cost, measurements)
        unit, strategy = there.units.unit_of(operator.name), document.search.strategy
        found = places_of(
            there.graph,
            there.units.scheduled(document.schedule),
            unit,
            there.cost if known is None else known,
            there.cost.stage_latency_us if known is None else known.known_us,
            strategy=strategy if is_searched(strategy) else "both",
            pruning=Pruning(document.search.pruning.r, document.search.pruning.s),
            bound_slack=there.effort.bound_slack,
        )
        return Explained(
            operator,
            there.units.members(unit),
            found,
            device.name,
            device.cost_kind,
            there.effort.tolerance,
            there.throughputs,
            0 if there.here is None else there.here.cost.measurements,
        )


def find_operator(graph: ComputationGraph, name: str) -> Operator:
    """The operator of that name, or the one that covers the node or tensor of that name.

    Raises:
        UsageError: there is none; names what comes close.
    """
    if name in graph.by_name:
        return graph.by_name[name]
    inside = {part: operator for operator in graph.operators for part in (*operator.nodes, *operator.outputs)}
    if name in inside:
        return inside[name]
    close = get_close_matches(name, [*graph.by_name, *inside], n=3)
    hint = f"did you mean {' or '.join(dict.fromkeys(close))}?" if close else "'iosched show' lists them"
    raise UsageError(f"there is no operator {name!r}: {hint}")


@dataclass(frozen=True, eq=False)
class _SparingCosts:
    """Latencies that were measured before, and up to so many measurements more; an operator that is unknown costs 0."""

    cost: MeasuredCosts
    measurements: int

    @property
    def lanes(self) -> int:
        return self.cost.lanes

    def known_us(self, stage: Stage) -> float | None:
        found = known_us(self.cost, stage)
        if found is None and self.cost.measurements < self.measurements:
            return self.cost.stage_latency_us(stage)
        return found

    def stage_latency_us(self, stage: Stage) -> float:
        return self.cost.stage_latency_us(stage)

    def lower_bound_us(self, stage: Stage) -> float:
        return self.cost.lower_bound_us(stage)

    def operator_latency_us(self, name: str) -> float:
        return known_us(self.cost, Stage(Strategy.CONCURRENT, ((name,),))) or 0.0

    def operator_work_us(self, name: str) -> float:
        return self.cost.known_work_us(name) or 0.0
