"""The execution plan: tasks on lanes, waits between lanes, and buffers at offsets of one arena.

A plan is plain data. `hazards.CheckedPlan` proves from it alone that every read follows its write and that no two live
buffers overlap, for every interleaving that lanes and waits allow; executors take no other, and only walk it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Space(StrEnum):
    """Where the bytes of a view live."""

    ARENA = "arena"  # at an offset of the plan's one arena
    INPUT = "input"  # the caller's input array; read only
    INOUT = "inout"  # the caller's array too, of which tasks write parts, or to which they add: a stage run alone
    WEIGHT = "weight"  # a constant; read only
    OUTPUT = "output"  # an output array, written in place
    DYNAMIC = "dynamic"  # allocated by the kernel in each run: the size is not known before


@dataclass(frozen=True)
class View:
    """A part of a buffer, seen as a tensor: contiguous, or some columns of a buffer that has a pitch.

    `buffer` names the storage: a tensor's own name, or the name of the tensor it was placed in (a term of a zero-copy
    Concat lives in the Concat's buffer). `offset` counts bytes from the start of that buffer, not of the arena;
    `nbytes` is the size of the tensor's elements. `strides` are the bytes from one index to the next along each axis,
    None where the elements lie in row-major order.
    """

    buffer: str
    dtype: str
    shape: tuple[int, ...] | None
    offset: int = 0
    nbytes: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Buffer:
    """One storage. `offset` is its place in the arena and means nothing in the other spaces.

    A buffer with a `pitch` is a table of rows of so many bytes (the pixels of a channels-last tensor), and a view of it
    is a number of columns next to each other in all of its rows (a slice of the channels); its `offset` is less than
    the pitch.
    """

    name: str
    space: Space
    nbytes: int
    offset: int = 0
    pitch: int = 0

    @property
    def is_given(self) -> bool:
        """Whether the caller gives its bytes."""
        return self.space in (Space.INPUT, Space.INOUT)


@dataclass(frozen=True)
class Wait:
    """Start only when `lane` has completed its first `steps` tasks."""

    lane: int
    steps: int


@dataclass(frozen=True)
class Task:
    """One call of one kernel.

    Attributes:
        name: for people and for traces: the operator (and part of it) that runs.
        kernel: index into the executor's kernels; what a kernel is, is the executor's own affair.
        reads: one view for each input of the kernel, in the kernel's order.
        writes: one view for each output of the kernel, in the kernel's order.
        waits: what must be done before, beyond the earlier tasks of the own lane; at most one for each other lane.
        stage: index of the schedule's stage that it belongs to, counted over all blocks.
        in_place: views that the kernel adds to where they are: they are among its `reads` and its `writes`.
    """

    name: str
    kernel: int
    reads: tuple[View, ...]
    writes: tuple[View, ...]
    waits: tuple[Wait, ...] = ()
    stage: int = 0
    in_place: tuple[View, ...] = ()


@dataclass(frozen=True)
class ExecutionPlan:
    """Lanes are worker threads or CUDA streams: each runs its tasks in order.

    Invariant: every buffer that a task names is in `buffers`.

    Attributes:
        outputs: the graph outputs, each seen whole, in the graph's order; all in the spaces OUTPUT or DYNAMIC. Where it
            is empty they are the OUTPUT buffers, which some task must then see whole, and the DYNAMIC ones that no
            task reads.
        inputs: the caller's arrays, each seen whole; all in the spaces INPUT or INOUT. Where it is empty, their shapes
            are those of tasks that see them whole.
    """

    lanes: tuple[tuple[Task, ...], ...]
    buffers: tuple[Buffer, ...]
    arena_nbytes: int
    outputs: tuple[View, ...] = ()
    inputs: tuple[View, ...] = ()

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All tasks, lane after lane."""
        return tuple(task for lane in self.lanes for task in lane)

    @property
    def nbytes(self) -> int:
        """Different bytes that a run touches: the arena, and every buffer beside it whose size is known before."""
        return self.arena_nbytes + sum(buffer.nbytes for buffer in self.buffers if buffer.space is not Space.ARENA)
