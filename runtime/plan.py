"""The execution plan: tasks on lanes, waits between lanes, and buffers at offsets of one arena.

A plan is plain data. `hazards.CheckedPlan` proves from it alone that every read follows its write and that no two live
buffers overlap, in every interleaving that lanes and waits allow; executors accept no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MemorySpace(StrEnum):
    """Where the bytes of a view are."""

    ARENA = "arena"  # at an offset of the plan's one arena
    INPUT = "input"  # the caller's input array; read only
    INOUT = "inout"  # the caller's array, which tasks of a stage measured alone write in part or add to
    WEIGHT = "weight"  # a constant; read only
    OUTPUT = "output"  # an output array, written in place
    DYNAMIC = "dynamic"  # allocated by the kernel in each run, of unknown size


@dataclass(frozen=True)
class View:
    """A part of a buffer as a tensor: contiguous, or some columns of a buffer that has a pitch.

    Attributes:
        buffer: a tensor's own name, or that of the tensor that holds it, such as a zero-copy Concat.
        offset: bytes from the start of that buffer, not of the arena.
        nbytes: size of the tensor's elements.
        strides: bytes from one index to the next along each axis; None in row-major order.
    """

    buffer: str
    dtype: str
    shape: tuple[int, ...] | None
    offset: int = 0
    nbytes: int = 0
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Buffer:
    """One storage; `offset` is its place in the arena and unused in other spaces.

    A buffer with a `pitch` is a table of rows of that many bytes (pixels of a channels-last tensor). A view of it is
    a range of columns in all rows (a slice of the channels), whose `offset` is less than the pitch.
    """

    name: str
    space: MemorySpace
    nbytes: int
    offset: int = 0
    pitch: int = 0

    @property
    def is_input(self) -> bool:
        """Whether the caller passes its bytes."""
        return self.space in (MemorySpace.INPUT, MemorySpace.INOUT)


@dataclass(frozen=True)
class Wait:
    """Start only when `lane` has completed its first `steps` tasks."""

    lane: int
    steps: int


@dataclass(frozen=True)
class PlanTask:
    """One call of one kernel.

    Attributes:
        name: the operator, or the part of it, for users and traces.
        kernel: index into the executor's kernels.
        reads: views in the order of the kernel's inputs.
        writes: views in the order of the kernel's outputs.
        waits: besides earlier tasks of the same lane; at most one for each other lane.
        stage: index of its stage in the schedule, counted over all blocks.
        in_place: views that the kernel adds to: they are in both `reads` and `writes`.
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
        outputs: complete views of the graph outputs, in the graph's order, in the spaces OUTPUT or DYNAMIC. If
            empty, they are the OUTPUT buffers, of which some task needs a complete view, and the DYNAMIC ones that
            no task reads.
        inputs: complete views of the caller's arrays, in the spaces INPUT or INOUT. If empty, their shapes are those of
            tasks that view them completely.
    """

    lanes: tuple[tuple[PlanTask, ...], ...]
    buffers: tuple[Buffer, ...]
    arena_nbytes: int
    outputs: tuple[View, ...] = ()
    inputs: tuple[View, ...] = ()

    @property
    def tasks(self) -> tuple[PlanTask, ...]:
        """All tasks, lane after lane."""
        return tuple(task for lane in self.lanes for task in lane)

    @property
    def nbytes(self) -> int:
        """Distinct bytes that a run touches: the arena, and every other buffer of known size."""
        return self.arena_nbytes + sum(
            buffer.nbytes for buffer in self.buffers if buffer.space is not MemorySpace.ARENA
        )
