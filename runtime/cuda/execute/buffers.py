"""Buffers of a plan in GPU memory, and weights outside the L2 cache.

A stage that runs repeatedly alone finds its weights in L2 (50 MB on an H100, 6 MB on a V100). In the whole model, other
weights and the arena are read in between: a model that touches more than L2 (Inception V3: 96 MB, 87 of them weights;
SqueezeNet with batch 16: 174 MB) reads every weight from memory, while a smaller one (SqueezeNet with one image: 17 MB)
finds all of them in L2. The outputs of the previous stage are in L2 in either case.

So for a larger model, timed runs of a stage cycle through copies of its weights, after a cache flush and one untimed
run that brings the inputs back.

Developer notes:
    * Flushing more than twice the size of L2 changes nothing, but flushing its size is too little: replacement is not
      strictly LRU, and both halves of an H100's L2 may hold the same lines.
    * The flush reads: written bytes would be written back while the stage runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from iosched.runtime.cuda.execute.launches import Launch, source_launch
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import synchronized_on_error
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.lower.lowering import Lowering
from iosched.runtime.plan import ExecutionPlan, MemorySpace, PlanTask, View


class DeviceBuffers:
    """The arena, and an allocation for each other buffer.

    Attributes:
        addresses: of buffers by name; the arena's is "".
    """

    def __init__(self, lowering: Lowering, driver: Driver, stream: Any, shared: DeviceBuffers | None = None) -> None:
        """Allocates, uploads weights, and zeroes the rest; synchronizes.

        Args:
            shared: other buffers of this lowering, whose weights are used instead.

        Raises:
            DeviceError: the GPU is out of memory.
        """
        self._plan, self._driver = lowering.plan, driver
        self._memory: list[Memory] = []
        self.addresses: dict[str, int] = {}
        with synchronized_on_error(driver, (stream,)):
            self._fill(lowering, driver, stream, shared)
        driver.synchronize(stream)

    def _fill(self, lowering: Lowering, driver: Driver, stream: Any, shared: DeviceBuffers | None) -> None:
        arena = self.keep(driver.allocate(self._plan.arena_nbytes))
        self.addresses[""] = arena
        for buffer in self._plan.buffers:
            if buffer.space is MemorySpace.ARENA:
                self.addresses[buffer.name] = arena + buffer.offset
                continue
            if buffer.space is MemorySpace.WEIGHT and shared is not None:
                self.addresses[buffer.name] = self.keep(shared.memory_of(buffer.name))
                continue
            address = self.addresses[buffer.name] = self.keep(driver.allocate(buffer.nbytes))
            if buffer.space is MemorySpace.WEIGHT:
                driver.upload(address, lowering.weights[buffer.name], stream)
            else:
                driver.fill(address, 0, buffer.nbytes, stream)

    def keep(self, memory: Memory) -> int:
        """Keeps memory alive as long as the buffers; returns its address."""
        self._memory.append(memory)
        return memory.ptr

    def memory_of(self, buffer: str) -> Memory:
        """Memory of a buffer outside the arena; a reference keeps the buffer alive."""
        return next(each for each in self._memory if each.ptr == self.addresses[buffer])

    def upload(self, inputs: Mapping[str, np.ndarray], stream: Any) -> None:
        """Copies inputs to the GPU and synchronizes."""
        for view in self._plan.inputs:
            array = np.asarray(inputs[view.buffer], order="C")
            self._driver.upload(self.addresses[view.buffer], array, stream)
        self._driver.synchronize(stream)

    def download(self, stream: Any) -> dict[str, np.ndarray]:
        """Copies row-major outputs from the GPU."""
        found = {}
        for view in self._plan.outputs:
            array = np.empty(view.shape or (), view.dtype)
            self._driver.download(self.addresses[view.buffer], array, stream)
            found[view.buffer] = array
        return found

    def poison(self, stream: Any) -> None:
        """Fills arena and outputs with NaN, so that missing writes are visible."""
        if self._plan.arena_nbytes:
            self._driver.fill(self.addresses[""], 0xFF, self._plan.arena_nbytes, stream)
        for buffer in self._plan.buffers:
            if buffer.space is MemorySpace.OUTPUT:
                self._driver.fill(self.addresses[buffer.name], 0xFF, buffer.nbytes, stream)
        self._driver.synchronize(stream)

    def close(self) -> None:
        """Frees memory that has no other references."""
        self.addresses = {}
        self._memory.clear()


TIMES_L2 = 2
_ALIGNED = 256
_ROW = 1 << 14  # floats in a row of the flush
_FLOAT = 4


@dataclass(frozen=True, eq=False)
class FlushedWeights:
    """Copies of a stage's weights for timing runs that do not find them in L2.

    Attributes:
        addresses: of weights by buffer, for runs in rotation.
        flush: the cache flush.
    """

    addresses: tuple[Mapping[str, int], ...]
    flush: Launch
    _memory: tuple[Memory, ...]


def flush_nbytes(model_nbytes: int, l2_nbytes: int) -> int:
    """Bytes to read between two reads of a weight; 0 if the weights stay in L2.

    Args:
        model_nbytes: touched by a run of the whole model.
    """
    return 0 if model_nbytes <= l2_nbytes else min(model_nbytes, TIMES_L2 * l2_nbytes)


def flushed_weights(
    plan: ExecutionPlan, addresses: Mapping[str, int], nbytes: int, runs: int, driver: Driver, stream: Any
) -> FlushedWeights | None:
    """Copies of a plan's weights and a cache flush; None without weights.

    The copies take at most `nbytes` plus the weights once, and at most `runs` times the weights.

    Args:
        addresses: of the original weights.
        nbytes: see `flush_nbytes`.
        runs: number of runs that are timed together.

    Raises:
        DeviceError: the GPU is out of memory.
    """
    weights = {buffer.name: buffer.nbytes for buffer in plan.buffers if buffer.space is MemorySpace.WEIGHT}
    starts = [0, *accumulate(_ALIGNED * math.ceil(each / _ALIGNED) for each in weights.values())]
    once_nbytes = starts[-1]
    if not once_nbytes:
        return None
    count = min(runs, math.ceil(nbytes / once_nbytes))
    copies, others = driver.allocate(count * once_nbytes), _FlushBuffer.of(nbytes, driver)
    places = tuple(
        {name: copies.ptr + index * once_nbytes + start for name, start in zip(weights, starts, strict=False)}
        for index in range(count)
    )
    with synchronized_on_error(driver, (stream,)):
        for place in places:
            for name, address in place.items():
                driver.copy(address, addresses[name], weights[name], stream)
        flush = others.reading(driver, stream)
    driver.synchronize(stream)
    return FlushedWeights(places, flush, (copies, *others.memory))


@dataclass(frozen=True, eq=False)
class _FlushBuffer:
    rows: int
    memory: tuple[Memory, Memory]

    @classmethod
    def of(cls, nbytes: int, driver: Driver) -> _FlushBuffer:
        rows = math.ceil(nbytes / (_FLOAT * _ROW))
        return cls(rows, (driver.allocate(rows * _FLOAT * _ROW), driver.allocate(rows * _FLOAT)))

    def reading(self, driver: Driver, stream: Any) -> Launch:
        addresses = {"x": self.memory[0].ptr, "y": self.memory[1].ptr}
        x, y = View("x", "float32", (self.rows, _ROW)), View("y", "float32", (self.rows,))
        driver.fill(addresses["x"], 0, self.rows * _FLOAT * _ROW, stream)
        launch = source_launch(Reduce("Sum", (1,)), PlanTask("displace", 0, (x,), (y,)), driver)(addresses)
        launch(stream)
        return launch
