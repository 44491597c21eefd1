"""Latencies of stages on an attached GPU, measured in the executor that runs them, and kept in the database."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import zip_longest
from statistics import median

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.model import Model
from iosched.profiler.devices.cuda.attached import AttachedGpu
from iosched.profiler.devices.cuda.clock import ReadClock, with_clock
from iosched.profiler.devices.cuda.cudnn_plans import StoredCudnnPlans
from iosched.profiler.measuring.statistics import NOTHING_TO_RUN, UNRUNNABLE, Measurement, MeasureSettings, measure
from iosched.profiler.store.database import ProfileDatabase
from iosched.profiler.store.stages import CountingStages, StageMemory
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlanNames
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.layout import Layout
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.unit_graph import Unit

SETTINGS = MeasureSettings(warmup=2, min_samples=7, max_samples=25, relative_width=0.02, max_seconds=0.2)


@dataclass(frozen=True, eq=False)
class CudaStageCost(CountingStages):
    """The cost model of one model on one GPU: a `CostModel`, `Remeasurable`, with `OperatorBounds`, `OperatorKeys` and
    `Suggesting`.

    Attributes:
        device: the key of the GPU in the database, see `AttachedGpu.key`.
        clock: reads the clock of the GPU after every measurement.
        resume: whether latencies of the database are used, see `StageMemory`.
        suggest: returns stages that are likely good.
        dropped: by operators, why a stage failed to run; such stages count as infinitely slow.
    """

    backend: CudaBackend
    database: ProfileDatabase
    device: str
    settings: MeasureSettings = SETTINGS
    on_measured: Callable[[], None] = lambda: None
    clock: ReadClock = lambda: None
    resume: bool = True
    suggest: Callable[[], Iterable[Stage]] = tuple
    dropped: dict[str, str] = field(default_factory=dict)

    @property
    def lanes(self) -> int:
        """One: the idle share of an operator is unknown, see `operator_work_us`."""
        return 1

    def suggested_stages(self) -> Iterable[Stage]:
        """See `scheduler.cost.Suggesting`."""
        return self.suggest()

    @property
    def throttled(self) -> Counter[str]:
        """Number of stages that were measured while throttled, by reason."""
        return Counter(reason for each in self._stages.met("first").values() for reason in each.throttled_by)

    def with_own_counts(self) -> CudaStageCost:
        """See `MeasuredCosts.with_own_counts`."""
        return replace(self)

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency of the stage in microseconds; infinite if the strategy cannot run it."""
        return self._stages.answer(self.backend.signature(stage), "first", lambda: self._measured(stage)).median_us

    def remeasure(self, stage: Stage) -> float:
        """Median latency in a second measurement, with the cuDNN plans that are fastest inside the stage.

        `stage_latency_us` keeps the latency with the plans that are fastest alone, by which stages are compared. The
        search for better plans takes long, so it is done only for stages that a choice depends on. A latency in the
        database is that of the plans in the database; without these, the stage is measured again.
        """
        signature = self.backend.signature(stage)
        if not self._stages.was_kept(signature, "again") and self.backend.cudnn_plans_in(stage) is None:
            return self._stages.keep(signature, "again", self._tuned(stage)).median_us
        return self._stages.answer(signature, "again", lambda: self._tuned(stage)).median_us

    def known(self, stage: Stage) -> Measurement | None:
        """The latest thorough measurement of the stage; None if there is none. Measures nothing."""
        return self._stages.latest(self.backend.signature(stage))

    def lower_bound_us(self, stage: Stage) -> float:
        """Zero: nothing bounds the latency of a merged stage."""
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """Latency of one operator on the whole GPU, in microseconds."""
        return self.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),)))

    def operator_work_us(self, name: str) -> float:
        """Zero: the idle share of an operator is unknown."""
        del name
        return 0.0

    def known_work_us(self, name: str) -> float | None:
        """`operator_work_us`, which never measures."""
        return self.operator_work_us(name)

    def operator_key(self, name: str) -> str:
        """The kernels of the operator and the layouts of its tensors."""
        return self.backend.operator_key(name)

    @cached_property
    def _stages(self) -> StageMemory:
        return StageMemory(self.database, self.device, self.resume, self.on_measured)

    def _measured(self, stage: Stage) -> Measurement:
        return self._tried(stage, lambda: self._with_executor(stage, FASTEST_ALONE, self._time))

    def _tuned(self, stage: Stage) -> Measurement:
        names = self.backend.cudnn_plans_in(stage)
        if names is None:
            return self._tried(stage, lambda: self._with_executor(stage, FASTEST_ALONE, partial(self._tune, stage)))
        return self._tried(stage, lambda: self._with_executor(stage, names, self._time))

    def _tune(self, stage: Stage, executor: CudaExecutor) -> Measurement:
        tuned = tune(executor) if is_tunable(executor) else None
        names = FASTEST_ALONE if tuned is None else tuned.names
        kept = self.backend.keep_cudnn_plans(stage, names)
        if kept != names:  # another process chose others meanwhile
            executor.take_cudnn_plans([kept])
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
        with closing(executor):
            return run(executor)

    def _tried(self, stage: Stage, measured: Callable[[], Measurement]) -> Measurement:
        """Measures the stage; a failed one is dropped, and a failed single operator raises."""
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
    layout: Layout | None = None,
    resume: bool = True,
    times: bool = True,
    suggest: Callable[[], Iterable[Stage]] = tuple,
    units: Sequence[Unit] = (),
) -> CudaStageCost:
    """Opens the cost model of `model` on `gpu`, with a backend that it measures on.

    Args:
        layout: of images; by default the best for the precision and the GPU.
        times: whether missing plans and kernels may be chosen by timing.

    Raises:
        DeviceError: the GPU cannot run the model, or cuDNN is missing.
        UsageError: `units` are invalid.
    """
    device = gpu.key(precision)
    plans = StoredCudnnPlans(database, device, times=times)
    backend = gpu.backend(model, precision, plans, layout, units)
    return CudaStageCost(backend, database, device, clock=gpu.clock, resume=resume, suggest=suggest)


LEAST_COPIES, MOST_COPIES = 4, 24
GRAPH_US = 2000.0
"""Target latency of a graph with several runs of a stage, so that its launch of some microseconds is negligible."""

ROUNDS = 7
MOST_TRIED = 8
LEAST_GAIN = 1.01
"""A plan is kept only if the stage is faster with it by this factor in the median, and faster in every round."""

Timed = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True)
class Tuned:
    """The best plans of a stage by key, except those that are also fastest alone; `time` runs the stage."""

    names: CudnnPlanNames
    time: Timed


def copies_of(executor: CudaExecutor) -> int:
    """Number of runs of the stage in one graph, so that it takes about `GRAPH_US`."""
    once_us = min(executor.time_launches(2))
    return max(LEAST_COPIES, min(MOST_COPIES, math.ceil(GRAPH_US / max(once_us, 1.0))))


def tune(executor: CudaExecutor) -> Tuned:
    """Tries other plans one at a time, and keeps those that make the stage faster (coordinate descent).

    The plans that are second best alone come first, those of the slowest kernels before others, each interleaved with
    the best choice so far. There are at most `MOST_TRIED` comparisons of `ROUNDS` graphs with `copies_of` runs. The
    executor keeps the last tried plan.

    Raises:
        ExecutionError: the stage does not run with the plans that are fastest alone.
    """
    best: CudnnPlanNames = {}
    copies = copies_of(executor)
    time = executor.repeated(copies)
    for key, name in _alternatives(executor)[:MOST_TRIED]:
        trial = {**best, key: name}
        try:
            executor.take_cudnn_plans([trial])
            challenger = executor.repeated(copies)
            faster = _is_faster(challenger, time)
        except (DeviceError, ExecutionError):
            continue
        if faster:
            best, time = trial, challenger
    return Tuned(best, time)


def is_tunable(executor: CudaExecutor) -> bool:
    """Whether other plans can matter: several kernels run in one graph, and a plan has alternatives."""
    return executor.is_captured and executor.kernel_count > 1 and bool(_alternatives(executor))


def _alternatives(executor: CudaExecutor) -> list[tuple[str, str]]:
    """Keys and names of the plans to try: first the second best plan of each key, the slowest key first, and so on."""
    cost_us: dict[str, float] = {}
    others: dict[str, list[tuple[str, str]]] = {}
    for _, plan in executor.cudnn_plans:
        cost_us[plan.key] = cost_us.get(plan.key, 0.0) + (plan.candidates[0].latency_us or 0.0)
        others[plan.key] = [(plan.key, each.name) for each in plan.candidates[1:]]
    ranked = sorted(others, key=lambda key: (-cost_us[key], key))
    return [each for rank in zip_longest(*(others[key] for key in ranked)) for each in rank if each is not None]


def _is_faster(challenger: Timed, best: Timed) -> bool:
    best(1), challenger(1)  # to warm up
    before_us: list[float] = []
    after_us: list[float] = []
    for _ in range(ROUNDS):
        before_us += best(1)
        after_us += challenger(1)
        if before_us[-1] <= after_us[-1]:
            return False
    return median(before_us) >= LEAST_GAIN * median(after_us)
