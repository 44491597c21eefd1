"""The job `explain`: why an operator is in its stage, by latencies of schedules with it in others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import reduce
from operator import or_
from pathlib import Path

from iosched.jobs.open_model import of_a_team, opened
from iosched.models.composition.members import members_of, owners
from iosched.models.errors import UsageError
from iosched.models.graph import ComputationGraph, Operator
from iosched.models.model import Model
from iosched.profiler.devices.measured_costs import ComparesSegments, MeasuredCosts, known_us
from iosched.profiler.devices.profiled_device import OpenModel, Uncertainty
from iosched.profiler.devices.resolve import recorded
from iosched.profiler.devices.throughput import Throughputs
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.statistics import Interval
from iosched.scheduler.alternatives import OtherPlacement, StagePlacement, operator_placement, present_placement
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.pruning import Pruning
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.strategies import is_searched
from iosched.scheduler.teams import Teams
from iosched.scheduler.transfer import fitted
from iosched.scheduler.unit_graph import UnitGraph

MEASUREMENTS = 50
"""The number of stages measured by default if the database does not have them; this takes some seconds."""

MOST_IN_TURN = 3
"""Number of other places that are measured interleaved with the present one: those that look best."""


@dataclass(frozen=True)
class ConsideredSchedule:
    """Another schedule that was considered.

    Attributes:
        stage: the operator's stage in it.
        idle: the idle share of that stage, see `OpenModel.idle_share`.
    """

    name: str
    latency_us: float | None
    stage: Stage
    idle: float | None


@dataclass(frozen=True)
class Explanation:
    """An explanation and where its latencies come from.

    Attributes:
        document: the schedule, with the model's operator names.
        operator: the operator that was asked for.
        units: the units that stages of the explanation name.
        explanation: the other places of the operator's unit, and their latencies.
        device_name: the device that the latencies are for.
        cost: "measured" or "analytic".
        tolerance: the part of a latency below which differences are insignificant.
        throughputs: computes how fast the stages of the explanation are.
        idle: for each stage of the explanation its idle share, see `OpenModel.idle_share`.
        measurements: the number of stages measured for this explanation.
        measured_share: on a simulated GPU, the part of `explanation.present_us`, from 0 to 1, that was measured on such
            a GPU elsewhere; None if nothing was.
        considered: the other schedules that `optimize` compared, as schedules of the model's operators.
        in_turn: for other places that look faster by stage latencies, the interleaved speedup over the present
            schedule.
        equal: other places whose computed latency cannot be distinguished from the present one; None if latencies are
            measured.
        teams: the teams that run the schedule, whose latencies are of one team; None without teams.
        side_by_side: the models in the operator's stage, if each group is of another model. If such a stage exceeds the
            pruning, there are no other places.
    """

    document: ScheduleDocument
    operator: Operator
    units: UnitGraph
    explanation: StagePlacement
    device_name: str
    cost: str
    tolerance: float
    throughputs: Throughputs
    idle: Mapping[Stage, float | None]
    measurements: int = 0
    measured_share: float | None = None
    considered: tuple[ConsideredSchedule, ...] = ()
    in_turn: Mapping[OtherPlacement, Interval] = field(default_factory=dict)
    equal: frozenset[OtherPlacement] | None = None
    teams: Teams | None = None
    side_by_side: tuple[str, ...] = ()

    @property
    def together(self) -> tuple[str, ...]:
        """The operators that the device runs as one unit, which contains `operator`."""
        return self.units.members[self.units.unit_of[self.operator.name]]

    @property
    def better(self) -> OtherPlacement | None:
        """The other place that is faster beyond noise, measured interleaved; the fastest of several."""
        faster = [place for place, found in self.in_turn.items() if found.is_faster]
        return max(faster, key=lambda place: self.in_turn[place].value, default=None)


def explain_operator(
    model: Model,
    document: ScheduleDocument,
    name: str,
    *,
    measurements: int = MEASUREMENTS,
    profile_db: Path | None = None,
) -> Explanation:
    """Compares every other place of the operator `name` by latencies on the device that `document` was made for.

    Args:
        model: the model of the schedule.
        document: the schedule of this model, or of another one of the same structure.
        name: the name of an operator, or of a node or tensor inside one.
        measurements: the number of stages that may be measured if the database does not have their latencies.

    Raises:
        UsageError: there is no such operator.
        InvalidScheduleError: the schedule was made for another structure.
        DeviceError: the device of the schedule is not attached, or there is no specification of it.
    """
    document = fitted(document, model)
    operator = find_operator(model.graph, name)
    return _weighed(model, document, operator, measurements, profile_db)


def _considered(document: ScheduleDocument, operator: str, open_model: OpenModel) -> Iterator[ConsideredSchedule]:
    units, unit = open_model.units, open_model.units.unit_of[operator]
    for alternative in document.alternatives:
        own = next((stage for stage in alternative.schedule.stages if operator in stage.operators), None)
        if own is not None:
            in_units = units.scheduled(alternative.schedule).stages
            idle = next(open_model.details.idle_share(stage) for stage in in_units if unit in stage.operators)
            yield ConsideredSchedule(alternative.name, alternative.latency_us, own, idle)


def _idle(open_model: OpenModel, found: StagePlacement) -> dict[Stage, float | None]:
    stages = {found.present, *(stage for place in found.others for stage in place.stages)}
    return {stage: open_model.details.idle_share(stage) for stage in stages}


def _weighed(
    model: Model, document: ScheduleDocument, operator: Operator, measurements: int, profile_db: Path | None
) -> Explanation:
    device, settings = recorded(document)
    with opened(device, model, settings, profile_db) as whole_model:
        open_model, teams = of_a_team(whole_model, document)
        known = None if open_model.attached is None else _SparingCosts(open_model.attached.cost, measurements)
        unit, strategy = open_model.units.unit_of[operator.name], document.search.strategy
        known_stage_us = open_model.cost.stage_latency_us if known is None else known.known_us
        pruning = Pruning(document.search.pruning.r, document.search.pruning.s)
        schedule = open_model.units.scheduled(document.schedule)
        models, found = _other_models(model, document, operator), present_placement(schedule, unit, known_stage_us)
        if not models or _is_within(found.present, pruning):
            found = operator_placement(
                open_model.graph,
                schedule,
                unit,
                open_model.cost if known is None else known,
                known_stage_us,
                strategy=strategy if is_searched(strategy) else "both",
                pruning=pruning,
                bound_slack=open_model.effort.bound_slack,
            )
        return Explanation(
            document,
            operator,
            open_model.units,
            found,
            device.info.name,
            device.info.cost_kind,
            open_model.effort.tolerance,
            open_model.details.throughputs,
            _idle(open_model, found),
            0 if known is None else known.cost.measurements,
            open_model.details.imported.share(found.stages, open_model.cost.stage_latency_us),
            considered=tuple(_considered(document, operator.name, open_model)),
            in_turn=_in_turn(None if known is None or measurements == 0 else known.cost, found),
            equal=_equal(open_model.details.uncertainty, found),
            teams=teams,
            side_by_side=models,
        )


def _in_turn(cost: object, found: StagePlacement) -> dict[OtherPlacement, Interval]:
    """Interleaved speedups of the block for places that look faster.

    Their stages were measured separately, minutes apart, so some of many look faster by chance.
    """
    now = found.present_us
    if not isinstance(cost, ComparesSegments) or now is None:
        return {}
    promising = sorted(
        (place for place in found.possible if place.at_most_us < now), key=lambda place: place.at_most_us
    )
    places = {str(number): place for number, place in enumerate(promising[:MOST_IN_TURN])}
    if not places:
        return {}
    taken = cost.in_turn({"now": found.stages, **{name: place.stages for name, place in places.items()}})
    ratios = {name: compare(taken["now"], taken[name]) for name in places if name in taken and "now" in taken}
    return {places[name]: ratio for name, ratio in ratios.items() if ratio is not None}


def _is_within(stage: Stage, pruning: Pruning) -> bool:
    longest, r, s = max(map(len, stage.groups)), pruning.r, pruning.s
    return (s is None or len(stage.groups) <= s) and (r is None or longest <= r)


def _other_models(model: Model, document: ScheduleDocument, operator: Operator) -> tuple[str, ...]:
    """The models in the operator's stage, if each of its groups belongs to another model; else none."""
    members = members_of(model.proto)
    owned = owners(model, members)
    stage = next((stage for stage in document.schedule.stages if operator.name in stage.operators), None)
    if stage is None or len(stage.groups) < 2:
        return ()
    bits = [reduce(or_, (owned[name] for name in group)) for group in stage.groups]
    if sum(each.bit_count() for each in bits) > reduce(or_, bits).bit_count():
        return ()
    return tuple(member.name for bit, member in enumerate(members) if reduce(or_, bits) >> bit & 1)


def _equal(uncertainty: Uncertainty | None, found: StagePlacement) -> frozenset[OtherPlacement] | None:
    if uncertainty is None:
        return None
    known = (place for place in found.others if place.stages)
    return frozenset(place for place in known if uncertainty.ratio(place.stages, found.stages).is_equal)


def find_operator(graph: ComputationGraph, name: str) -> Operator:
    """The operator with this name, or the one that contains the node or tensor with this name.

    Raises:
        UsageError: there is none.
    """
    if name in graph.by_name:
        return graph.by_name[name]
    inside = {part: operator for operator in graph.operators for part in (*operator.nodes, *operator.outputs)}
    if name in inside:
        return inside[name]
    close = get_close_matches(name, [*graph.by_name, *inside], n=3)
    hint = f"did you mean {' or '.join(dict.fromkeys(close))}?" if close else "'iosched show' lists the operators"
    raise UsageError(f"unknown operator {name!r}: {hint}")


@dataclass(frozen=True, eq=False)
class _SparingCosts:
    """Latencies from the database and of at most `measurements` new ones; bounds of unknown operators are 0."""

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
