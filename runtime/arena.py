"""Places the buffers of a plan in one arena that is small and reuses memory that is still in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from iosched.runtime.hazards import Order, happens_before
from iosched.runtime.plan import Buffer, MemorySpace, PlanTask

# Buffers fill whole cache lines, so that lanes never write to the same line.
ALIGNMENT_NBYTES = 64

# Allowed growth of the arena for the sake of warm memory.
_GROWTH_FOR_WARMTH = 1.15


def place(lanes: Sequence[Sequence[PlanTask]], *groups: Sequence[Buffer]) -> tuple[tuple[Buffer, ...], int]:
    """Give every ARENA buffer an offset; return all buffers in order and the size of the arena in bytes.

    Two buffers share bytes only if they are in one group, and all accesses of one happen before all accesses of the
    other. Buffers are placed in the order of their first access, on the memory that was released last; or by decreasing
    size (Pisarchyk & Lee, 2020) where that makes the arena much smaller. O(buffers^2) in numpy, for each group.
    """
    buffers = [buffer for group in groups for buffer in group]
    chosen = [buffer for buffer in buffers if buffer.space is MemorySpace.ARENA]
    accesses = _accesses(happens_before(lanes), len(lanes), [buffer.name for buffer in chosen])
    nbytes = np.array([_round_up(buffer.nbytes) for buffer in chosen], np.int64)
    offsets = np.zeros(len(chosen), np.int64)
    begin = top = 0
    for group in groups:
        own = slice(begin, begin + sum(buffer.space is MemorySpace.ARENA for buffer in group))
        offsets[own] = top + _smaller_or_warm(accesses.of(own), nbytes[own])
        begin, top = own.stop, int((offsets + nbytes)[own].max(initial=top))
    offset = {buffer.name: offset for buffer, offset in zip(chosen, offsets.tolist(), strict=True)}
    return tuple(replace(buffer, offset=offset.get(buffer.name, buffer.offset)) for buffer in buffers), top


@dataclass(frozen=True, eq=False)
class _Accesses:
    """Accesses of each buffer.

    Attributes:
        surely_done: `(buffers, lanes)`: the steps of each lane that precede every access.
        last_steps: `(buffers, lanes)`: the last step with an access; 0 without any.
        first: `(buffers,)`: position of the first access in one sequence of the tasks.
        last: `(buffers,)`: position of the last access.
    """

    surely_done: np.ndarray
    last_steps: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def of(self, own: slice) -> _Accesses:
        """The accesses of some buffers."""
        return _Accesses(self.surely_done[own], self.last_steps[own], self.first[own], self.last[own])

    @cached_property
    def disjoint(self) -> np.ndarray:
        """`(buffers, buffers) bool`: whether their accesses never overlap, in every interleaving."""
        before = np.ones((len(self.first), len(self.first)), np.bool_)
        for lane in range(self.last_steps.shape[1]):
            before &= self.last_steps[:, None, lane] <= self.surely_done[None, :, lane]
        return before | before.T


def _accesses(order: Order, lanes: int, names: Sequence[str]) -> _Accesses:
    number = {name: index for index, name in enumerate(names)}
    surely_done = np.full((len(names), lanes), np.iinfo(np.int64).max)
    last_steps = np.zeros((len(names), lanes), np.int64)
    first, last = np.full(len(names), len(order.tasks)), np.full(len(names), -1)
    clock = np.array(order.clock, np.int64)
    for position, task_number in enumerate(order.sequence):
        task, lane, step = order.tasks[task_number], order.lane[task_number], order.step[task_number]
        touched = sorted({number[v.buffer] for v in (*task.reads, *task.writes) if v.buffer in number})
        surely_done[touched] = np.minimum(surely_done[touched], clock[task_number])
        last_steps[touched, lane] = step
        first[touched] = np.minimum(first[touched], position)
        last[touched] = position
    return _Accesses(surely_done, last_steps, first, last)


def _smaller_or_warm(accesses: _Accesses, nbytes: np.ndarray) -> np.ndarray:
    warm = _place_in(np.argsort(accesses.first, kind="stable"), accesses, nbytes)
    small = _place_in(np.lexsort((accesses.first, -nbytes)), accesses, nbytes)
    limit = (small + nbytes).max(initial=0) * _GROWTH_FOR_WARMTH
    return warm if (warm + nbytes).max(initial=0) <= limit else small


def _place_in(sequence: np.ndarray, accesses: _Accesses, nbytes: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(nbytes), np.int64)
    placed = np.zeros(len(nbytes), np.bool_)
    top = 0
    for index in sequence.tolist():
        neighbours = np.flatnonzero(placed & ~accesses.disjoint[index])
        free = np.flatnonzero(placed & accesses.disjoint[index])
        gaps = _gaps(offsets[neighbours], nbytes[neighbours], int(nbytes[index]))
        offsets[index] = _best(gaps, int(nbytes[index]), top, offsets[free], nbytes[free], accesses.last[free])
        placed[index] = True
        top = max(top, int(offsets[index] + nbytes[index]))
    return offsets


def _gaps(offsets: np.ndarray, nbytes: np.ndarray, wanted: int) -> np.ndarray:
    """`(gaps, 2)`: start and size of the gaps of at least `wanted` bytes between used ranges; the last is unbounded."""
    by_offset = np.argsort(offsets, kind="stable")
    ends = np.maximum.accumulate(np.concatenate(([0], (offsets + nbytes)[by_offset])))
    starts = np.concatenate((offsets[by_offset], [np.iinfo(np.int64).max]))
    size = starts - ends
    return np.stack((ends, size), axis=1)[size >= wanted]


def _best(gaps: np.ndarray, wanted: int, top: int, offsets: np.ndarray, nbytes: np.ndarray, last: np.ndarray) -> int:
    """The start of the gap that grows the arena least, then was used last, then fits best."""
    if len(gaps) == 1:
        return int(gaps[0, 0])
    growth = np.maximum(gaps[:, 0] + wanted - top, 0)
    gaps = gaps[growth == growth.min()]
    overlap = np.minimum(gaps[:, :1] + wanted, offsets + nbytes) - np.maximum(gaps[:, :1], offsets)
    warmth = np.max(np.where(overlap * 2 > wanted, last + 1, 0), axis=1, initial=0)
    return int(gaps[np.lexsort((gaps[:, 1], -warmth))[0], 0])


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT_NBYTES) * ALIGNMENT_NBYTES
