"""Latencies of stages on this machine's cores, measured through the executor that will run them, and kept."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from iosched.models.graph import Operator
from iosched.models.node_attributes import serialized
from iosched.models.version import iosched_version
from iosched.profiler.devices.cpu.yardstick import compile_yardstick, corrected, measure_reference
from iosched.profiler.measuring.statistics import (
    NOTHING_TO_RUN,
    UNRUNNABLE,
    Measurement,
    MeasureSettings,
    is_thorough,
    measure,
)
from iosched.profiler.store.database import ProfileDatabase, device_key
from iosched.profiler.store.stages import StageMemory
from iosched.profiler.store.tables import Turn
from iosched.runtime.cpu.backend import CompiledStage, CpuBackend
from iosched.runtime.cpu.lower import LOWERING
from iosched.runtime.session import load_onnxruntime
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.signature import Signatures

STAGE_SETTINGS = MeasureSettings(warmup=2, min_samples=6, max_samples=24, relative_width=0.04, max_seconds=0.4)

LEAST_SWEPT, MOST_SWEPT = 1 << 16, 32 << 20
"""Bytes. Reading more before each run changes little and takes long."""


@dataclass(frozen=True, eq=False)
class StageCost:
    """The search's cost model of one model on this CPU.

    A stage is measured once per signature; what the database has is not measured again. It is measured as it runs amid
    the model: its weights were not used since the run before, and its inputs were just written by the cores that share
    the work. Latencies are corrected for the speed of the machine at the time (`yardstick.py`).

    Attributes:
        sweep_nbytes: how much passes through the caches before each run; by default as much as in the whole model
            (`swept_nbytes`), nothing where 0, so that everything is found in them.
        on_measured: called after every stage that was really measured.
        resume: whether latencies that the database has are taken, see `StageMemory`; the yardstick's always is.
    """

    backend: CpuBackend
    database: ProfileDatabase
    settings: MeasureSettings = STAGE_SETTINGS
    sweep_nbytes: int | None = None
    on_measured: Callable[[], None] = lambda: None
    resume: bool = True

    @property
    def lanes(self) -> int:
        """Cores that stages may use."""
        return self.backend.lanes

    @property
    def measurements(self) -> int:
        """Stages that were really measured so far."""
        return self._stages.measurements

    @property
    def cache_hits(self) -> int:
        """Stages that were found in the database."""
        return self._stages.cache_hits

    @property
    def signatures(self) -> int:
        """How many different stages were asked for so far; one that was measured again counts twice."""
        met = self._stages.met
        return len(met("first").keys() | met("rough").keys()) + len(met("again"))

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency of the stage with all lanes; infinite where it cannot be run this way."""
        return self._measured(stage, self.lanes).median_us

    def latency_unless_worse_us(self, stage: Stage, worse_than_us: float) -> float:
        """As `stage_latency_us`, but measured only until it is clear that it is above `worse_than_us`.

        Its whole interval then lies above that. Such a rough measurement is kept apart: it answers the same question
        again, and none that a better one is needed for, which is then taken in full.
        """
        if self._is_free(stage):
            return 0.0
        signature = self._signature(stage, self.lanes)
        rough = self._stages.found(signature, "rough")
        if rough is not None and rough.low_us > worse_than_us:
            return rough.median_us
        if rough is None and self._stages.found(signature, "first") is None:
            found = self._timed(stage, self.lanes, worse_than_us)
            is_rough = found.low_us > worse_than_us and not is_thorough(found, self.settings) and found.samples_us
            return self._stages.keep(signature, "rough" if is_rough else "first", found).median_us
        return self.stage_latency_us(stage)

    def remeasure(self, stage: Stage) -> float:
        """Median latency of the stage, measured anew, or as it was when the database says that it was done before.

        The first answer is not pooled with it: it was low by chance more often than not where the search chose it.
        `stage_latency_us` keeps answering the first, so that a later search asks the same questions.
        """
        return self._measured(stage, self.lanes, "again").median_us

    def known(self, stage: Stage, lanes: int | None = None) -> Measurement | None:
        """The measurement of the stage that was taken before, the later of two; None where none was. Measures nothing.

        Args:
            lanes: the cores that the stage has; all by default.
        """
        if self._is_free(stage):
            return NOTHING_TO_RUN
        return self._stages.latest(self._signature(stage, lanes or self.lanes))

    def lower_bound_us(self, stage: Stage) -> float:
        """No bound: a merged convolution can beat anything that is known of its parts but their arithmetic."""
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """Latency of one unit with all lanes to itself."""
        return self.stage_latency_us(_alone(name))

    def operator_work_us(self, name: str) -> float:
        """Latency of one unit on one lane, or less where splitting it is better than even."""
        one = self._measured(_alone(name), 1).median_us
        return min(one, self.operator_latency_us(name) * self.lanes)

    def known_work_us(self, name: str) -> float | None:
        """What `operator_work_us` answers; None where it would have to measure."""
        alone = self.known(_alone(name))
        if alone is None or self._is_free(_alone(name)):
            return None if alone is None else alone.median_us
        one = self.known(_alone(name), lanes=1)
        return None if one is None else min(one.median_us, alone.median_us * self.lanes)

    def operator_key(self, name: str) -> str:
        """A text that says what the unit computes; stages of units with equal texts have the same signature."""
        return self._labels[self.backend.graph.by_name[name]]

    def _measured(self, stage: Stage, lanes: int, turn: Turn = "first") -> Measurement:
        if self._is_free(stage):
            return NOTHING_TO_RUN
        return self._stages.answer(self._signature(stage, lanes), turn, lambda: self._timed(stage, lanes))

    def _is_free(self, stage: Stage) -> bool:
        """Whether the stage has no kernel at all."""
        return not any(self.backend.coarse.nodes[name] for name in stage.operators)

    def _signature(self, stage: Stage, lanes: int) -> str:
        """The signature of the stage, behind the lanes that it has and the kibibytes that are read before each run."""
        return f"{lanes}:{self._swept_nbytes >> 10}K:{self._signatures.of(stage)}"

    def _timed(self, stage: Stage, lanes: int, worse_than_us: float | None = None) -> Measurement:
        compiled = self.backend.compile_stage(stage, lanes=lanes)
        if compiled is None:
            return UNRUNNABLE
        found = measure(self._steadied(compiled), self.settings, worse_than_us=worse_than_us)
        compiled.executor.close()
        return found

    def _steadied(self, compiled: CompiledStage) -> Callable[[int], Sequence[float]]:
        """A function that runs the stage as it runs amid the model; latencies are those at the reference speed."""
        run = partial(compiled.time, sweep_nbytes=self._swept_nbytes)
        return corrected(run, lambda count: self._yardstick.time(count), lambda: self._yardstick_us)

    @cached_property
    def _stages(self) -> StageMemory:
        return StageMemory(self.database, self.device, self.resume, self.on_measured)

    @cached_property
    def _swept_nbytes(self) -> int:
        return swept_nbytes(self.backend.weights_nbytes) if self.sweep_nbytes is None else self.sweep_nbytes

    @cached_property
    def _yardstick(self) -> CompiledStage:
        return compile_yardstick(self.backend)

    @cached_property
    def _yardstick_us(self) -> float:
        """The yardstick's latency when this device was first met, which all latencies of the device are relative to."""
        stored = self.database.yardstick(self.device)
        if stored is None:
            stored = measure_reference(self._yardstick.time)
            self.database.keep_yardstick(self.device, stored)
        return stored.median_us

    @cached_property
    def device(self) -> str:
        """The key of this machine in the database: everything but the stage itself that changes a latency."""
        executor = "compiled" if self.backend.is_native else "python"
        versions = {
            "onnxruntime": load_onnxruntime().__version__,
            "iosched": iosched_version(),
            "executor": executor,
            "lowering": str(LOWERING),
        }
        return device_key("cpu", cpu_name(), precision="mixed", threads=self.backend.lanes, versions=versions)

    @cached_property
    def _signatures(self) -> Signatures:
        return Signatures(self.backend.graph, self._labels.__getitem__)

    @cached_property
    def _labels(self) -> _Labels:
        return _Labels(self.backend)


def swept_nbytes(weights_nbytes: int) -> int:
    """How much passes through the caches between two runs of a stage when the whole model runs: about its weights.

    A power of two, so that models of about one size share what is measured of stages that look the same.
    """
    return min(max(1 << max(weights_nbytes - 1, 0).bit_length(), LEAST_SWEPT), MOST_SWEPT)


class _Labels:
    """For each unit a digest of what it computes: of its optimized nodes and their shapes, whatever their names and the
    values of their weights are."""

    def __init__(self, backend: CpuBackend) -> None:
        self._backend = backend
        self._known: dict[str, str] = {}

    def __getitem__(self, operator: Operator) -> str:
        if operator.name not in self._known:
            self._known[operator.name] = self._label(operator)
        return self._known[operator.name]

    def _label(self, operator: Operator) -> str:
        kernels = self._backend.kernels
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
        return digest.hexdigest()


def _shape_text(spec: object, weight: object) -> str:
    if spec is not None:
        return f"{getattr(spec, 'dtype', '')}{getattr(spec, 'shape', '')}"
    return f"w{getattr(weight, 'dtype', '')}{getattr(weight, 'shape', '')}"


def _alone(name: str) -> Stage:
    return Stage(Strategy.CONCURRENT, ((name,),))


def cpu_name() -> str:
    """The processor's own name, or what the platform says of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
