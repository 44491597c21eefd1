"""Latencies of stages on this machine's CPU, measured in the executor that will run them, and kept in the database."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property

from iosched.models.graph import Operator
from iosched.models.node_attributes import serialized
from iosched.models.version import iosched_version
from iosched.profiler.devices.cost import known_us
from iosched.profiler.devices.cpu.cache_flush import swept_amid
from iosched.profiler.devices.cpu.calibration_kernel import (
    CALIBRATION,
    RunBatch,
    compile_yardstick,
    corrected,
    measure_reference,
    slowness_now,
)
from iosched.profiler.devices.cpu.divisions import GroupTime
from iosched.profiler.devices.cpu.lane_choice import DivisionChoice
from iosched.profiler.devices.cpu.segment_latencies import stretches_in_turn
from iosched.profiler.devices.idle_share import idle_share
from iosched.profiler.measuring import disturbance
from iosched.profiler.measuring.statistics import (
    FAILED,
    NOTHING_TO_RUN,
    UNRUNNABLE,
    Measurement,
    MeasureSettings,
    is_thorough,
    measure,
)
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.profiler.store.stages import MOST_TRIES, StageMemory
from iosched.profiler.store.tables import Row, Turn
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.runtime.cpu.handovers import Spans
from iosched.runtime.cpu.lower import LOWERING
from iosched.runtime.faults import Faults, named, plan_error
from iosched.runtime.processor import read_processor
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import Signatures

STAGE_SETTINGS = MeasureSettings(warmup=2, min_samples=6, max_samples=24, relative_width=0.08, max_seconds=0.4)
"""A stage is known to some 4 % to either side, whatever the number of samples: its latency in fresh measurements varies
by more. A narrower interval took a fifth more runs, and latencies varied 2 to 5 % less."""


@dataclass(frozen=True, eq=False)
class CpuStageCost:
    """The search's cost model of one model on this CPU.

    A stage is measured once for each signature, and not at all if the database has its latency. It is measured as it
    runs in the middle of the model: its weights have not been used since the last run of the model, and what no stage
    before it has read of its inputs (`handovers.py`) has just been written by the cores that share the work. Latencies
    are corrected for the speed that the machine had while they were measured (`yardstick.py`).

    Attributes:
        sweep_nbytes: how many bytes are read through the caches before each run, so that they no longer have the
            weights; by default about as many as the whole model's (`sweep.py`). With 0 everything stays in them.
        on_measured: is called after every stage that was really measured.
        resume: whether the latencies in the database are used, see `StageMemory`; the yardstick's always is.
        faults: of stages that fail. Such a stage counts as infinitely slow and is not kept in the database; only an
            operator that fails alone ends the search, since no schedule can do without it.
    """

    backend: CpuBackend
    database: ProfileDatabase
    settings: MeasureSettings = STAGE_SETTINGS
    sweep_nbytes: int | None = None
    on_measured: Callable[[], None] = lambda: None
    resume: bool = True
    faults: Faults = field(default_factory=Faults)

    @property
    def lanes(self) -> int:
        """How many cores a stage may use."""
        return self.backend.lanes

    @property
    def measurements(self) -> int:
        """How many stages were really measured so far."""
        return self._stages.measurements

    @property
    def repeated(self) -> int:
        """How many of these measurements repeated one that something had disturbed."""
        return self._stages.repeated

    @property
    def disturbed(self) -> int:
        """How many of `signatures` have only measurements that something disturbed."""
        return self._stages.disturbed

    @property
    def cache_hits(self) -> int:
        """How many stages were found in the database so far."""
        return self._stages.cache_hits

    @property
    def signatures(self) -> int:
        """How many different stages this object was asked for so far, by all strategies and numbers of lanes."""
        return self._stages.signatures

    @property
    def repeatable(self) -> int:
        """How many measurements of the stages asked for may still be repeated because something disturbed them."""
        return self._stages.repeatable

    def counted_apart(self) -> CpuStageCost:
        """The same open model and database; what is asked of it is not counted here, and not remembered but there."""
        return replace(self)

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """Says what others have measured for this object: when it asks for that, it counts as measured."""
        self._stages.measured_by_others(rows)

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency of the stage with all lanes, in microseconds; infinite if it cannot be run by its strategy.

        Of a stage that names no lanes for its groups, with the likely division that takes least (`divisions.py`).
        """
        return self._choice.best(stage, self._first)[1].median_us

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        """Like `stage_latency_us`, but measuring ends as soon as the stage is clearly slower than `worse_than_us`.

        The whole confidence interval then lies above `worse_than_us`. Such a rough measurement is kept apart from the
        thorough ones: it answers the same question again, and is followed by a thorough one if that is asked for.
        """
        return self._choice.best(stage, self._first, worse_than_us)[1].median_us

    def divided(self, stage: Stage) -> Stage:
        """The stage with the division that its latency is of: the guessed one where no other is known to be faster."""
        return self._choice.spelled_out(self._choice.best(stage, self._known_first)[0])

    def remeasure(self, stage: Stage) -> float:
        """Median latency of the stage in a second measurement, which is taken now if the database has none.

        Its samples are not pooled with those of the first measurement: a stage that the search chose was more often
        than not fast by chance in that one. `stage_latency_us` still answers the first latency, so that a later search
        asks for the same stages.

        The choice hangs on it, so it is repeated while something disturbs the machine, as far as `StageMemory` allows.
        """
        chosen = self._choice.best(stage, self._first)[0]
        found = self._measured(chosen, self.lanes, "again")
        while self._is_doubted(chosen, "again"):
            found = self._stages.keep(self._signature(chosen, self.lanes), "again", self._timed(chosen, self.lanes))
        return found.median_us

    def try_again(self) -> None:
        """From now on, what was measured while the machine was disturbed is measured again when it is asked for."""
        self._stages.try_again()

    def disturbed_low_us(self, stage: Stage) -> float | None:
        """The low end of the stage's latency, if that was disturbed and may be measured again; else None."""
        chosen, found = self._choice.best(stage, self._known_first)
        is_doubted = any(self._is_doubted(chosen, turn) for turn in ("first", "rough"))
        return found.low_us if found.disturbed_by and is_doubted else None

    def _is_doubted(self, stage: Stage, turn: Turn) -> bool:
        return not self._is_free(stage) and self._stages.is_doubted(self._signature(stage, self.lanes), turn)

    @property
    def remarks(self) -> tuple[str, ...]:
        """A sentence about stages that were measured while the machine was disturbed, and about what that took."""
        if not self.disturbed:
            return ()
        return (
            f"Other processes interfered with the measurements of {self.disturbed} of {self.signatures} stages, "
            f"so their latencies have wide intervals; {self.repeated} measurements were repeated. "
            "Search once more while nothing else runs.",
        )

    def in_turn(self, stretches: Mapping[str, Sequence[Stage]]) -> Mapping[str, Measurement]:
        """Latencies of whole stretches of stages, measured in turn, see `stretches_in_turn`."""
        return stretches_in_turn(self.backend, stretches, self.swept_nbytes)

    def known(self, stage: Stage, lanes: int | None = None) -> Measurement | None:
        """The latest thorough measurement of the stage; None if the stage was never measured. Measures nothing.

        Args:
            lanes: the number of cores that the stage may use; all by default.
        """
        if self._is_free(stage):
            return NOTHING_TO_RUN
        chosen = self._choice.best(stage, self._known_first)[0] if lanes in (None, self.lanes) else stage
        return self._stages.latest(self._signature(chosen, lanes or self.lanes))

    def lower_bound_us(self, stage: Stage) -> float:
        """Zero, which is no bound: nothing that is known of convolutions bounds the latency of their merge."""
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """Latency of one unit that has all lanes to itself, in microseconds."""
        return self.stage_latency_us(_alone(name))

    def operator_work_us(self, name: str) -> float:
        """Microseconds that one unit takes of all lanes together: on a single lane or on all, whichever is less."""
        one = self._measured(_alone(name), 1).median_us
        return min(one, self.operator_latency_us(name) * self.lanes)

    def known_work_us(self, name: str) -> float | None:
        """What `operator_work_us` answers; None if it would have to measure something first."""
        alone = self.known(_alone(name))
        if alone is None or self._is_free(_alone(name)):
            return None if alone is None else alone.median_us
        one = self.known(_alone(name), lanes=1)
        return None if one is None else min(one.median_us, alone.median_us * self.lanes)

    def idle_share(self, stage: Stage) -> float | None:
        """The share of the lanes' time in which they wait while the stage runs; None if not known. Measures nothing.

        A unit keeps every lane busy that its kernels are cut over, for its latency alone on that number of lanes.
        """
        if stage.strategy is not Strategy.CONCURRENT:
            return None
        cut = self.backend.unit_lanes(self.divided(stage))
        return idle_share(known_us(self, stage), (self._busy_us(*each) for each in cut.items()), self.lanes)

    def _busy_us(self, name: str, lanes: int) -> float | None:
        """Lane-microseconds of a unit that is cut over `lanes`; None if not known."""
        if lanes in (1, self.lanes):
            found = self.known(_alone(name), lanes)
            return None if found is None else found.median_us * lanes
        one, every = (self.known(_alone(name), count) for count in (1, self.lanes))
        if one is None or every is None:
            return None
        return GroupTime.between(one.median_us, every.median_us, self.lanes).on(lanes) * lanes

    def operator_key(self, name: str) -> str:
        """A text that says what the unit computes; stages of units with equal texts have the same signature."""
        return self._labels[self.backend.graph.by_name[name]]

    def _unit_time(self, name: str) -> GroupTime | None:
        """What a unit takes on any number of lanes, by its first latencies on one and on all; None if not known."""
        if self._is_free(_alone(name)):
            return GroupTime()
        one, every = (self._stages.found(self._signature(_alone(name), lanes), "first") for lanes in (1, self.lanes))
        if one is None or every is None:
            return None
        return GroupTime.between(one.median_us, every.median_us, self.lanes)

    def _first(self, stage: Stage, worse_than_us: float) -> Measurement:
        """The stage's first latency, or a rough one where that is clearly above `worse_than_us`."""
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
        """Whether the stage runs no kernel at all."""
        return not any(self.backend.coarse.nodes[name] for name in stage.operators)

    def _signature(self, stage: Stage, lanes: int) -> str:
        """The stage's key in the database: its lanes, the kibibytes read before each run, and its signature.

        Where its groups are not on the lanes that they have without a division, also which they have.
        """
        key = f"{lanes}:{self.swept_nbytes >> 10}K:{self._signatures.of(stage)}"
        return key if self._choice.is_guessed(stage, lanes) else f"{key}:{self._signatures.of_division(stage)}"

    def _timed(self, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        """Measures the stage.

        Raises:
            PlanError: it fails, and is of one operator, or faults are not contained.
        """
        place, attempt = named([self.backend.graph.by_name[name] for name in stage.operators]), Faults()
        with attempt.contained(place):
            return self._measured_now(stage, lanes, worse_than_us)
        error = attempt.found[place]
        if len(stage.operators) == 1 or self.faults.strict:
            raise plan_error(place, error) from error
        self.faults.found[f"the stage of {place}"] = error
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
                warm_up=lambda count: compiled.time(count, flush_nbytes=self.swept_nbytes),
                is_hopeless=is_disturbed,
            )
        reasons = noticed or (*others(), *disturbance.doubts(slowness, found.relative_width))
        return disturbance.disturbed(found, tuple(reasons))

    @property
    def watched_cpus(self) -> Sequence[int]:
        """The processors of the lanes; without those that are not ours, which others may have."""
        return [cpu for cpu in self.backend.cpus.of(self.lanes) if cpu >= 0]

    def _amid(self, compiled: CompiledStage) -> RunBatch:
        """A function that runs the stage as amid the model, and returns latencies."""

        def run(count: int) -> Sequence[float]:
            # One more, which finds the caches full of what the yardstick read and takes up to twice as long.
            return compiled.time(1 + count, flush_nbytes=self.swept_nbytes)[1:]

        return run

    def _steadied(self, run: RunBatch, noted: Callable[[float], None]) -> RunBatch:
        """A function that runs the same, and returns latencies at the reference speed."""
        return corrected(run, lambda count: self._yardstick.time(count), lambda: self._yardstick_us, noted)

    @cached_property
    def _stages(self) -> StageMemory:
        return StageMemory(self.database, self.device, self.resume, self.on_measured)

    @cached_property
    def _choice(self) -> DivisionChoice:
        return DivisionChoice(self.backend, self._unit_time)

    @cached_property
    def swept_nbytes(self) -> int:
        """How many bytes are read through the caches before each run."""
        return swept_amid(self.backend) if self.sweep_nbytes is None else self.sweep_nbytes

    @cached_property
    def _yardstick(self) -> CompiledStage:
        return compile_yardstick(self.backend)

    @cached_property
    def _yardstick_us(self) -> float:
        """The yardstick's latency in the first search on this machine, which all its latencies are relative to."""
        stored = self.database.yardstick(self.device)
        if stored is None:
            stored = self._reference()
            self.database.keep_yardstick(self.device, stored)
        return stored.median_us

    def slowness(self) -> float | None:
        """How many times as long as at the speed of the latencies here the machine takes now; None where none is known.

        Times the yardstick, and measures no reference for it.
        """
        reference = self.database.yardstick(self.device)
        return None if reference is None else slowness_now(self._yardstick.time, reference.median_us)

    def _reference(self) -> Measurement:
        """The yardstick's latency; the median of some measurements, if the machine is disturbed during each."""
        found = []
        for _ in range(MOST_TRIES):
            others = disturbance.since_now(self.watched_cpus)
            found.append(measure_reference(self._yardstick.time))
            if not others():
                return found[-1]
        return sorted(found, key=lambda each: each.median_us)[len(found) // 2]

    @cached_property
    def device(self) -> str:
        """The key of this machine in the database: it names everything beside the stage that changes a latency."""
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
    """For each unit a digest of what it computes: of its optimized nodes and their shapes, but not of their names and
    the values of their weights."""

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
    """How many bytes, in how many parts, are fresh: where they lie in a buffer changes no latency."""
    return "" if spans is None else f"/{len(spans)}:{sum(end - begin for begin, end in spans)}"


def _alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))
