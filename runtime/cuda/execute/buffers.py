"""The buffers of a plan in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import settled
from iosched.runtime.cuda.lower.plan import Lowering
from iosched.runtime.plan import Space


class DeviceBuffers:
    """The arena, and beside it one allocation for each buffer outside of it.

    Attributes:
        addresses: of all buffers by name, and of the arena under "".
    """

    def __init__(self, lowering: Lowering, driver: Driver, stream: Any) -> None:
        """Allocates, uploads weights and fills the rest with zeros, all done when it returns.

        Raises:
            DeviceError: the device has not enough memory.
        """
        self._plan, self._driver = lowering.plan, driver
        self._memory: list[Memory] = []
        self.addresses: dict[str, int] = {}
        with settled(driver, (stream,)):
            self._fill(lowering, driver, stream)
        driver.synchronize(stream)

    def _fill(self, lowering: Lowering, driver: Driver, stream: Any) -> None:
        arena = self.keep(driver.allocate(self._plan.arena_nbytes))
        self.addresses[""] = arena
        for buffer in self._plan.buffers:
            if buffer.space is Space.ARENA:
                self.addresses[buffer.name] = arena + buffer.offset
                continue
            address = self.addresses[buffer.name] = self.keep(driver.allocate(buffer.nbytes))
            if buffer.space is Space.WEIGHT:
                driver.upload(address, lowering.weights[buffer.name], stream)
            else:
                driver.fill(address, 0, buffer.nbytes, stream)

    def keep(self, memory: Memory) -> int:
        """Keeps other memory as long as the buffers, such as a workspace; answers its address."""
        self._memory.append(memory)
        return memory.ptr

    def memory_of(self, buffer: str) -> Memory:
        """The memory of an input or output buffer; the buffer lives as long as somebody refers to it."""
        return next(each for each in self._memory if each.ptr == self.addresses[buffer])

    def upload(self, inputs: Mapping[str, np.ndarray], stream: Any) -> None:
        """Copies inputs to the device, and waits until that is done."""
        for view in self._plan.inputs:
            array = np.asarray(inputs[view.buffer], order="C")
            self._driver.upload(self.addresses[view.buffer], array, stream)
        self._driver.synchronize(stream)

    def download(self, stream: Any) -> dict[str, np.ndarray]:
        """Copies outputs from the device; outputs lie row-major."""
        found = {}
        for view in self._plan.outputs:
            array = np.empty(view.shape or (), view.dtype)
            self._driver.download(self.addresses[view.buffer], array, stream)
            found[view.buffer] = array
        return found

    def poison(self, stream: Any) -> None:
        """Fills arena and outputs with bytes that are no number, so that what a run does not write is seen."""
        if self._plan.arena_nbytes:
            self._driver.fill(self.addresses[""], 0xFF, self._plan.arena_nbytes, stream)
        for buffer in self._plan.buffers:
            if buffer.space is Space.OUTPUT:
                self._driver.fill(self.addresses[buffer.name], 0xFF, buffer.nbytes, stream)
        self._driver.synchronize(stream)

    def close(self) -> None:
        """Gives the memory back, once nothing refers to it any more."""
        self.addresses = {}
        self._memory.clear()
