"""Times parts of a model on random inputs, before there is a schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from weakref import WeakKeyDictionary

import numpy as np

from iosched.models.errors import DeviceError, ExecutionError
from iosched.models.model import Model
from iosched.runtime.cuda.cudnn.chooser import FASTEST_ALONE, CudnnPlanChooser, CudnnPlanNames
from iosched.runtime.cuda.execute.executor import CudaExecutor
from iosched.runtime.cuda.execute.launches import source_calls
from iosched.runtime.cuda.gpu.driver import Driver
from iosched.runtime.cuda.gpu.lanes import Lanes
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import Lowering, lower, lower_stage
from iosched.runtime.cuda.onnxruntime.sessions import Sessions
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Stage, Strategy

_RANDOM_BLOCK = 1 << 16
_RUNS, _COPIES = 8, 24
_ROUNDS, _LAUNCHES = 15, 4


Trying = Callable[[LoweredModel], AbstractContextManager[None]]


@dataclass(frozen=True, eq=False)
class PartTimer:
    """Runs parts of models on one GPU with the chosen cuDNN plans.

    Attributes:
        sessions: runs operators without a kernel.
    """

    driver: Driver
    choose: CudnnPlanChooser
    lanes: Lanes
    sessions: Sessions
    _nbytes: WeakKeyDictionary[Model, int] = field(default_factory=WeakKeyDictionary)

    def stage(self, lowered: LoweredModel, stage: Stage, names: CudnnPlanNames = FASTEST_ALONE) -> CudaExecutor | None:
        """One compiled stage; None if the stage merges operators that cannot be merged.

        Raises:
            DeviceError: the GPU is out of memory, or cuDNN has no engine.
            ExecutionError: a kernel fails.
        """
        lowering = lower_stage(lowered, stage)
        return None if lowering is None else self._ready(lowering, (names,), self._model_nbytes(lowered))

    def prepare(self, lowered: LoweredModel) -> None:
        """Compiles all kernels of a lowered model."""
        self.driver.prepare(source_calls(lower(lowered, sequential(lowered.model.graph))))

    def alone_us(self, lowered: LoweredModel, names: Sequence[str]) -> float:
        """Microseconds of operators alone, one after another; infinite if one fails."""
        try:
            executor = self.stage(lowered, Stage(Strategy.CONCURRENT, (tuple(names),)))
            if executor is None:
                return math.inf
            with closing(executor):
                return median(executor.time_many(_RUNS, _COPIES)[1:]) if executor.is_captured else math.inf
        except (DeviceError, ExecutionError):  # not a candidate
            return math.inf

    def interleaved_us(self, models: Sequence[LoweredModel], trying: Trying) -> Sequence[Sequence[float]]:
        """Microseconds of the sequential schedule of each lowered model, one sample from each interleaved round.

        If the models do not fit into memory together, each is timed alone; a failed one has infinite latency.

        Args:
            trying: context for the first run of a model, which may end the process.
        """
        try:
            return self._rounds_us(models, trying)
        except (DeviceError, ExecutionError):
            return [self._rounds_alone_us(lowered, trying) for lowered in models]

    def _rounds_alone_us(self, lowered: LoweredModel, trying: Trying) -> Sequence[float]:
        try:
            return self._rounds_us([lowered], trying)[0]
        except (DeviceError, ExecutionError):
            return [math.inf] * _ROUNDS

    def _rounds_us(self, models: Sequence[LoweredModel], trying: Trying) -> Sequence[Sequence[float]]:
        with ExitStack() as opened:
            ready = []
            for lowered in models:
                with trying(lowered):
                    ready.append(opened.enter_context(closing(self._whole(lowered))))
            rounds = [[_pipelined_us(executor) for executor in ready] for _ in range(_ROUNDS)]
        return list(zip(*rounds, strict=True))

    def _whole(self, lowered: LoweredModel) -> CudaExecutor:
        lowering = lower(lowered, sequential(lowered.model.graph))
        self.driver.prepare(source_calls(lowering))
        return self._ready(lowering, (), model_nbytes=0)

    def _model_nbytes(self, lowered: LoweredModel) -> int:
        if lowered.model not in self._nbytes:
            self._nbytes[lowered.model] = lower(lowered, sequential(lowered.model.graph)).plan.nbytes
        return self._nbytes[lowered.model]

    def _ready(self, lowering: Lowering, names: Sequence[CudnnPlanNames], model_nbytes: int) -> CudaExecutor:
        executor = CudaExecutor(
            lowering, self.driver, self.choose, self.lanes, self.sessions, names=names, model_nbytes=model_nbytes
        )
        executor.upload({view.buffer: _random(view.shape or (), view.dtype) for view in executor.inputs})
        return executor


def _pipelined_us(executor: CudaExecutor) -> float:
    """Median latency without the first launch, which waits for the host."""
    return median(executor.time_launches(_LAUNCHES)[1:])


@lru_cache(maxsize=8)
def _random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal floats, or zeros for integers (valid indices); zero floats would run faster than real data.

    Cached: drawing inputs takes as long as timing a stage.
    """
    if np.dtype(dtype).kind == "f":
        block = np.random.default_rng(0).standard_normal(_RANDOM_BLOCK, np.float32).astype(dtype)
        return np.resize(block, shape)  # tiled: drawing a large batch takes longer than timing it
    return np.zeros(shape, dtype)
