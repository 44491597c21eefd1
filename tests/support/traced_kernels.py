"""Counts what a GPU would move for a kernel: its source runs on the host, and each access of each thread is recorded.

The 32 threads of a warp go through the source together. What they read or write in the same round of the same loops is
one request; a GPU moves whole sectors of 32 bytes for it, and passes over the 32 banks of shared memory until all have
what they want.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from host_cuda import Placed, compiled, run

from iosched.runtime.cuda.kernel import CudaCall

SECTOR_NBYTES = 32
_WARP = 32
_MOST_NBYTES = 16  # of one thread's access
_BANK_NBYTES, _BANKS = 4, 32
_LOOP = re.compile(r"for \((?:unsigned )?int (?=\w+ = )")
_ACCESS = np.dtype(
    [("address", "u8"), ("instruction", "u8"), ("block", "u4"), ("thread", "u4"), ("nbytes", "u4"), ("writes", "u4")]
)


@dataclass(frozen=True)
class Moved:
    """The memory traffic of those blocks of a launch that were run.

    Attributes:
        blocks: that were run.
        requests: of warps, for memory of tensors.
        sectors: of 32 bytes that these touch; one that several requests touch counts for each.
        distinct_sectors: those that a block touches, each once: what has to come from beyond its processor at least.
        shared_passes: over the banks of shared memory.
        least_shared_passes: if no two threads of a request wanted different words of one bank.
    """

    blocks: int
    requests: int
    sectors: int
    distinct_sectors: int
    shared_passes: int
    least_shared_passes: int


def moved(call: CudaCall, tensors: Sequence[Placed], most_blocks: int = 1 << 30) -> Moved:
    """Runs `call` on (*reads, *writes), about `most_blocks` of its blocks, spread over all; O(n log n) in accesses."""
    accesses = _trace(call, tensors, max(call.grid[0] // most_blocks, 1))
    in_tensors = np.zeros(len(accesses), bool)
    for each in tensors:
        offset = accesses["address"] - np.uint64(each.memory.ctypes.data)
        in_tensors |= offset < each.memory.nbytes
    wanted, shared = _instructions(accesses[in_tensors]), _instructions(accesses[~in_tensors])
    sectors, requests = wanted["address"] // SECTOR_NBYTES, _mixed(wanted["request"])
    return Moved(
        len(np.unique(accesses["block"])),
        len(np.unique(requests)),
        len(np.unique(_mixed(requests, sectors))),
        len(np.unique(_mixed(wanted["block"], sectors))),
        *_passes(shared),
    )


def _trace(call: CudaCall, tensors: Sequence[Placed], every: int) -> np.ndarray:
    traced = replace(call, source=_LOOP.sub("for (host::Round ", call.source))
    library = compiled(traced.source, traced.entry, True)
    ends = [(each.memory.ctypes.data, each.memory.ctypes.data + each.memory.nbytes) for each in tensors]
    ranges = (ctypes.c_ulonglong * (2 * len(ends) + 2))(*(end for pair in ends for end in pair))
    library.host_trace(ranges, len(ends), every)
    run(traced, [each.address for each in tensors], traced=True)
    address = ctypes.c_void_p()
    library.host_traced.restype = ctypes.c_ulonglong
    count = library.host_traced(ctypes.byref(address))
    return np.frombuffer(ctypes.string_at(address, count * _ACCESS.itemsize) if count else b"", _ACCESS)


def _instructions(accesses: np.ndarray) -> dict[str, np.ndarray]:
    """The accesses, those of more than 16 bytes in pieces, with the request that each belongs to."""
    pieces = (accesses["nbytes"] + (_MOST_NBYTES - 1)) // _MOST_NBYTES
    piece, every = _counted(pieces), accesses.repeat(pieces)
    warp = every["thread"] // _WARP
    return {
        "address": every["address"] + _MOST_NBYTES * piece,
        "nbytes": np.minimum(every["nbytes"], _MOST_NBYTES),
        "block": every["block"].astype(np.uint64),
        "lane": every["thread"] % _WARP,
        "request": _mixed(every["instruction"], every["block"], warp, piece),
    }


def _passes(accesses: dict[str, np.ndarray]) -> tuple[int, int]:
    """Passes over the banks, and the fewest there could be: threads that want 128 bytes together go together."""
    words = np.maximum(accesses["nbytes"] // _BANK_NBYTES, 1)
    together = _mixed(accesses["request"], accesses["lane"] // (_WARP // words)).repeat(words)
    word = accesses["address"].repeat(words) // _BANK_NBYTES + _counted(words)
    _, first = np.unique(_mixed(together, word), return_index=True)  # what several want of one word, they get at once
    banks, counts = np.unique(np.stack([together[first], word[first] % _BANKS]), axis=1, return_counts=True)
    starts = np.flatnonzero(np.diff(banks[0], prepend=banks[0][:1] + np.uint64(1)))
    return int(np.maximum.reduceat(counts, starts).sum()) if len(starts) else 0, len(starts)


def _counted(counts: np.ndarray) -> np.ndarray:
    """0, 1, ... for each of `counts`, in a row."""
    return (np.arange(counts.sum()) - (counts.cumsum() - counts).repeat(counts)).astype(np.uint64)


def _mixed(*numbers: np.ndarray) -> np.ndarray:
    """One number of 64 bits for each tuple of them; another one for other tuples, but for chance."""
    found = np.zeros(len(numbers[0]), np.uint64)
    for each in numbers:
        found = (found ^ each.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        found ^= found >> np.uint64(29)
    return found
