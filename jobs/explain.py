"""Why an operator is where it is: the latencies of its other places, from the database, this machine, or the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from iosched.jobs.effort import CPU_EFFORT, GPU_EFFORT
from iosched.jobs.fitting import fitted
from iosched.jobs.plan import analytic_cost
from iosched.jobs.throughput import Throughputs, on_paper, throughputs
from iosched.models.errors import DeviceError, UsageError
from iosched.models.graph import ComputationGraph, Operator
from iosched.models.model import Model
from iosched.profiler.devices.cpu.cost import StageCost, cpu_name
from iosched.profiler.devices.cpu.units import unit_schedule
from iosched.profiler.devices.cuda.attached import attach
from iosched.profiler.devices.cuda.cost import open_cost
from iosched.profiler.devices.known import KnownStages
from iosched.profiler.devices.resolve import attached_index, gpu_called
from iosched.profiler.store.database import ProfileDatabase, default_path
from iosched.runtime.cpu.backend import CpuBackend, cpu_count
from iosched.scheduler.cost import CostModel
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.elsewhere import Known, Places, places_of
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Schedule, Stage
from iosched.scheduler.strategies import is_searched

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
    if document.cost == "analytic":
        return _on_paper(model, document, operator)
    with ProfileDatabase(profile_db or default_path()) as database:
        if document.device_kind == "cuda":
            return _on_gpu(model, document, operator, measurements, database)
        with CpuBackend(model, lanes=_lanes(document)) as backend:
            return _on_cpu(StageCost(backend, database), document, operator, measurements)


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


def _on_paper(model: Model, document: ScheduleDocument, operator: Operator) -> Explained:
    gpu = gpu_called(document.device_name)
    if gpu is None:
        raise DeviceError(f"the schedule is for {document.device_name}, which this version has no specification of")
    cost = analytic_cost(model, gpu, document.precision)
    place = _Place(model.graph, document.schedule, operator.name)
    found = _explained(place, cost, cost.stage_latency_us, document, slack=1.0)
    return Explained(operator, (operator.name,), found, gpu.name, "analytic", 0.0, on_paper(cost))


def _on_cpu(cost: StageCost, document: ScheduleDocument, operator: Operator, measurements: int) -> Explained:
    coarse = cost.backend.coarse
    unit = coarse.unit_of()[operator.name]
    schedule = unit_schedule(coarse, document.schedule)
    known = _MeasuredCost(KnownStages(cost), measurements)
    place = _Place(coarse.graph, schedule, unit)
    found = _explained(place, known, known.known_us, document, slack=CPU_EFFORT.bound_slack)
    return Explained(
        operator,
        coarse.members[unit],
        found,
        cpu_name(),
        "measured",
        CPU_EFFORT.tolerance,
        Throughputs(coarse.graph),
        cost.measurements,
    )


def _on_gpu(
    model: Model, document: ScheduleDocument, operator: Operator, measurements: int, database: ProfileDatabase
) -> Explained:
    gpu = attach(attached_index(document.device_name) or 0)
    if gpu.name != document.device_name:
        raise DeviceError(f"the schedule was measured on {document.device_name}, and here is only {gpu.name}")
    cost = open_cost(gpu, model, document.precision, database)
    known = _MeasuredCost(KnownStages(cost), measurements)
    place = _Place(model.graph, document.schedule, operator.name)
    found = _explained(place, known, known.known_us, document, slack=GPU_EFFORT.bound_slack)
    return Explained(
        operator,
        (operator.name,),
        found,
        gpu.name,
        "measured",
        GPU_EFFORT.tolerance,
        throughputs(model, document),
        cost.measurements,
    )


@dataclass(frozen=True, eq=False)
class _Place:
    """An operator of a graph as the device sees it, and the schedule of that graph."""

    graph: ComputationGraph
    schedule: Schedule
    operator: str


def _explained(place: _Place, cost: CostModel, known_us: Known, document: ScheduleDocument, *, slack: float) -> Places:
    strategy = document.search.strategy
    return places_of(
        place.graph,
        place.schedule,
        place.operator,
        cost,
        known_us,
        strategy=strategy if is_searched(strategy) else "both",
        pruning=Pruning(document.search.pruning.r, document.search.pruning.s),
        bound_slack=slack,
    )


def _lanes(document: ScheduleDocument) -> int:
    lanes = document.runtime.get("lanes")
    return min(lanes, cpu_count()) if isinstance(lanes, int) and lanes > 0 else cpu_count()


@dataclass(frozen=True, eq=False)
class _MeasuredCost:
    """What the database knows, and what may be measured beside."""

    known: KnownStages
    measurements: int

    @property
    def lanes(self) -> int:
        return self.known.cost.lanes

    def known_us(self, stage: Stage) -> float | None:
        found = self.known.latency_us(stage)
        if found is None and self.known.cost.measurements < self.measurements:
            return self.known.cost.stage_latency_us(stage)
        return found

    def stage_latency_us(self, stage: Stage) -> float:
        return self.known.cost.stage_latency_us(stage)

    def lower_bound_us(self, stage: Stage) -> float:
        return self.known.cost.lower_bound_us(stage)

    def operator_latency_us(self, name: str) -> float:
        return self.known.operator_latency_us(name) or 0.0

    def operator_work_us(self, name: str) -> float:
        return self.known.operator_work_us(name) or 0.0
