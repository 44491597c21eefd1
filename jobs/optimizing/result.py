"""The result of `optimize`, and the schedule file that it contains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from iosched.jobs.annotate import annotated
from iosched.jobs.bisect_mismatch import FirstDifference
from iosched.jobs.loading.loaded_model import LoadedModel
from iosched.jobs.optimizing.verdict import LatencyIntervals, Verdict
from iosched.jobs.schedule_file import document_from, search_record
from iosched.jobs.settings import OptimizeSettings
from iosched.models.errors import UsageError
from iosched.models.export import write_model
from iosched.models.files import atomic_write
from iosched.models.model import Model
from iosched.models.source import StrPath
from iosched.profiler.devices.measured_costs import MeasuredCosts
from iosched.profiler.devices.profiled_device import AttachedModel, Fp16Gain
from iosched.profiler.measuring.deciding import Decision
from iosched.profiler.measuring.statistics import Interval, Measurement
from iosched.runtime.compare import Check
from iosched.runtime.device import Device
from iosched.scheduler.document import ScheduleDocument
from iosched.scheduler.schedule import Schedule, Scope
from iosched.scheduler.search import SearchResult

_KEPT = ("measured", "sequential", "greedy", "reference")
"""Latencies in every schedule file, null if unknown."""


@dataclass(frozen=True)
class OptimizeResult:
    """A schedule, its latency and that of others, and the size of the search; latencies are medians of consecutive
    runs.

    Attributes:
        device_kind: "cpu" or "cuda".
        cost: "measured" or "analytic".
        predicted_us: the sum of the stage latencies of the schedule found, scaled by `slowness` to the machine's speed
            during the comparison if that is known. The schedule file has it unscaled. None if the latency of a stage is
            unknown.
        measured_us: the latency of the schedule found; None if nothing was measured.
        sequential_us: the latency of one operator after another.
        greedy_us: the latency of the greedy schedule; None if there was no time to measure it.
        reference_us: the latency of plain onnxruntime; None if it was not measured.
        shipped: "iosched" for the schedule found, "sequential", "reference" for plain onnxruntime, "openvino" or
            "tensorrt".
        reason: why that ships.
        states: the number of nonempty states in all blocks; 0 if nothing was searched.
        transitions: the number of transitions in all blocks.
        stages: the number of distinct stages in all blocks.
        signatures: the number of distinct signatures requested.
        disturbed: the number of these with only disturbed measurements.
        measurements: the number of measurements, including second ones.
        repeated: the number of these that repeated a disturbed one.
        cache_hits: the number of measurements from the profile database.
        kernels_before: kernel launches of one run without the schedule found.
        kernels_after: kernel launches of one run as shipped; None if a library runs it.
        gap: the part of `predicted_us` that a better schedule could save at most; None if nothing was searched.
        predicted_gap: the same by predictions of unmeasured stages, which ended the search; None if nothing was
            predicted.
        gap_of: among which schedules a better one could be: of the "whole" graph, or of each of its "blocks".
        ratio: the speedup of `candidate` over the faster plain way; None if nothing was measured, or too seldom.
        verdict: "faster" if the interval of `ratio` lies above 1, "slower" if below, "equal" if it is within 2 % of 1,
            else "undecided"; None if nothing of ours was measured.
        candidate: the best of ours: "iosched" for the schedule found, "sequential", "lanes", "greedy", "session" for
            the rewritten model in one session of onnxruntime, or "by_image" for one image at a time on each core; None
            if nothing of ours was measured. On a simulated GPU "lanes" if list scheduling made the schedule, else None.
        rested_us: latencies after idle time by the names "iosched", "sequential", "greedy", "reference", "openvino"
            and "tensorrt".
        measured_share: with the cost "analytic", the part of `shipped_us`, from 0 to 1, that was measured on such a GPU
            on another machine; None if the profile database has nothing of it, or if the latencies are measured here.
        sequential_measured_share: the same part of `sequential_us`.
        intervals: the uncertainty of computed latencies; None if they are measured.
        openvino_us: the latency of OpenVINO; None if it was not measured.
        wholes: the whole models that were measured interleaved, with their samples, by the names "iosched",
            "sequential", "greedy", "reference", "openvino" and "tensorrt"; empty if none was. For throughput,
            the samples are times from the end of one run to that of the next.
        search_seconds: seconds to open the model and to search; the rest compared whole models. None for throughput,
            where both alternate.
        slowness: the machine's slowdown during the comparison, relative to stage measurements; None if not measured
            now.
        fp16: of the same schedule, by the analytic model; None if unknown, in another precision, or no certain gain.
        check: how its outputs on seeded inputs compare with those of plain onnxruntime; None if not compared.
        first_difference: the first operator that differs, if one was found.
        model: the optimized model for `run` and `save`; None for a transferred result.
    """

    document: ScheduleDocument
    schedule: Schedule
    device_kind: str
    device_name: str
    cost: str
    predicted_us: float | None
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
    kernels_before: int | None
    kernels_after: int | None
    disturbed: int = 0
    repeated: int = 0
    gap: float | None = None
    predicted_gap: float | None = None
    gap_of: Scope | None = None
    ratio: Interval | None = None
    verdict: Decision | None = None
    candidate: str | None = None
    rested_us: Mapping[str, float] = field(default_factory=dict)
    measured_share: float | None = None
    sequential_measured_share: float | None = None
    notes: tuple[str, ...] = ()
    intervals: LatencyIntervals | None = None
    openvino_us: float | None = None
    wholes: Mapping[str, Measurement] = field(default_factory=dict)
    search_seconds: float | None = None
    slowness: float | None = None
    fp16: Fp16Gain | None = None
    check: Check | None = None
    first_difference: FirstDifference | None = None
    model: OptimizedModel | None = field(default=None, repr=False, compare=False)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Runs the model once in the way that ships, see `LoadedModel.run`; the first call makes it ready.

        It stays ready until `close`, or as long as the result exists.
        """
        return self._optimized.loaded(self.document).run(inputs)

    def save(self, output: StrPath, schedule: StrPath | None = None) -> None:
        """Writes the model with its schedule inside, and the schedule file to `schedule` if given.

        Each file is written whole or not at all.
        """
        self._optimized.save(self.document, output)
        if schedule is not None:
            with atomic_write(Path(schedule)) as file:
                file.write(self.document.to_json().encode())

    def close(self) -> None:
        """Frees the model that `run` has made ready. May be called again."""
        if self.model is not None:
            self.model.close()

    @property
    def _optimized(self) -> OptimizedModel:
        if self.model is None:
            raise UsageError("this result has no model: use iosched.load(model, schedule=result.document)")
        return self.model

    @property
    def proven(self) -> Scope | None:
        """The scope in which `schedule` is proven optimal: "whole", "blocks" or None."""
        return self.document.proven

    @property
    def optimal(self) -> bool:
        """Whether the schedule is proven optimal for the whole graph."""
        return self.document.optimal

    @property
    def shipped_us(self) -> float:
        """The latency of the way that ships; the predicted one if nothing was measured."""
        if self.shipped_whole is not None:
            return self.shipped_whole.median_us
        return self.sequential_us if self.shipped == "sequential" else self.predicted_us or 0.0

    @property
    def shipped_whole(self) -> Measurement | None:
        """The measurement in a row of the way that ships; None if it was not measured."""
        return self.wholes.get(self.shipped)

    @property
    def shipped_rested_us(self) -> float | None:
        """The latency after idle time of the way that ships; None if it was not measured."""
        return self.rested_us.get(self.shipped)


def result_of(
    model: Model,
    settings: OptimizeSettings,
    device: Device,
    attached: AttachedModel | None,
    found: SearchResult,
    verdict: Verdict,
    cost: MeasuredCosts | None,
    seconds: float,
) -> OptimizeResult:
    """The result of `optimize`, with its schedule file.

    Args:
        attached: the open model that the schedule was found for, if on an attached device.
        cost: the latencies that the search asked for; None if they are computed.
    """
    document = document_from(model, device, attached, verdict.schedule)
    found_as = {"iosched": "predicted" if document.cost == "analytic" else "measured"}
    medians_us = {found_as.get(name, name): each.median_us for name, each in verdict.latencies.items()}
    latency_us = {"predicted": found.schedule.predicted_us, **dict.fromkeys(_KEPT), **medians_us}
    given = settings.schedule_from
    document = replace(
        document,
        proven=verdict.proven,
        shipped=verdict.shipped,
        search=search_record(settings.strategy, settings.pruning, found, attached) if given is None else given.search,
        latency_us=latency_us,
        runtime=dict(verdict.running.runtime),
        alternatives=verdict.alternatives,
        objective=settings.objective,
        teams=verdict.teams,
        units=settings.opening.units,
    )
    wholes = {name: each for name, each in verdict.latencies.items() if each.samples_us}
    is_searched = found.states > 0
    iosched = verdict.latencies.get("iosched")
    slowness = None if iosched is None else iosched.slowness
    return OptimizeResult(
        document=document,
        schedule=verdict.schedule,
        device_kind=document.device_kind,
        device_name=document.device_name,
        cost=document.cost,
        predicted_us=latency_us["predicted"] and latency_us["predicted"] * (slowness or 1.0),
        measured_us=latency_us["measured"],
        sequential_us=latency_us["sequential"] or 0.0,
        greedy_us=latency_us["greedy"],
        reference_us=latency_us["reference"],
        shipped=verdict.shipped,
        reason=verdict.reason,
        seconds=seconds,
        states=found.states,
        transitions=found.transitions,
        stages=found.stages,
        signatures=found.measured if cost is None else cost.signatures,
        measurements=0 if cost is None else cost.measurements,
        cache_hits=0 if cost is None else cost.cache_hits,
        disturbed=0 if cost is None else cost.disturbed,
        repeated=0 if cost is None else cost.repeated,
        kernels_before=verdict.kernels_before,
        kernels_after=verdict.running.n_kernels,
        gap=found.gap if is_searched else None,
        predicted_gap=found.predicted_gap,
        gap_of=found.scope if is_searched else None,
        ratio=verdict.ratio,
        verdict=verdict.verdict,
        candidate=verdict.candidate,
        rested_us={name: each.rested.median_us for name, each in wholes.items() if each.rested},
        measured_share=document.measured_share,
        sequential_measured_share=verdict.sequential_measured_share,
        notes=tuple(verdict.running.notes),
        intervals=verdict.intervals,
        openvino_us=latency_us.get("openvino"),
        wholes=wholes,
        slowness=slowness,
    )


class OptimizedModel:
    """A model that is made ready to run on first use. Several threads may use it."""

    def __init__(self, model: Model, threads: int | None) -> None:
        """Keeps the model, and the number of CPU cores that it was optimized for."""
        self._model, self._threads = model, threads
        self._lock = Lock()
        self._loaded: LoadedModel | None = None

    def loaded(self, document: ScheduleDocument) -> LoadedModel:
        """The model ready to run by this schedule; the same one until it is closed."""
        with self._lock:
            if self._loaded is None:
                self._loaded = LoadedModel(self._model, document, threads=self._threads)
            return self._loaded

    def save(self, document: ScheduleDocument, path: StrPath) -> None:
        """Writes the model with this schedule inside; the file is written whole or not at all."""
        write_model(annotated(self._model, document), self._model.weights, path)

    def close(self) -> None:
        """Frees the model that was made ready. May be called again."""
        with self._lock:
            if self._loaded is not None:
                self._loaded.close()
                self._loaded = None
