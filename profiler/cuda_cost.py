"""Latencies of stages on an attached GPU, measured as they will run, and kept."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.graph import Operator
from iosched.profiler.database import MeasurementStore
from iosched.profiler.gpu_clock import ReadClock
from iosched.profiler.statistics import UNRUNNABLE, Measurement, MeasureSettings, measure
from iosched.runtime.cuda.backend import CudaBackend
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import stage_signature

COPIES = 24
"""Runs of a stage in one graph: its launch, some microseconds, is shared by so many."""

SETTINGS = MeasureSettings(warmup=2, min_samples=7, max_samples=25, relative_width=0.02, max_seconds=0.2)


@dataclass
class CudaStageCost:
    """The search's cost model of one model on one GPU: a `CostModel` with `OperatorBounds` and `OperatorKeys`.

    Attributes:
        device: the GPU in the database, `AttachedGpu.key`.
        dropped: stages that failed to run, with the reason; they count as infinitely slow.
        on_measured: told after every stage that was really measured.
        clock: looks at the GPU after every measurement.
    """

    backend: CudaBackend
    database: MeasurementStore
    device: str
    settings: MeasureSettings = SETTINGS
    on_measured: Callable[[], None] = lambda: None
    clock: ReadClock = lambda: None
    measurements: int = 0
    cache_hits: int = 0
    dropped: dict[str, str] = field(default_factory=dict)
    _known: dict[str, Measurement] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        """One: the work bound below says nothing of how much of the GPU an operator leaves idle."""
        return 1

    @property
    def signatures(self) -> int:
        """Distinct stages met so far."""
        return len(self._known)

    @property
    def throttled(self) -> Counter[str]:
        """How many of the stages met so far were measured while something held the clock down, by what did."""
        return Counter(reason for each in self._known.values() for reason in each.throttled_by)

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency of the stage; infinite where it cannot be run this way."""
        key = stage_signature(self.backend.graph, stage, self._labels.__getitem__)
        if key not in self._known:
            self._known[key] = self._looked_up(key, stage)
        return self._known[key].median_us

    def lower_bound_us(self, stage: Stage) -> float:
        """No bound of merged stages."""
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """Latency of one operator with the GPU to itself."""
        return self.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),)))

    def operator_work_us(self, name: str) -> float:
        """Nothing is known of it."""
        del name
        return 0.0

    def operator_key(self, name: str) -> str:
        """What the operator's kernels are and how their tensors lie."""
        return self._labels[self.backend.graph.by_name[name]]

    def _looked_up(self, key: str, stage: Stage) -> Measurement:
        stored = self.database.get(key, self.device)
        if stored is not None:
            self.cache_hits += 1
            return stored
        found = self._clocked(self._measured(stage))
        self.database.put(key, self.device, found)
        self.measurements += 1
        self.on_measured()
        return found

    def _measured(self, stage: Stage) -> Measurement:
        """One stage that does not fit or fails must not end the search: it is no candidate."""
        try:
            executor = self.backend.compile_stage(stage)
            if executor is None:
                return UNRUNNABLE
            if executor.is_empty:
                return Measurement(0.0, 0.0, 0.0, ())
            if not executor.is_captured:
                return measure(executor.time_launches, self.settings)
            return measure(lambda count: executor.time_many(count, COPIES), self.settings)
        except (DeviceError, ExecutionError) as error:
            if len(stage.operators) == 1:
                raise
            self.dropped["+".join(stage.operators)] = str(error)
            return UNRUNNABLE

    def _clocked(self, found: Measurement) -> Measurement:
        clock = self.clock() if found.samples_us else None
        if clock is None:
            return found
        return replace(found, clock_mhz=clock.sm_mhz, throttled_by=clock.throttled_by)

    @cached_property
    def _labels(self) -> _Labels:
        return _Labels(self.backend)


class _Labels:
    """What an operator is, for signatures: its kernels, and types, shapes and strides of their tensors."""

    def __init__(self, backend: CudaBackend) -> None:
        self._backend = backend
        self._known: dict[str, str] = {}

    def __getitem__(self, operator: Operator) -> str:
        if operator.name not in self._known:
            text = repr(self._backend.layout_of(operator.name))
            self._known[operator.name] = hashlib.sha256(text.encode()).hexdigest()
        return self._known[operator.name]
