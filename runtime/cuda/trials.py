"""Runs parts of a model on random numbers, to find out what is faster before there is a schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing
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
from iosched.runtime.cuda.lower.network import Network
from iosched.runtime.cuda.lower.plan import Lowering, lower, lower_stage
from iosched.runtime.cuda.onnxruntime.sessions import Sessions
from iosched.scheduler.baselines import sequential
from iosched.scheduler.schedule import Stage, Strategy

_RANDOM_BLOCK = 1 << 16
_RUNS, _COPIES = 8, 24
_ROUNDS, _IN_A_ROW = 15, 4


@dataclass(frozen=True, eq=False)
class Trials:
    """What runs on one GPU, with the plans that are chosen for it.

    Attributes:
        lanes: the GPU's streams.
        sessions: runs operators that no kernel does.
    """

    driver: Driver
    choose: CudnnPlanChooser
    lanes: Lanes
    sessions: Sessions
    _nbytes: WeakKeyDictionary[Model, int] = field(default_factory=WeakKeyDictionary)

    def stage(self, network: Network, stage: Stage, names: CudnnPlanNames = FASTEST_ALONE) -> CudaExecutor | None:
        """One stage alone; None where it is to be merged and cannot be.

        Raises:
            DeviceError: the GPU has not enough memory, or cuDNN no engine.
            ExecutionError: a kernel fails.
        """
        lowering = lower_stage(network, stage)
        return None if lowering is None else self._ready(lowering, (names,), self._model_nbytes(network))

    def prepare(self, network: Network) -> None:
        """Compiles all kernels of a network."""
        self.driver.prepare(source_calls(lower(network, sequential(network.model.graph))))

    def alone_us(self, network: Network, name: str) -> float:
        """Microseconds of one operator alone, with its kernels in `network`; infinite where it fails."""
        try:
            executor = self.stage(network, Stage(Strategy.CONCURRENT, ((name,),)))
            if executor is None:
                return math.inf
            with closing(executor):
                return median(executor.time_many(_RUNS, _COPIES)[1:]) if executor.is_captured else math.inf
        except (DeviceError, ExecutionError):  # what does not fit or run is no candidate
            return math.inf

    def in_turn_us(self, networks: Sequence[Network]) -> Sequence[Sequence[float]]:
        """Microseconds of the whole model in each network, one operator after another: sample k of each in round k.

        All of them are infinite where a network fails. If there is no memory for all at once, each is timed alone.
        """
        try:
            return self._rounds_us(networks)
        except (DeviceError, ExecutionError):
            return [self._rounds_alone_us(network) for network in networks]

    def _rounds_alone_us(self, network: Network) -> Sequence[float]:
        try:
            return self._rounds_us([network])[0]
        except (DeviceError, ExecutionError):
            return [math.inf] * _ROUNDS

    def _rounds_us(self, networks: Sequence[Network]) -> Sequence[Sequence[float]]:
        with ExitStack() as opened:
            ready = [opened.enter_context(closing(self._whole(network))) for network in networks]
            rounds = [[_in_a_row_us(executor) for executor in ready] for _ in range(_ROUNDS)]
        return list(zip(*rounds, strict=True))

    def _whole(self, network: Network) -> CudaExecutor:
        lowering = lower(network, sequential(network.model.graph))
        self.driver.prepare(source_calls(lowering))
        return self._ready(lowering, (), model_nbytes=0)

    def _model_nbytes(self, network: Network) -> int:
        """Different bytes that a run of the model touches, one operator after another, whichever kernels it has."""
        if network.model not in self._nbytes:
            self._nbytes[network.model] = lower(network, sequential(network.model.graph)).plan.nbytes
        return self._nbytes[network.model]

    def _ready(self, lowering: Lowering, names: Sequence[CudnnPlanNames], model_nbytes: int) -> CudaExecutor:
        executor = CudaExecutor(
            lowering, self.driver, self.choose, self.lanes, self.sessions, names=names, model_nbytes=model_nbytes
        )
        executor.upload({view.buffer: _random(view.shape or (), view.dtype) for view in executor.inputs})
        return executor


def _in_a_row_us(executor: CudaExecutor) -> float:
    """Microseconds of one run of several in a row; the first one waits for the host."""
    return median(executor.time_launches(_IN_A_ROW)[1:])


@lru_cache(maxsize=8)
def _random(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Ordinary floats, or zeros, which every index may be; zeros as floats would run faster than real data.

    Stages of a block read alike tensors, and making them takes as long as timing a stage.
    """
    if np.dtype(dtype).kind == "f":
        block = np.random.default_rng(0).standard_normal(_RANDOM_BLOCK, np.float32).astype(dtype)
        return np.resize(block, shape)  # again and again: drawing all of a large batch would take longer than timing it
    return np.zeros(shape, dtype)
