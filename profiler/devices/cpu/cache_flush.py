"""Bytes that flush the caches before each run of a stage, so that it finds them as within the whole model.

If exactly the size of the model's weights were flushed, models of different sizes would share no latency. On two cores
with 2 MiB of cache each, sums of stages change by at most 6 % below half of these 4 MiB. From there to twice the 4 MiB,
where no weights remain cached, they rise by 4 to 38 %, and from 8 to 16 MiB and more by up to 66 % again, though whole
models take no longer: even a stage with hardly any work takes 1.8 us after 2 MiB, 3.1 us after 8 and 4.1 us after 32,
since its code is evicted too. So steps are fine only around the size of these caches (benchmarks/sweeps.py on an Intel
Xeon, results/sweeps.json of commit fa5da747).
"""

from __future__ import annotations

import math

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.processor import read_processor

LEAST_FLUSHED, MOST_FLUSHED = 1 << 16, 32 << 20
"""Bounds of `flushed_nbytes`, in bytes. Larger flushes change little and take long."""


def flushed_nbytes(weights_nbytes: int, own_cache_nbytes: int = 0) -> int:
    """Bytes that flush the caches between two runs of a stage, rounded so that models of similar size share latencies.

    Weights of less than half of the cores' own caches stay there: an eighth of the caches is flushed. From there to
    twice the caches it is the nearest of four steps for each doubling, above them one step for each doubling. Caches of
    size 0 are unknown: four steps throughout.
    """
    own_nbytes = min(own_cache_nbytes, 2 * MOST_FLUSHED)
    if weights_nbytes < own_nbytes // 2:
        return _within_bounds(own_nbytes // 8)
    least_coarse = 2 * own_nbytes or MOST_FLUSHED
    doublings = math.log2(_within_bounds(weights_nbytes) / least_coarse)
    step = math.floor(doublings) if doublings >= 0 else round(4 * doublings) / 4
    return _within_bounds(int(least_coarse * 2**step))


def _within_bounds(nbytes: int) -> int:
    return min(max(nbytes, LEAST_FLUSHED), MOST_FLUSHED)


def flushed_nbytes_of(backend: CpuBackend) -> int:
    """The bytes flushed before a stage of this model on this machine's cores."""
    return flushed_nbytes(backend.weights_nbytes, backend.lanes * read_processor().own_cache_nbytes)
