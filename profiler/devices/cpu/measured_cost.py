"""Latencies of stages on this machine's CPU, measured in the executor that runs them, and kept in the database."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from iosched.models.graph import Operator
from iosched.models.node_attributes import serialized
from iosched.models.version import iosched_version
from iosched.profiler.devices.cpu.cache_flush import flushed_nbytes_of
from iosched.profiler.devices.cpu.calibration_kernel import (
    CALIBRATION,
    RunBatch,
    compile_calibration_kernel,
    corrected,
    measure_reference,
    slowness_now,
)
from iosched.profiler.devices.cpu.divisions import DivisionChoice, GroupTime
from iosched.profiler.devices.measured_costs import known_us
from iosched.profiler.devices.throughput import idle_share
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.idle import wait_until_idle
from iosched.profiler.measuring.interleave import interleave
from iosched.profiler.measuring.statistics import (
    FAILED,
    NOTHING_TO_RUN,
    UNRUNNABLE,
    Measurement,
    MeasureSettings,
    is_thorough,
    measure,
    quantile,
)
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.profiler.store.stages import MOST_TRIES, CountingStages, StageMemory
from iosched.profiler.store.tables import Turn
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.runtime.cpu.handovers import Spans
from iosched.runtime.cpu.lower import LOWERING
from iosched.runtime.faults import Faults, named, plan_error
from iosched.runtime.processor import read_processor
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import Signatures

SEGMENT_ROUNDS, SEGMENT_RUNS = 21, 3
"""Samples of each segment, and runs that a sample is the median of."""

STAGE_SETTINGS = MeasureSettings(warmup=2, min_samples=6, max_samples=24, relative_width=0.08, max_seconds=0.4)
"""A stage is known to some 4 % to either side, whatever the number of samples: its latency in fresh measurements varies
by more. A narrower interval took a fifth more runs, and latencies varied 2 to 5 % less.
"""


@dataclass(frozen=True, eq=False)
class CpuStageCost(CountingStages):
    """The cost model of one model on this CPU.

    A stage is measured once for each signature, unless the database has it. It is measured as within the model: its
    weights were last used in the previous run, and the parts of its inputs that no earlier stage has read
    (`runtime/cpu/handovers.py`) were just written by the cores that share the work. Latencies are corrected for the
    machine's speed (`calibration_kernel.py`).

    Attributes:
        flush_nbytes: bytes that flush the caches before each run; by default about the model's weights
            (`cache_flush.py`).
        resume: whether latencies of the database are used, see `StageMemory`; the calibration always is.
        faults: of failed stages, which count as infinitely slow and are not stored; only an operator that fails alone
            ends the search.
    """

    backend: CpuBackend
    database: ProfileDatabase
    settings: MeasureSettings = STAGE_SETTINGS
    flush_nbytes: int | None = None
    on_measured: Callable[[], None] = lambda: None
    resume: bool = True
    faults: Faults = field(default_factory=Faults)

    @property
    def lanes(self) -> int:
        """Number of cores that a stage may use."""
        return self.backend.lanes

    def with_own_counts(self) -> CpuStageCost:
        """See `MeasuredCosts.with_own_counts`."""
        return replace(self)

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency on all lanes in microseconds, with the fastest likely division; infinite if the strategy
        cannot run it.
        """
        return self._choice.best(stage, self._first)[1].median_us

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        """Like `stage_latency_us`, but measuring ends once the confidence interval is above `worse_than_us`.

        Such a rough measurement is stored separately; a thorough one follows if requested.
        """
        return self._choice.best(stage, self._first, worse_than_us)[1].median_us

    def divided(self, stage: Stage) -> Stage:
        """The stage with the division of its latency: the default one unless another is known to be faster."""
        return self._choice.with_guessed_division(self._choice.best(stage, self._known_first)[0])

    def remeasure(self, stage: Stage) -> float:
        """Median latency in a second measurement, taken now unless the database has it.

        Its samples are not pooled with the first ones: a chosen stage was more often than not fast by chance.
        `stage_latency_us` keeps the first latency, so that a later search requests the same stages. It is repeated
        under interference, as far as `StageMemory` allows.
        """
        chosen = self._choice.best(stage, self._first)[0]
        found = self._measured(chosen, self.lanes, "again")
        while self._is_doubted(chosen, "again"):
            found = self._stages.keep(self._signature(chosen, self.lanes), "again", self._timed(chosen, self.lanes))
        return found.median_us

    def try_again(self) -> None:
        """From now on, stages measured with interference are measured again when requested."""
        self._stages.try_again()

    def disturbed_low_us(self, stage: Stage) -> float | None:
        """The low end of a latency with interference that may be measured again; else None."""
        chosen, found = self._choice.best(stage, self._known_first)
        is_doubted = any(self._is_doubted(chosen, turn) for turn in ("first", "rough"))
        return found.low_us if found.disturbed_by and is_doubted else None

    def _is_doubted(self, stage: Stage, turn: Turn) -> bool:
        return not self._is_free(stage) and self._stages.is_doubted(self._signature(stage, self.lanes), turn)

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence about stages measured with interference."""
        if not self.disturbed:
            return ()
        return (
            f"Other processes interfered with the measurements of {self.disturbed} of {self.signatures} stages "
            f"(measurements repeated: {self.repeated}), so these latencies have wide intervals. "
            "Repeat the search on an idle machine.",
        )

    def in_turn(self, segments: Mapping[str, Sequence[Stage]]) -> Mapping[str, Measurement]:
        """Interleaved latencies of segments, see `interleaved_segments`."""
        return interleaved_segments(self.backend, segments, self.flushed_nbytes)

    def known(self, stage: Stage, lanes: int | None = None) -> Measurement | None:
        """The latest thorough measurement of the stage on `lanes` cores, by default all; None if there is none.
        Measures nothing.
        """
        if self._is_free(stage):
            return NOTHING_TO_RUN
        chosen = self._choice.best(stage, self._known_first)[0] if lanes in (None, self.lanes) else stage
        return self._stages.latest(self._signature(chosen, lanes or self.lanes))

    def lower_bound_us(self, stage: Stage) -> float:
        """Zero: nothing bounds the latency of a merged convolution."""
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """Latency of one unit on all lanes, in microseconds."""
        return self.stage_latency_us(_alone(name))

    def operator_work_us(self, name: str) -> float:
        """Lane-microseconds of one unit: on a single lane or on all, whichever is less."""
        one = self._measured(_alone(name), 1).median_us
        return min(one, self.operator_latency_us(name) * self.lanes)

    def known_work_us(self, name: str) -> float | None:
        """`operator_work_us`, or None if it would have to measure."""
        alone = self.known(_alone(name))
        if alone is None or self._is_free(_alone(name)):
            return None if alone is None else alone.median_us
        one = self.known(_alone(name), lanes=1)
        return None if one is None else min(one.median_us, alone.median_us * self.lanes)

    def idle_share(self, stage: Stage) -> float | None:
        """The idle share of the lanes' time while the stage runs; None if unknown. Measures nothing.

        A unit keeps the lanes that its kernels are split over busy for its latency alone on that number of lanes.
        """
        if stage.strategy is not Strategy.CONCURRENT:
            return None
        cut = self.backend.unit_lanes(self.divided(stage))
        return idle_share(known_us(self, stage), (self._busy_us(*each) for each in cut.items()), self.lanes)

    def _busy_us(self, name: str, lanes: int) -> float | None:
        if lanes in (1, self.lanes):
            found = self.known(_alone(name), lanes)
            return None if found is None else found.median_us * lanes
        one, every = (self.known(_alone(name), count) for count in (1, self.lanes))
        if one is None or every is None:
            return None
        return GroupTime.between(one.median_us, every.median_us, self.lanes).on(lanes) * lanes

    def operator_key(self, name: str) -> str:
        """The unit's computation; stages of units with equal keys have the same signature."""
        return self._labels[self.backend.graph.by_name[name]]

    def _unit_time(self, name: str) -> GroupTime | None:
        if self._is_free(_alone(name)):
            return GroupTime()
        one, every = (self._stages.found(self._signature(_alone(name), lanes), "first") for lanes in (1, self.lanes))
        if one is None or every is None:
            return None
        return GroupTime.between(one.median_us, every.median_us, self.lanes)

    def _first(self, stage: Stage, worse_than_us: float) -> Measurement:
        if self._is_free(stage):
            return NOTHING_TO_RUN
        signature = self._signature(stage, self.lanes)
        rough = None if math.isinf(worse_than_us) else self._stages.found(signature, "rough")
        if rough is not None and rough.low_us > worse_than_us:
            return rough
        if rough is not None or math.isinf(worse_than_us) or self._stages.found(signature, "first") is not None:
            return self._measured(stage, self.lanes)
        found = self._timed(stage, self.lanes, worse_than_us)
        is_rough = found.low_us > worse_than_us and not is_thorough(found, self.settings) and found.samples_us
        return self._stages.keep(signature, "rough" if is_rough else "first", found)

    def _known_first(self, stage: Stage, worse_than_us: float) -> Measurement | None:
        del worse_than_us
        if self._is_free(stage):
            return NOTHING_TO_RUN
        signature = self._signature(stage, self.lanes)
        return self._stages.found(signature, "first") or self._stages.found(signature, "rough")

    def _measured(self, stage: Stage, lanes: int, turn: Turn = "first") -> Measurement:
        if self._is_free(stage):
            return NOTHING_TO_RUN
        return self._stages.answer(self._signature(stage, lanes), turn, lambda: self._timed(stage, lanes))

    def _is_free(self, stage: Stage) -> bool:
        return not any(self.backend.coarse.nodes[name] for name in stage.operators)

    def _signature(self, stage: Stage, lanes: int) -> str:
        """The stage's key in the database: its lanes, the flushed kibibytes, its signature, and a division other than
        the default.
        """
        key = f"{lanes}:{self.flushed_nbytes >> 10}K:{self._signatures.of(stage)}"
        return key if self._choice.is_guessed(stage, lanes) else f"{key}:{self._signatures.of_division(stage)}"

    def _timed(self, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        """Measures the stage; a failed single operator, or any failure with strict faults, raises a PlanError."""
        where, attempt = named([self.backend.graph.by_name[name] for name in stage.operators]), Faults()
        with attempt.contained(where):
            return self._measured_now(stage, lanes, worse_than_us)
        error = attempt.found[where]
        if len(stage.operators) == 1 or self.faults.strict:
            raise plan_error(where, error) from error
        self.faults.found[f"the stage of {where}"] = error
        return FAILED

    def _measured_now(self, stage: Stage, lanes: int, worse_than_us: float | None) -> Measurement:
        compiled = self.backend.compile_stage(stage, lanes=lanes)
        if compiled is None:
            return UNRUNNABLE
        slowness: list[float] = []
        run = self._steadied(self._amid(compiled), slowness.append)
        others = disturbance.since_now(self.watched_cpus)
        noticed: list[str] = []

        def is_disturbed() -> bool:
            noticed.extend((*others(), *disturbance.doubts(slowness)))
            return bool(noticed)

        with closing(compiled.executor):
            found = measure(
                *(run, self.settings),
                worse_than_us=worse_than_us,
                warm_up=lambda count: compiled.time(count, flush_nbytes=self.flushed_nbytes),
                is_hopeless=is_disturbed,
            )
        reasons = noticed or (*others(), *disturbance.doubts(slowness, found.relative_width))
        return disturbance.disturbed(found, tuple(reasons))

    @property
    def watched_cpus(self) -> Sequence[int]:
        """The processors of the lanes, without those that other processes may use."""
        return [cpu for cpu in self.backend.cpus.of(self.lanes) if cpu >= 0]

    def _amid(self, compiled: CompiledStage) -> RunBatch:

        def run(count: int) -> Sequence[float]:
            # The first run, dropped, finds the calibration kernel's data in the caches and takes up to twice as long.
            return compiled.time(1 + count, flush_nbytes=self.flushed_nbytes)[1:]

        return run

    def _steadied(self, run: RunBatch, noted: Callable[[float], None]) -> RunBatch:
        return corrected(run, lambda count: self._calibration.time(count), lambda: self._reference_us, noted)

    @cached_property
    def _stages(self) -> StageMemory:
        return StageMemory(self.database, self.device, self.resume, self.on_measured)

    @cached_property
    def _choice(self) -> DivisionChoice:
        return DivisionChoice(self.backend, self._unit_time)

    @cached_property
    def flushed_nbytes(self) -> int:
        """Bytes that flush the caches before each run."""
        return flushed_nbytes_of(self.backend) if self.flush_nbytes is None else self.flush_nbytes

    @cached_property
    def _calibration(self) -> CompiledStage:
        return compile_calibration_kernel(self.backend)

    @cached_property
    def _reference_us(self) -> float:
        stored = self.database.calibration(self.device)
        if stored is None:
            stored = self._reference()
            self.database.keep_calibration(self.device, stored)
        return stored.median_us

    def slowness(self) -> float | None:
        """The machine's present slowness relative to the reference speed; None without a stored reference."""
        reference = self.database.calibration(self.device)
        return None if reference is None else slowness_now(self._calibration.time, reference.median_us)

    def _reference(self) -> Measurement:
        found = []
        for _ in range(MOST_TRIES):
            others = disturbance.since_now(self.watched_cpus)
            found.append(measure_reference(self._calibration.time))
            if not others():
                return found[-1]
        return sorted(found, key=lambda each: each.median_us)[len(found) // 2]

    @cached_property
    def device(self) -> str:
        """The key of this machine in the database, with everything but the stage that affects a latency."""
        executor = "compiled" if self.backend.is_native else "python"
        executor += "" if self.backend.cpus.is_pinned or self.backend.lanes == 1 else ", unpinned"
        processor = read_processor()
        versions = {
            "onnxruntime": load_onnxruntime().__version__,
            "iosched": iosched_version(),
            "executor": executor,
            "lowering": str(LOWERING),
            "calibration": str(CALIBRATION),
        }
        return device_key(
            *("cpu", processor.name),
            precision="mixed",
            threads=self.backend.lanes,
            versions=versions,
            design=processor.design,
        )

    @cached_property
    def _signatures(self) -> Signatures:
        return Signatures(self.backend.graph, self._labels.__getitem__)

    @cached_property
    def _labels(self) -> _Labels:
        return _Labels(self.backend)


class _Labels:
    """For each unit a digest of its optimized nodes and their shapes, without names and values of weights."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._known: dict[str, str] = {}

    def __getitem__(self, operator: Operator) -> str:
        if operator.name not in self._known:
            self._known[operator.name] = self._label(operator)
        return self._known[operator.name]

    def _label(self, operator: Operator) -> str:
        kernels, first = self._backend.kernels, self._backend.first_reads
        digest = hashlib.sha256()
        local: dict[str, int] = {}
        for index in self._backend.coarse.nodes[operator.name]:
            node = kernels.nodes[index]
            digest.update(f"{node.domain}:{node.op_type}".encode())
            for attribute in serialized(node):
                digest.update(attribute)
            for name in (*node.input, *node.output):
                number = local.setdefault(name, len(local))
                digest.update(f"{number}{_shape_text(kernels.tensors.get(name), kernels.weights.get(name))}".encode())
                digest.update(_spans_text(first.get((index, name))).encode())
        return digest.hexdigest()


def _shape_text(spec: object, weight: object) -> str:
    if spec is not None:
        return f"{getattr(spec, 'dtype', '')}{getattr(spec, 'shape', '')}"
    return f"w{getattr(weight, 'dtype', '')}{getattr(weight, 'shape', '')}"


def _spans_text(spans: Spans | None) -> str:
    """Number of fresh bytes and of their parts: their position in a buffer affects no latency."""
    return "" if spans is None else f"/{len(spans)}:{sum(end - begin for begin, end in spans)}"


def _alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


def interleaved_segments(
    backend: CpuBackend, segments: Mapping[str, Sequence[Stage]], flush_nbytes: int
) -> Mapping[str, Measurement]:
    """The latency of each segment that can run, in microseconds at the machine's present speed; sample k is of round k.

    A stage's latency is measured minutes apart from others and without its neighbours, which suffices for a search but
    not to compare two schedules: a machine drifts by more than they differ. Here the stages of each segment run as one
    plan, A B A B, with flushed caches before each run. The samples are comparable only with each other
    (`interleave.compare`).
    """
    compiled: dict[str, CompiledStage] = {}
    try:
        for name, stages in segments.items():
            if (found := backend.compile_stages(stages)) is not None:
                compiled[name] = found
        turns = {name: partial(_sample, each, flush_nbytes) for name, each in compiled.items()}
        return interleave(turns, SEGMENT_ROUNDS, warmup=1, rest=wait_until_idle) if turns else {}
    finally:
        for each in compiled.values():
            each.executor.close()


def _sample(compiled: CompiledStage, flush_nbytes: int) -> float:
    return quantile(compiled.time(1 + SEGMENT_RUNS, flush_nbytes=flush_nbytes)[1:], 0.5)
