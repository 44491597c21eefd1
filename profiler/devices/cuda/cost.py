"""Latencies of stages on an attached GPU, measured as they will run, and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.model import Model
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.clock import ReadClock, with_clock
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans
from iosched.profiler.devices.cuda.tuning import copies_of, is_tunable, tune
from iosched.profiler.measuring.statistics import NOTHING_TO_RUN, UNRUNNABLE, Measurement, MeasureSettings, measure
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import StageMemory
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlanNames
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.scheduler.schedule import Stage, Strategy

SETTINGS = MeasureSettings(warmup=2, min_samples=7, max_samples=25, relative_width=0.02, max_seconds=0.2)


@dataclass(frozen=True, eq=False)
class CudaStageCost:
    """The search's cost model of one model on one GPU: a `CostModel`, `Remeasurable`, with `OperatorBounds` and
    `OperatorKeys`.

    Attributes:
        device: the GPU in the database, `AttachedGpu.key`.
        dropped: stages that failed to run, with the reason; they count as infinitely slow.
        on_measured: called after every stage that was really measured.
        clock: looks at the GPU after every measurement.
        resume: whether latencies that the database has are taken, see `StageMemory`.
    """

    backend: CudaBackend
    database: ProfileDatabase
    device: str
    settings: MeasureSettings = SETTINGS
    on_measured: Callable[[], None] = lambda: None
    clock: ReadClock = lambda: None
    resume: bool = True
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        """One: the work bound below says nothing of how much of the GPU an operator leaves idle."""
        return 1

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
        """How many different stages were asked for so far."""
        return len(self._stages.met("first"))

    @property
    def throttled(self) -> Counter[str]:
        """How many of these stages were measured while the clock was lower than it could be, by the reason for it."""
        return Counter(reason for each in self._stages.met("first").values() for reason in each.throttled_by)

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency of the stage; infinite where it cannot be run this way."""
        return self._stages.answer(self.backend.signature(stage), "first", lambda: self._measured(stage)).median_us

    def remeasure(self, stage: Stage) -> float:
        """Median latency of the stage measured anew, with the plans of cuDNN that are fastest inside it.

        The first answer is with the plans that are fastest alone, and stays: candidates are compared by it. Only for
        stages that the choice depends on is it worth to search for better plans. What the database knows was measured
        with the plans that it knows: where those are missing, the stage is measured anew.
        """
        signature = self.backend.signature(stage)
        if signature not in self._stages.met("again") and self.backend.cudnn_plans_in(stage) is None:
            return self._stages.keep(signature, "again", self._tuned(stage)).median_us
        return self._stages.answer(signature, "again", lambda: self._tuned(stage)).median_us

    def known(self, stage: Stage) -> Measurement | None:
        """The measurement of the stage that was taken before, the later of two; None where none was."""
        return self._stages.latest(self.backend.signature(stage))

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

    def known_work_us(self, name: str) -> float | None:
        """What `operator_work_us` answers, which measures nothing."""
        return self.operator_work_us(name)

    def operator_key(self, name: str) -> str:
        """What the operator's kernels are and how their tensors lie."""
        return self.backend.operator_key(name)

    @cached_property
    def _stages(self) -> StageMemory:
        return StageMemory(self.database, self.device, self.resume, self.on_measured)

    def _measured(self, stage: Stage) -> Measurement:
        """Measures the stage with the cuDNN plans that are fastest alone."""
        return self._tried(stage, lambda: self._with_executor(stage, FASTEST_ALONE, self._time))

    def _tuned(self, stage: Stage) -> Measurement:
        """Measures the stage with the cuDNN plans that are fastest in it: those that were chosen before, else the best
        that are found now."""
        names = self.backend.cudnn_plans_in(stage)
        if names is None:
            return self._tried(stage, lambda: self._with_executor(stage, FASTEST_ALONE, partial(self._tune, stage)))
        return self._tried(stage, lambda: self._with_executor(stage, names, self._time))

    def _tune(self, stage: Stage, executor: CudaExecutor) -> Measurement:
        tuned = tune(executor) if is_tunable(executor) else None
        names = FASTEST_ALONE if tuned is None else tuned.names
        holds = self.backend.keep_cudnn_plans(stage, names)
        if holds != names:  # another process chose others meanwhile
            executor.take_cudnn_plans([holds])
            return self._time(executor)
        return self._time(executor) if tuned is None else measure(tuned.time, self.settings)

    def _time(self, executor: CudaExecutor) -> Measurement:
        if executor.is_empty:
            return NOTHING_TO_RUN
        if not executor.is_captured:
            return measure(executor.time_launches, self.settings)
        copies = copies_of(executor)
        return measure(lambda count: executor.time_many(count, copies), self.settings)

    def _with_executor(
        self, stage: Stage, names: CudnnPlanNames, run: Callable[[CudaExecutor], Measurement]
    ) -> Measurement:
        executor = self.backend.compile_stage(stage, names)
        if executor is None:
            return UNRUNNABLE
        found = run(executor)
        executor.close()
        return found

    def _tried(self, stage: Stage, measured: Callable[[], Measurement]) -> Measurement:
        """One stage that does not fit or fails must not end the search: it is no candidate."""
        try:
            return with_clock(measured(), self.clock)
        except (DeviceError, ExecutionError) as error:
            if len(stage.operators) == 1:
                raise
            self.dropped["+".join(stage.operators)] = str(error)
            return UNRUNNABLE


def open_cost(
    gpu: AttachedGpu,
    model: Model,
    precision: str,
    database: ProfileDatabase,
    *,
    resume: bool = True,
    times: bool = True,
) -> CudaStageCost:
    """The cost model of `model` on `gpu`, with the backend that it measures on.

    Args:
        resume: whether latencies that the database has are taken; else all is measured anew and replaced.
        times: whether what the database does not know of plans and kernels may be found by timing.

    Raises:
        DeviceError: the GPU cannot place the model, or cuDNN is missing.
    """
    device = gpu.key(precision)
    backend = gpu.backend(model, precision, StoredCudnnPlans(database, device, times=times))
    return CudaStageCost(backend, database, device, clock=gpu.clock, resume=resume)
