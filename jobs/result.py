"""What `optimize` answers: a schedule, what it is worth, and the document that says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from iosched.jobs.decision import Ratio
from iosched.jobs.settings import OptimizeSettings
from iosched.jobs.verdict import Verdict
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.profiler.devices.cost import MeasuredCosts
from iosched.profiler.devices.device import Device, OpenModelHere
from iosched.scheduler import document_format
from iosched.scheduler.checks import model_dtype
from iosched.scheduler.document import ScheduleDocument, SearchRecord
from iosched.scheduler.proof import Scope
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult

_MEASURED = ("measured", "sequential", "greedy", "reference")


@dataclass(frozen=True)
class OptimizeResult:
    """A schedule, what it is worth, and what finding it took. Latencies are medians in microseconds.

    `measured_us` and `reference_us` are None where nothing was measured, `greedy_us` also where the budget left no time
    for it, and `gap` where nothing was searched. `gap` is about the schedule found, within `gap_of`; what is proven of
    the schedule in `document` is said there. `ratio` compares the schedule that ships, or the one found, with what
    there is without it; None where nothing was measured, or too seldom to tell. Latencies are of runs in a row;
    `rested_us` has those after a rest by the names "measured", "sequential", "greedy" and "reference". `notes` are
    sentences on what else a user should know.
    """

    document: ScheduleDocument
    schedule: Schedule
    device_kind: str
    device_name: str
    cost: str
    predicted_us: float
    measured_us: float | None
    sequential_us: float
    greedy_us: float | None
    reference_us: float | None
    shipped: str
    reason: str
    seconds: float
    states: int
    transitions: int
    stages: int
    signatures: int
    measurements: int
    cache_hits: int
    kernels_before: int
    kernels_after: int
    gap: float | None = None
    gap_of: Scope | None = None
    ratio: Ratio | None = None
    rested_us: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def proven(self) -> Scope | None:
        """What `schedule` is proven to be the best schedule of."""
        return self.document.proven

    @property
    def optimal(self) -> bool:
        """Whether it is proven that no legal schedule of the whole graph is better."""
        return self.document.optimal

    @property
    def shipped_us(self) -> float:
        """The latency of what ships; the predicted one where nothing was measured."""
        if self.shipped == "reference" and self.reference_us is not None:
            return self.reference_us
        if self.shipped == "sequential":
            return self.sequential_us
        return self.predicted_us if self.measured_us is None else self.measured_us

    @property
    def shipped_rested_us(self) -> float | None:
        """The latency of what ships after a rest; None where it was not measured."""
        return self.rested_us.get("measured" if self.shipped == "iosched" else self.shipped)


def document_of(
    model: Model,
    settings: OptimizeSettings,
    device: Device,
    found: SearchResult,
    verdict: Verdict,
    here: OpenModelHere | None,
) -> ScheduleDocument:
    """The schedule file; `here` is the model as it was open where the schedule was found, if on a device at hand."""
    signatures = found.measured if here is None else here.cost.signatures
    pruning = settings.pruning
    counts = document_format.Counts(found.states, found.transitions, found.stages, signatures)
    record = SearchRecord(settings.strategy, document_format.Limits(pruning.r, pruning.s), counts)
    latency_us = verdict.latency_us
    return ScheduleDocument(
        model=model.name,
        sha256=model.digest,
        inputs=dict(model.bindings),
        dtype=model_dtype(model.graph),
        device={"kind": device.kind, "name": device.name},
        schedule=verdict.schedule,
        proven=verdict.proven,
        cost=device.cost_kind,
        shipped=verdict.shipped,
        search=record if settings.schedule_from is None else settings.schedule_from.search,
        latency_us={
            "predicted": latency_us.get("predicted", found.schedule.predicted_us),
            **{name: latency_us.get(name) for name in _MEASURED},
        },
        versions={"iosched": iosched_version(), **({} if here is None else here.versions)},
        runtime=dict(verdict.running.runtime),
        alternatives=verdict.alternatives,
        structure=model.structure,
    )


def result_of(
    document: ScheduleDocument, found: SearchResult, verdict: Verdict, cost: MeasuredCosts | None, seconds: float
) -> OptimizeResult:
    """The answer.

    Args:
        cost: what the search asked, where that measures.
        seconds: what it took.
    """
    latency_us = verdict.latency_us
    is_searched = found.states > 0
    return OptimizeResult(
        document=document,
        schedule=verdict.schedule,
        device_kind=document.device_kind,
        device_name=document.device_name,
        cost=document.cost,
        predicted_us=document.latency_us["predicted"] or latency_us.get("measured") or 0.0,
        measured_us=latency_us.get("measured"),
        sequential_us=latency_us.get("sequential", 0.0),
        greedy_us=latency_us.get("greedy"),
        reference_us=latency_us.get("reference"),
        shipped=verdict.shipped,
        reason=verdict.reason,
        seconds=seconds,
        states=found.states,
        transitions=found.transitions,
        stages=found.stages,
        signatures=found.measured if cost is None else cost.signatures,
        measurements=0 if cost is None else cost.measurements,
        cache_hits=0 if cost is None else cost.cache_hits,
        kernels_before=verdict.kernels_before,
        kernels_after=verdict.running.n_kernels,
        gap=found.gap if is_searched else None,
        gap_of=found.scope if is_searched else None,
        ratio=verdict.ratio,
        rested_us=dict(verdict.rested_us),
        notes=tuple(verdict.running.notes),
    )
