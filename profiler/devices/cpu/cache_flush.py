"""How many bytes pass through the caches before each run of a stage, so that it finds them as amid the whole model.

A stage's latency is that of a run which finds its weights where they are when the model runs again and again. If
exactly as many bytes were swept as the model has weights, models of any two sizes would share no latency. On two cores
with 2 MiB of cache each, sums of stages change by at most 6 % as long as less is swept than half of these 4 MiB. From
there to twice the 4 MiB, where no weight stays, they rise by 4 to 38 %. From 8 to 16 MiB and more they rise by up to
66 % again, though whole models take no longer by that: even a stage that computes next to nothing takes 1.8 us after
2 MiB, 3.1 us after 8 and 4.1 us after 32, since its code has to be brought back as well, which amid a model is at hand.
So there are many steps only where weights are on the edge of these caches (benchmarks/sweeps.py, results/sweeps.json).
"""

from __future__ import annotations

import math

from iosched.runtime.cpu.backend import CpuBackend
from iosched.runtime.processor import read_processor

LEAST_FLUSHED, MOST_FLUSHED = 1 << 16, 32 << 20
"""Bounds of `flushed_nbytes`, in bytes. Reading more before each run changes little and takes long."""


def flushed_nbytes(weights_nbytes: int, own_cache_nbytes: int = 0) -> int:
    """How many bytes pass through the caches between two runs of a stage, by the weights of the whole model.

    Models of about the same size share the latencies of equal stages. Where the weights fill less than half of the
    cores' own caches, so that they stay there, it is an eighth of these. From there to twice the caches, where a part
    of them stays, it is the nearest of four steps for each doubling. Above, there is one step for each doubling, the
    one that is not above the weights. Where the caches are not known, there are four steps throughout.

    Args:
        weights_nbytes: the bytes of all weights of the model.
        own_cache_nbytes: the bytes of all cores' own caches together; 0 where they are not known.
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
    """How many bytes are swept before a run of a stage of this model, on this machine's cores."""
    return flushed_nbytes(backend.weights_nbytes, backend.lanes * read_processor().own_cache_nbytes)
