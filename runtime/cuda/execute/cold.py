"""Runs of a stage that find its weights where a run of the whole model finds them.

A stage that is run again and again by itself finds its weights in L2, the last cache of the GPU: 50 MB on an H100, 6 MB
on a V100. In the whole model there is, between two reads of a weight, all else that a run touches: the other weights
and the arena. A model that touches more than L2 holds (Inception V3 96 MB, 87 of them weights; SqueezeNet 174 MB with a
batch of 16) reads every weight from memory, run after run. One that touches less (SqueezeNet with one image, 17 MB)
finds all of them in L2, as its stages do when they are run by themselves, and needs nothing of what is here. What the
stage before has written is in L2 in either case.

So where the model touches more, the runs of a stage that are timed together read copies of its weights in turn, so many
that all else would have been read before a copy comes again. Before them so many other bytes are read, and then the
stage is run once untimed, on its own weights, which brings its inputs back.

Developer notes:
    * What is read beyond twice the size of L2 changes nothing any more. Once its size is not enough: what is replaced
      is not always what was used longest ago, and halves of an H100's L2 may hold the same lines.
    * Other bytes are read, not set: L2 would have to write them back while the stage runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from iosched.runtime.cuda.execute.launches import Launch, source_launch
from iosched.runtime.cuda.gpu.driver import Driver, Memory
from iosched.runtime.cuda.gpu.lanes import settled
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.plan import ExecutionPlan, Space, Task, View

TIMES_L2 = 2
_ALIGNED = 256
_ROW = 1 << 14  # floats that are summed to one
_FLOAT = 4


@dataclass(frozen=True, eq=False)
class ColdWeights:
    """What the runs of a stage need to find its weights outside of L2.

    Attributes:
        places: addresses of the weights by buffer, for each of the runs in turn.
        displace: reads other bytes, as many as matter.
    """

    places: tuple[Mapping[str, int], ...]
    displace: Launch
    _memory: tuple[Memory, ...]


def displacing_nbytes(model_nbytes: int, l2_nbytes: int) -> int:
    """How many bytes come between two reads of a weight, as far as that matters; 0 where weights stay in L2.

    Args:
        model_nbytes: that a run of the whole model touches.
    """
    return 0 if model_nbytes <= l2_nbytes else min(model_nbytes, TIMES_L2 * l2_nbytes)


def cold_weights(
    plan: ExecutionPlan, addresses: Mapping[str, int], nbytes: int, runs: int, driver: Driver, stream: Any
) -> ColdWeights | None:
    """Copies of the weights of a plan, and what takes them out of L2; None where it has no weights.

    The copies take `nbytes` and once the weights at most, and never more than `runs` times the weights; the other bytes
    `nbytes`.

    Args:
        addresses: of the weights as they are.
        nbytes: see `displacing_nbytes`.
        runs: that are timed together.

    Raises:
        DeviceError: the device has not that much memory left.
    """
    weights = {buffer.name: buffer.nbytes for buffer in plan.buffers if buffer.space is Space.WEIGHT}
    starts = [0, *accumulate(_ALIGNED * math.ceil(each / _ALIGNED) for each in weights.values())]
    once_nbytes = starts[-1]
    if not once_nbytes:
        return None
    count = min(runs, math.ceil(nbytes / once_nbytes))
    copies, others = driver.allocate(count * once_nbytes), _Others.of(nbytes, driver)
    places = tuple(
        {name: copies.ptr + index * once_nbytes + start for name, start in zip(weights, starts, strict=False)}
        for index in range(count)
    )
    with settled(driver, (stream,)):
        for place in places:
            for name, address in place.items():
                driver.copy(address, addresses[name], weights[name], stream)
        displace = others.reading(driver, stream)
    driver.synchronize(stream)
    return ColdWeights(places, displace, (copies, *others.memory))


@dataclass(frozen=True, eq=False)
class _Others:
    """Bytes that nobody needs, and the sums of their rows."""

    rows: int
    memory: tuple[Memory, Memory]

    @classmethod
    def of(cls, nbytes: int, driver: Driver) -> _Others:
        rows = math.ceil(nbytes / (_FLOAT * _ROW))
        return cls(rows, (driver.allocate(rows * _FLOAT * _ROW), driver.allocate(rows * _FLOAT)))

    def reading(self, driver: Driver, stream: Any) -> Launch:
        """What reads them, after it was done once: that brings its code."""
        addresses = {"x": self.memory[0].ptr, "y": self.memory[1].ptr}
        x, y = View("x", "float32", (self.rows, _ROW)), View("y", "float32", (self.rows,))
        driver.fill(addresses["x"], 0, self.rows * _FLOAT * _ROW, stream)
        launch = source_launch(Reduce("Sum", (1,)), Task("displace", 0, (x,), (y,)), driver)(addresses)
        launch(stream)
        return launch
