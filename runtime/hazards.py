"""Proves that the result of a plan cannot depend on timing.

For every interleaving that lanes and waits allow: tasks that touch the same bytes, one of them writing, are ordered;
every byte that is read was last written to the buffer that it is read from; and every output is written completely.

The tasks are walked once, in one order in which they may run. For each byte it is enough to know which task wrote it
last and which tasks have read it since: earlier ones precede these, or the plan was refused. Lanes run in order, so the
last reader on each lane is enough (vector clocks, as in FastTrack: Flanagan & Freund, PLDI 2009).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from types import MappingProxyType
from typing import NamedTuple

from iosched.models.graph import nbytes_of
from iosched.runtime.intervals import Intervals
from iosched.runtime.plan import Buffer, ExecutionPlan, MemorySpace, PlanTask, View, Wait

__all__ = ["CheckedPlan", "HazardError", "check"]

# A dynamic buffer has an unknown size and counts as one byte.
_DYNAMIC_NBYTES = 1
# Module constants: looking up enumeration members takes as long as the rest of the check.
_ARENA, _DYNAMIC, _READ_ONLY = MemorySpace.ARENA, MemorySpace.DYNAMIC, (MemorySpace.INPUT, MemorySpace.WEIGHT)

_Latest = Mapping[int, int]
"""By lane, the last of its tasks that accessed something."""


@dataclass(frozen=True)
class CheckedPlan:
    """A plan that passed `check`, which runs on creation and may raise; executors accept no other."""

    plan: ExecutionPlan

    def __post_init__(self) -> None:
        check(self.plan)


def check(plan: ExecutionPlan) -> None:
    """Check every task, buffer and wait of a plan.

    Views of one buffer conflict where their columns overlap; different buffers conflict if any of their bytes overlap
    (ADR 0006). O((tasks + waits + views) x lanes + pieces), where pieces are the separately written parts of what is
    read, such as the operands of a Concat for each reader.

    Raises:
        HazardError: naming the conflicting tasks, or the buffer that contradicts its views.
    """
    order = happens_before(plan.lanes)
    buffers = _buffers(plan)
    _check_outputs(plan, buffers)
    walk = _Walk(order, buffers)
    for number in order.sequence:
        task = order.tasks[number]
        for view in task.reads:
            walk.read(number, view)
        for view in task.writes:
            walk.write(number, view)
    for buffer in plan.buffers:
        if buffer.space in (MemorySpace.OUTPUT, MemorySpace.DYNAMIC):
            walk.check_written(buffer)


def _buffers(plan: ExecutionPlan) -> dict[str, Buffer]:
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    if len(buffers) < len(plan.buffers):
        raise HazardError("two buffers of the plan have the same name")
    for buffer in plan.buffers:
        inside = buffer.offset >= 0 and buffer.offset + buffer.nbytes <= plan.arena_nbytes
        if buffer.nbytes < 0 or (buffer.space is _ARENA and not inside):
            raise HazardError(f"buffer {buffer.name!r} is outside the arena of {plan.arena_nbytes} bytes")
    return buffers


def _check_outputs(plan: ExecutionPlan, buffers: Mapping[str, Buffer]) -> None:
    for view in plan.outputs:
        _columns(view, buffers, "(outputs)")
        if buffers[view.buffer].space not in (MemorySpace.OUTPUT, MemorySpace.DYNAMIC):
            raise HazardError(f"output {view.buffer!r} is in space {buffers[view.buffer].space.value!r}")


def _columns(view: View, buffers: Mapping[str, Buffer], name: str) -> tuple[int, int]:
    """`[start, stop)` of the columns that `view` covers; a buffer without pitch is one row."""
    buffer = buffers.get(view.buffer)
    if buffer is None:
        raise HazardError(f"task {name!r} names buffer {view.buffer!r}, which the plan does not have")
    if buffer.space is _DYNAMIC:
        return 0, _DYNAMIC_NBYTES
    rows = _rows(buffer)
    if not rows or view.nbytes % rows:
        raise HazardError(f"a view of {view.nbytes} bytes is not a whole number of columns of {view.buffer!r}")
    start, stop = view.offset, view.offset + view.nbytes // rows
    if start < 0 or view.nbytes < 0 or stop > (buffer.pitch or buffer.nbytes):
        end = view.offset + view.nbytes
        raise HazardError(
            f"task {name!r} sees bytes {view.offset} to {end} of {view.buffer!r}, which has {buffer.nbytes}"
        )
    if view.shape is not None and view.nbytes != nbytes_of(view.dtype, view.shape, view.nbytes):
        raise HazardError(f"task {name!r} sees {view.nbytes} bytes of {view.buffer!r} as {view.dtype} {view.shape}")
    return (start, stop)


def _rows(buffer: Buffer) -> int:
    return buffer.nbytes // buffer.pitch if buffer.pitch else 1


class _Piece(NamedTuple):
    """Columns that were written together: the writing tasks (none for the caller's arrays), and the reading ones."""

    writers: tuple[int, ...] = ()
    readers: _Latest = MappingProxyType({})


@dataclass(eq=False)
class _Lifetime:
    """The time in which a buffer owns its bytes: from a write of it until a write of another buffer there.

    Attributes:
        before: earlier lifetimes on the same bytes, which must end before the writes of this one.
        awaited: by lane, the last tasks of these lifetimes.
        pieces: the written columns of the buffer.
        reads: columns and task of reads that are not yet among the readers of `pieces`.
        touched: by lane, the last task that accessed the buffer.
        writes: number of writes.
        ended: the task that wrote to another buffer on these bytes, and that buffer.
    """

    buffer: Buffer
    before: tuple[_Lifetime, ...]
    awaited: _Latest
    pieces: Intervals[_Piece] = field(default_factory=Intervals)
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    touched: dict[int, int] = field(default_factory=dict)
    writes: int = 0
    ended: tuple[int, Buffer] | None = None


class _Walk:
    """State of every buffer after the tasks so far."""

    def __init__(self, order: Order, buffers: Mapping[str, Buffer]) -> None:
        self._order = order
        self._buffers = buffers
        self._lifetimes: dict[str, _Lifetime] = {}  # the last of each buffer
        self._arena: Intervals[_Lifetime] = Intervals()
        for buffer in buffers.values():
            if buffer.space is MemorySpace.INOUT and buffer.nbytes:
                self._begin(0, buffer).pieces.put(0, buffer.pitch or buffer.nbytes, _Piece())

    def read(self, number: int, view: View) -> None:
        start, stop = _columns(view, self._buffers, self._order.tasks[number].name)
        buffer = self._buffers[view.buffer]
        if start == stop or buffer.space in _READ_ONLY:
            return
        lifetime = self._lifetimes.get(buffer.name)
        pieces = lifetime.pieces.within(start, stop) if lifetime is not None else []
        if lifetime is None or lifetime.ended or sum(high - low for low, high, _ in pieces) < stop - start:
            raise self._misread(number, buffer, (start, stop))
        for _, _, piece in pieces:
            for writer in piece.writers:
                self._check_done(writer, number, buffer)
        lifetime.reads.append((start, stop, number))
        lifetime.touched[self._order.lane[number]] = number

    def write(self, number: int, view: View) -> None:
        start, stop = _columns(view, self._buffers, self._order.tasks[number].name)
        buffer = self._buffers[view.buffer]
        if buffer.space in _READ_ONLY:
            raise HazardError(f"the {buffer.space.value} {buffer.name!r} is written")
        if start == stop:
            return
        lifetime = self._lifetimes.get(buffer.name)
        if lifetime is None or lifetime.ended:
            lifetime = self._begin(number, buffer)
        for earlier in lifetime.awaited.values():
            if not self._order.before(earlier, number):
                raise self._clash(number, earlier, buffer, _toucher(earlier, lifetime.before))
        if lifetime.pieces.within(start, stop):
            self._check_overwriting(number, lifetime, view, (start, stop))
        lifetime.pieces.put(start, stop, _Piece((number,)))
        lifetime.writes += 1
        lifetime.touched[self._order.lane[number]] = number

    def check_written(self, buffer: Buffer) -> None:
        lifetime = self._lifetimes.get(buffer.name)
        if buffer.space is _DYNAMIC:
            writes = 0 if lifetime is None else lifetime.writes
            if writes != 1:
                raise HazardError(f"the dynamic buffer {buffer.name!r} is written {writes} times, not once")
            return
        written = 0
        for start, stop, _ in () if lifetime is None else lifetime.pieces:
            if start == written:
                written = stop
        if written * _rows(buffer) < buffer.nbytes:
            raise HazardError(f"output {buffer.name!r} is never written from column {written} on")

    def _begin(self, number: int, buffer: Buffer) -> _Lifetime:
        """Start a lifetime: task `number` writes to a buffer that does not own its bytes."""
        before: tuple[_Lifetime, ...] = ()
        start, stop = buffer.offset, buffer.offset + buffer.nbytes
        if buffer.space is _ARENA:
            before = tuple(dict.fromkeys(lifetime for _, _, lifetime in self._arena.within(start, stop)))
        awaited: dict[int, int] = {}
        for earlier in before:
            earlier.ended = earlier.ended or (number, buffer)
            for lane, last in earlier.touched.items():
                awaited[lane] = max(last, awaited.get(lane, last))
        lifetime = self._lifetimes[buffer.name] = _Lifetime(buffer, before, awaited)
        if buffer.space is _ARENA:
            self._arena.put(start, stop, lifetime)
        return lifetime

    def _check_overwriting(self, number: int, lifetime: _Lifetime, view: View, columns: tuple[int, int]) -> None:
        """Check that every task whose data task `number` overwrites precedes it; it may read bytes that it adds to.

        Readers are recorded only here, since bytes are rarely overwritten within a lifetime.
        """
        adds = self._adds_to(number, view, columns)
        for low, high, reader in lifetime.reads:
            for first, last, piece in lifetime.pieces.within(low, high):
                readers = {**piece.readers, self._order.lane[reader]: reader}
                lifetime.pieces.put(first, last, _Piece(piece.writers, readers))
        lifetime.reads.clear()
        for _, _, piece in lifetime.pieces.within(*columns):
            others = (earlier for earlier in piece.readers.values() if earlier != number or not adds)
            for earlier in (*piece.writers, *others):
                self._check_done(earlier, number, lifetime.buffer)

    def _adds_to(self, number: int, view: View, columns: tuple[int, int]) -> bool:
        """Whether a task adds to the bytes of `view` in place, and does not read them through another view."""
        task = self._order.tasks[number]
        read = [_columns(each, self._buffers, task.name) for each in task.reads if each.buffer == view.buffer]
        disjoint = (stop <= columns[0] or columns[1] <= start for start, stop in read if (start, stop) != columns)
        return view in task.in_place and view in task.reads and all(disjoint)

    def _check_done(self, earlier: int, number: int, buffer: Buffer) -> None:
        if not self._order.before(earlier, number):
            raise self._clash(number, earlier, buffer, buffer)

    def _clash(self, number: int, earlier: int, touched: Buffer, other: Buffer) -> HazardError:
        first, second = self._order.tasks[earlier].name, self._order.tasks[number].name
        where = repr(touched.name) if touched is other else f"{touched.name!r} and {other.name!r}"
        if number == earlier:
            return HazardError(f"task {first!r} writes bytes of {where} that it reads or writes a second time")
        return HazardError(f"tasks {first!r} and {second!r} are not ordered, but share bytes of {where}")

    def _misread(self, number: int, buffer: Buffer, columns: tuple[int, int]) -> HazardError:
        """The reason why there is nothing to read: written too late, overwritten, or never written."""
        for writer, task in enumerate(self._order.tasks):
            if self._order.before(writer, number) or self._order.before(number, writer):
                continue
            for view in task.writes:
                start, stop = (0, 0) if view.buffer != buffer.name else _columns(view, self._buffers, task.name)
                if max(start, columns[0]) < min(stop, columns[1]) and writer != number:
                    return self._clash(number, writer, buffer, buffer)
        lifetime, name = self._lifetimes.get(buffer.name), self._order.tasks[number].name
        if lifetime is None or lifetime.ended is None:
            return HazardError(f"task {name!r} reads bytes of {buffer.name!r} that no task before it has written")
        writer, other = lifetime.ended
        if not self._order.before(writer, number):
            return self._clash(number, writer, buffer, other)
        written = self._order.tasks[writer].name
        return HazardError(
            f"task {name!r} reads {buffer.name!r} where task {written!r} has last written {other.name!r}"
        )


def _toucher(task: int, lifetimes: Iterable[_Lifetime]) -> Buffer:
    return next(lifetime.buffer for lifetime in lifetimes if task in lifetime.touched.values())


class HazardError(ValueError):
    """The result of a plan depends on timing, or the plan deadlocks; names the tasks."""


@dataclass(frozen=True, eq=False)
class Order:
    """Happens-before of a plan's tasks, numbered lane after lane.

    Attributes:
        tasks: all tasks.
        lane: lane of each task.
        step: position of each task in its lane, from 1.
        clock: for each task, how many tasks of each lane precede it in every interleaving.
        sequence: the tasks' numbers in one order in which they may run.
    """

    tasks: tuple[PlanTask, ...]
    lane: tuple[int, ...]
    step: tuple[int, ...]
    clock: tuple[tuple[int, ...], ...]
    sequence: tuple[int, ...]

    def before(self, first: int, second: int) -> bool:
        """Whether task `first` precedes task `second` in every interleaving."""
        return self.clock[second][self.lane[first]] >= self.step[first]


def happens_before(lanes: Sequence[Sequence[PlanTask]]) -> Order:
    """Compute the order of all tasks in O((tasks + waits) x lanes).

    Raises:
        HazardError: a wait names an unknown lane or step, or lanes deadlock.
    """
    for lane, tasks in enumerate(lanes):
        for task in tasks:
            _check_waits(task, lane, lanes)
    first = [0, *accumulate(len(tasks) for tasks in lanes)]
    clocks: list[list[tuple[int, ...]]] = [[] for _ in lanes]
    done = [0] * len(lanes)
    sequence: list[int] = []
    while len(sequence) < first[-1]:
        before = len(sequence)
        for lane, tasks in enumerate(lanes):
            while done[lane] < len(tasks) and _ready(tasks[done[lane]], done):
                clocks[lane].append(_joined(clocks, lane, tasks[done[lane]].waits))
                sequence.append(first[lane] + done[lane])
                done[lane] += 1
        if len(sequence) == before:
            _refuse_deadlock(lanes, done)
    return Order(
        tasks=tuple(task for tasks in lanes for task in tasks),
        lane=tuple(lane for lane, tasks in enumerate(lanes) for _ in tasks),
        step=tuple(step for tasks in lanes for step in range(1, len(tasks) + 1)),
        clock=tuple(clock for lane in clocks for clock in lane),
        sequence=tuple(sequence),
    )


def _check_waits(task: PlanTask, lane: int, lanes: Sequence[Sequence[PlanTask]]) -> None:
    for wait in task.waits:
        if not 0 <= wait.lane < len(lanes) or wait.lane == lane:
            raise HazardError(f"task {task.name!r} on lane {lane} waits for lane {wait.lane} of {len(lanes)}")
        if not 0 <= wait.steps <= len(lanes[wait.lane]):
            steps = len(lanes[wait.lane])
            raise HazardError(f"task {task.name!r} waits for step {wait.steps} of lane {wait.lane}, which has {steps}")


def _ready(task: PlanTask, done: Sequence[int]) -> bool:
    return all(done[wait.lane] >= wait.steps for wait in task.waits)


def _joined(clocks: Sequence[Sequence[tuple[int, ...]]], lane: int, waits: tuple[Wait, ...]) -> tuple[int, ...]:
    """The clock of a lane's next task: the maximum over its predecessor and the tasks that it waits for."""
    clock = list(clocks[lane][-1]) if clocks[lane] else [0] * len(clocks)
    clock[lane] = len(clocks[lane])
    for wait in waits:
        if wait.steps:
            clock = list(map(max, clock, clocks[wait.lane][wait.steps - 1]))
            clock[wait.lane] = max(clock[wait.lane], wait.steps)
    return tuple(clock)


def _refuse_deadlock(lanes: Sequence[Sequence[PlanTask]], done: Sequence[int]) -> None:
    stuck = next(lane for lane, tasks in enumerate(lanes) if done[lane] < len(tasks))
    task = lanes[stuck][done[stuck]]
    wait = next(wait for wait in task.waits if done[wait.lane] < wait.steps)
    other = lanes[wait.lane][wait.steps - 1]
    raise HazardError(f"task {task.name!r} waits for {other.name!r} in a deadlock of their lanes")
