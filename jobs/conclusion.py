"""What a search comes to, written down: the schedule document, and the answer of `optimize`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from iosched.jobs.decision import Ratio
from iosched.jobs.optimization import OptimizeResult, OptimizeSettings, Shipped
from iosched.models.model import Model
from iosched.models.version import iosched_version
from iosched.scheduler.document import Alternative, ScheduleDocument, SearchRecord, model_dtype
from iosched.scheduler.document_format import Cost, Counts, Limits
from iosched.scheduler.proof import Scope
from iosched.scheduler.schedule import Schedule
from iosched.scheduler.search import SearchResult


@dataclass(frozen=True, eq=False)
class Conclusion:
    """What was found and decided for one model on one device.

    Attributes:
        found: the search's result.
        schedule: what is shipped, in terms of the model's own operators.
        proven: what that is proven to be the best schedule of.
        reason: why, in words.
        ratio: how that compares, where it was measured and can be told.
        alternatives: the other schedules that were considered, in terms of the model's own operators.
        device: kind and name, as the document gives them.
        cost: "measured" or "analytic".
        latency_us: medians by name, of "measured", "sequential", "greedy" and "reference"; those that are not known may
            be left out.
        signatures: distinct stages met.
        kernels: launches of one run before and after.
        versions: of what changes latencies, beside iosched's own.
        runtime: how the runtime is to be set for this schedule.
        rested_us: the same latencies after a rest, where they were measured.
    """

    found: SearchResult
    schedule: Schedule
    proven: Scope | None
    shipped: Shipped
    reason: str
    device: Mapping[str, str]
    latency_us: Mapping[str, float]
    signatures: int
    kernels: tuple[int, int]
    cost: Cost = "measured"
    ratio: Ratio | None = None
    alternatives: tuple[Alternative, ...] = ()
    measurements: int = 0
    cache_hits: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    rested_us: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def document(self, model: Model, settings: OptimizeSettings) -> ScheduleDocument:
        """The schedule file."""
        names = ("measured", "sequential", "greedy", "reference")
        found = self.found
        given = settings.schedule_from
        limits = Limits(settings.pruning.r, settings.pruning.s)
        counts = Counts(found.states, found.transitions, found.stages, self.signatures)
        return ScheduleDocument(
            model=model.name,
            sha256=model.digest,
            inputs=dict(model.bindings),
            dtype=model_dtype(model.graph),
            device=dict(self.device),
            schedule=self.schedule,
            proven=self.proven,
            cost=self.cost,
            shipped=self.shipped,
            search=SearchRecord(settings.strategy, limits, counts) if given is None else given.search,
            latency_us={
                "predicted": self.latency_us.get("predicted", found.schedule.predicted_us),
                **{name: self.latency_us.get(name) for name in names},
            },
            versions={"iosched": iosched_version(), **self.versions},
            runtime=dict(self.runtime),
            alternatives=self.alternatives,
            structure=model.structure,
        )

    def result(self, model: Model, settings: OptimizeSettings, started: float) -> OptimizeResult:
        """The answer; `started` is when the work began, of `time.monotonic`."""
        found, latency_us = self.found, self.latency_us
        document = self.document(model, settings)
        return OptimizeResult(
            document=document,
            schedule=self.schedule,
            device_kind=self.device["kind"],
            device_name=self.device["name"],
            cost=self.cost,
            predicted_us=document.latency_us["predicted"] or latency_us.get("measured") or 0.0,
            measured_us=latency_us.get("measured"),
            sequential_us=latency_us.get("sequential", 0.0),
            greedy_us=latency_us.get("greedy"),
            reference_us=latency_us.get("reference"),
            shipped=self.shipped,
            reason=self.reason,
            seconds=time.monotonic() - started,
            states=found.states,
            transitions=found.transitions,
            stages=found.stages,
            signatures=self.signatures,
            measurements=self.measurements,
            cache_hits=self.cache_hits,
            kernels_before=self.kernels[0],
            kernels_after=self.kernels[1],
            gap=found.gap if found.states else None,
            gap_of=found.scope if found.states else None,
            ratio=self.ratio,
            rested_us=dict(self.rested_us),
            notes=self.notes,
        )
