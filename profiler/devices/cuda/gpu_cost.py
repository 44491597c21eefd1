"""Latencies of stages on an attached GPU, measured in the executor that will run them, and kept in the database."""

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
from iosched.profiler.store.stages import StageMemory
from iosched.profiler.store.tables import Row
from iosched.runtime.cuda.backend import CudaBackend
from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlanNames
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.layout import Layout
from iosched.scheduler.schedule import Stage, Strategy
from iosched.scheduler.unit_graph import Unit

SETTINGS = MeasureSettings(warmup=2, min_samples=7, max_samples=25, relative_width=0.02, max_seconds=0.2)


@dataclass(frozen=True, eq=False)
class CudaStageCost:
    """The search's cost model of one model on one GPU: a `CostModel`, `Remeasurable`, with `OperatorBounds`,
    `OperatorKeys` and `Suggesting`.

    Attributes:
        device: the key of the GPU in the database, see `AttachedGpu.key`.
        on_measured: is called after every stage that was really measured.
        clock: reads the clock of the GPU after every measurement.
        resume: whether the latencies in the database are used, see `StageMemory`.
        suggest: returns stages that are likely good.
        dropped: the reason for every stage that failed to run; such stages count as infinitely slow.
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
        """One: it is not known how much of the GPU an operator leaves idle, see `operator_work_us`."""
        return 1

    def suggested_stages(self) -> Iterable[Stage]:
        """See `scheduler.cost.Suggesting`."""
        return self.suggest()

    @property
    def measurements(self) -> int:
        """How many stages were really measured so far."""
        return self._stages.measurements

    @property
    def cache_hits(self) -> int:
        """How many stages were found in the database so far."""
        return self._stages.cache_hits

    @property
    def signatures(self) -> int:
        """How many different stages this object was asked for so far."""
        return self._stages.signatures

    @property
    def disturbed(self) -> int:
        """None: it is not watched what others do on a GPU."""
        return self._stages.disturbed

    @property
    def repeated(self) -> int:
        """None, for the same reason."""
        return self._stages.repeated

    @property
    def throttled(self) -> Counter[str]:
        """How many of these stages were measured while the clock was lower than it could be, by the reason for that."""
        return Counter(reason for each in self._stages.met("first").values() for reason in each.throttled_by)

    @property
    def repeatable(self) -> int:
        """None, for the same reason."""
        return self._stages.repeatable

    def with_own_counts(self) -> CudaStageCost:
        """The same open model and database; what is asked of it is not counted here, and not remembered but there."""
        return replace(self)

    def measured_by_others(self, rows: Iterable[Row]) -> None:
        """Says what others have measured for this object: when it asks for that, it counts as measured."""
        self._stages.measured_by_others(rows)

    def stage_latency_us(self, stage: Stage) -> float:
        """Median latency of the stage in microseconds; infinite if it cannot be run by its strategy."""
        return self._stages.answer(self.backend.signature(stage), "first", lambda: self._measured(stage)).median_us

    def remeasure(self, stage: Stage) -> float:
        """Median latency of the stage in a second measurement, with the cuDNN plans that are fastest inside the stage.

        `stage_latency_us` still answers the latency with the plans that are fastest alone, by which stages are
        compared. Searching for better plans takes long, and is done only for stages that a choice depends on. A latency
        in the database is that of the plans in the database; if these are missing, the stage is measured anew.
        """
        signature = self.backend.signature(stage)
        if not self._stages.was_kept(signature, "again") and self.backend.cudnn_plans_in(stage) is None:
            return self._stages.keep(signature, "again", self._tuned(stage)).median_us
        return self._stages.answer(signature, "again", lambda: self._tuned(stage)).median_us

    def known(self, stage: Stage) -> Measurement | None:
        """The latest thorough measurement of the stage; None if the stage was never measured. Measures nothing."""
        return self._stages.latest(self.backend.signature(stage))

    def lower_bound_us(self, stage: Stage) -> float:
        """Zero, which is no bound: nothing bounds the latency of a merged stage."""
        del stage
        return 0.0

    def operator_latency_us(self, name: str) -> float:
        """Latency of one operator that has the GPU to itself, in microseconds."""
        return self.stage_latency_us(Stage(Strategy.CONCURRENT, ((name,),)))

    def operator_work_us(self, name: str) -> float:
        """Zero: it is not known how much of the GPU an operator leaves idle."""
        del name
        return 0.0

    def known_work_us(self, name: str) -> float | None:
        """What `operator_work_us` answers; it never has to measure."""
        return self.operator_work_us(name)

    def operator_key(self, name: str) -> str:
        """A text that says which kernels the operator runs and how their tensors lie in memory."""
        return self.backend.operator_key(name)

    @cached_property
    def _stages(self) -> StageMemory:
        return StageMemory(self.database, self.device, self.resume, self.on_measured)

    def _measured(self, stage: Stage) -> Measurement:
        """Measures the stage with the cuDNN plans that are fastest alone."""
        return self._tried(stage, lambda: self._with_executor(stage, FASTEST_ALONE, self._time))

    def _tuned(self, stage: Stage) -> Measurement:
        """Measures the stage with the cuDNN plans that are fastest inside it, and chooses them if that was not done."""
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
        """Measures the stage; one that needs too much memory or fails is no candidate, but does not end the search."""
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
        layout: how images lie in memory; by default as is best for the precision and the GPU.
        resume: whether the latencies in the database are used; if not, everything is measured anew and replaced.
        times: whether plans and kernels that the database does not have may be chosen by timing.
        suggest: see `CudaStageCost`.
        units: operators to schedule as one, see `join_units`.

    Raises:
        DeviceError: the GPU cannot place the model, or cuDNN is missing.
        UsageError: `units` cannot be.
    """
    device = gpu.key(precision)
    plans = StoredCudnnPlans(database, device, times=times)
    backend = gpu.backend(model, precision, plans, layout, units)
    return CudaStageCost(backend, database, device, clock=gpu.clock, resume=resume, suggest=suggest)


LEAST_COPIES, MOST_COPIES = 4, 24
GRAPH_US = 2000.0
"""How long a graph with several runs of a stage should take, so that its launch of some microseconds does not count."""

ROUNDS = 7
MOST_TRIED = 8
LEAST_GAIN = 1.01
"""A plan is kept only if the stage is faster with it by this factor in the median, and faster in every round."""

Timed = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True)
class Tuned:
    """The best choice of plans that was found for a stage.

    Attributes:
        names: by their keys, the plans that are faster in this stage than those that are fastest alone.
        time: runs the stage with these plans a number of times, and returns the microseconds of each run.
    """

    names: CudnnPlanNames
    time: Timed


def copies_of(executor: CudaExecutor) -> int:
    """How many runs of the stage one graph gets, so that it takes about `GRAPH_US`: few if a run takes long."""
    once_us = min(executor.time_launches(2))
    return max(LEAST_COPIES, min(MOST_COPIES, math.ceil(GRAPH_US / max(once_us, 1.0))))


def tune(executor: CudaExecutor) -> Tuned:
    """Tries other plans one at a time, and keeps those that make the stage faster (coordinate descent).

    The plans that are second best alone are tried first, those of the slowest kernels before others. Each is compared
    in turn with the best choice so far; a plan that fails is no candidate. There are at most `MOST_TRIED` comparisons
    of `ROUNDS` graphs with `copies_of` runs. The executor is left with the plan that was tried last.

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
    """Whether other plans can make a difference: several kernels run in one graph, and a plan has alternatives."""
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
    """Compares round by round, and ends at the first round that the challenger loses, which is mostly the first."""
    best(1), challenger(1)  # to warm up
    before_us: list[float] = []
    after_us: list[float] = []
    for _ in range(ROUNDS):
        before_us += best(1)
        after_us += challenger(1)
        if before_us[-1] <= after_us[-1]:
            return False
    return median(before_us) >= LEAST_GAIN * median(after_us)
