"""What `runtime.hazards` proves of a plan, proved by looking at all pairs of accesses: slow, and easy to believe.

For every interleaving that lanes and waits allow: tasks that touch the same bytes, one of them writing, are ordered;
every byte that is read was last written to the very buffer it is read from; and every output is written whole. A task
may write what it reads where it says that it adds to those very bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.runtime.hazards import HazardError, happens_before
from iosched.runtime.plan import Buffer, ExecutionPlan, Space, Task, View

# A dynamic buffer is one thing whose bytes are not known: it counts as one byte.
_DYNAMIC_NBYTES = 1


@dataclass(frozen=True, eq=False)
class _Order:
    """Tasks, numbered lane after lane.

    Attributes:
        tasks: all of them.
        before: `(tasks, tasks) bool`: whether the one is surely done when the other starts.
        position: `(tasks,)`: the place of each in one order in which they may run.
    """

    tasks: tuple[Task, ...]
    before: np.ndarray
    position: np.ndarray

    def ordered(self, task: int, others: np.ndarray) -> np.ndarray:
        """`(others,) bool`: whether `task` and each of `others` are ordered, one way or the other."""
        return np.asarray(self.before[task, others] | self.before[others, task])


def _order(plan: ExecutionPlan) -> _Order:
    """Happens-before by its definition: what a task follows or waits for, and all that is before that."""
    found = happens_before(plan.lanes)
    first = np.cumsum([0, *(len(tasks) for tasks in plan.lanes)])
    before = np.zeros((len(found.tasks), len(found.tasks)), np.bool_)
    position = np.zeros(len(found.tasks), np.int64)
    for place, number in enumerate(found.sequence):
        position[number] = place
        awaited = [int(first[wait.lane]) + wait.steps - 1 for wait in found.tasks[number].waits if wait.steps]
        if found.step[number] > 1:
            awaited.append(number - 1)
        for other in awaited:
            before[:, number] |= before[:, other]
            before[other, number] = True
    return _Order(found.tasks, before, position)


@dataclass(frozen=True, eq=False)
class _Accesses:
    """Reads or writes within one address space, as parallel arrays.

    Attributes:
        extent: `(accesses, 4)`: what is touched of the buffer, `[start, stop)`, with the bytes of a buffer that has a
            pitch counted column by column; and where the whole buffer lies, `[start, stop)`.
        in_place: `(accesses,) bool`: whether the task says that it adds to what it sees here, and reads it as well.
    """

    task: np.ndarray
    buffer: tuple[Buffer, ...]
    number: np.ndarray
    extent: np.ndarray
    in_place: np.ndarray

    def touching(self, number: int, extent: np.ndarray) -> np.ndarray:
        """Indices of accesses that touch what an access of buffer `number` does.

        Of two buffers that lie on the same bytes, all of the one is taken to touch all of the other.
        """
        inside = (self.extent[:, 0] < extent[1]) & (self.extent[:, 1] > extent[0])
        across = (self.extent[:, 2] < extent[3]) & (self.extent[:, 3] > extent[2])
        return np.flatnonzero(np.where(self.number == number, inside, across))


def check_all_pairs(plan: ExecutionPlan) -> None:
    """Checks every task, buffer and wait of a plan; O(accesses^2) in numpy, well under a second for a large network.

    Raises:
        HazardError: naming the tasks that clash, or the buffer that is not what its views say.
    """
    order = _order(plan)
    buffers = _buffers(plan)
    for task in order.tasks:
        for view in (*task.reads, *task.writes):
            _check_view(view, buffers, task.name)
    _check_outputs(plan, buffers)
    spaces = _by_address_space(order, buffers)
    for reads, writes in spaces.values():
        _check_order(order, reads, writes)
        _check_values(order, reads, writes)
    for buffer in plan.buffers:
        _check_written(buffer, spaces)


def _buffers(plan: ExecutionPlan) -> dict[str, Buffer]:
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    if len(buffers) < len(plan.buffers):
        raise HazardError("two buffers of the plan have the same name")
    for buffer in plan.buffers:
        inside = buffer.offset >= 0 and buffer.offset + buffer.nbytes <= plan.arena_nbytes
        if buffer.nbytes < 0 or (buffer.space is Space.ARENA and not inside):
            raise HazardError(f"buffer {buffer.name!r} is outside the arena of {plan.arena_nbytes} bytes")
    return buffers


def _check_view(view: View, buffers: Mapping[str, Buffer], name: str) -> None:
    buffer = buffers.get(view.buffer)
    if buffer is None:
        raise HazardError(f"task {name!r} names buffer {view.buffer!r}, which the plan does not have")
    if buffer.space is Space.DYNAMIC:
        return
    start, stop = _columns(view, buffer)
    if start < 0 or view.nbytes < 0 or stop > (buffer.pitch or buffer.nbytes):
        end = view.offset + view.nbytes
        raise HazardError(
            f"task {name!r} sees bytes {view.offset} to {end} of {view.buffer!r}, which has {buffer.nbytes}"
        )
    spec = TensorSpec(view.buffer, view.dtype, view.shape)
    if spec.is_static and spec.nbytes != view.nbytes:
        raise HazardError(f"task {name!r} sees {view.nbytes} bytes of {view.buffer!r} as {view.dtype} {view.shape}")


def _check_outputs(plan: ExecutionPlan, buffers: Mapping[str, Buffer]) -> None:
    for view in plan.outputs:
        _check_view(view, buffers, "(outputs)")
        if buffers[view.buffer].space not in (Space.OUTPUT, Space.DYNAMIC):
            raise HazardError(f"output {view.buffer!r} is in space {buffers[view.buffer].space.value!r}")


def _columns(view: View, buffer: Buffer) -> tuple[int, int]:
    """The columns of the buffer's rows that `view` sees; without a pitch, the buffer is one row."""
    rows = buffer.nbytes // buffer.pitch if buffer.pitch else 1
    if not rows or view.nbytes % rows:
        raise HazardError(f"a view of {view.nbytes} bytes is not a whole number of columns of {view.buffer!r}")
    return view.offset, view.offset + view.nbytes // rows


def _by_address_space(order: _Order, buffers: Mapping[str, Buffer]) -> dict[str, tuple[_Accesses, _Accesses]]:
    """Reads and writes of the arena (named "") and of every buffer outside it."""
    found: dict[str, tuple[list[tuple[int, View]], list[tuple[int, View]]]] = {}
    for number, task in enumerate(order.tasks):
        for kind, views in enumerate((task.reads, task.writes)):
            for view in views:
                arena = buffers[view.buffer].space is Space.ARENA
                found.setdefault("" if arena else view.buffer, ([], []))[kind].append((number, view))
    place = {name: index for index, name in enumerate(buffers)}
    return {
        space: (_accesses(reads, buffers, place, order.tasks), _accesses(writes, buffers, place, order.tasks))
        for space, (reads, writes) in found.items()
    }


def _accesses(
    views: list[tuple[int, View]], buffers: Mapping[str, Buffer], place: Mapping[str, int], tasks: Sequence[Task]
) -> _Accesses:
    touched = tuple(buffers[view.buffer] for _, view in views)
    extents = [_extent(view, buffer) for (_, view), buffer in zip(views, touched, strict=True)]
    return _Accesses(
        np.array([number for number, _ in views], np.int64),
        touched,
        np.array([place[buffer.name] for buffer in touched], np.int64),
        np.array(extents, np.int64).reshape(-1, 4),
        np.array([view in tasks[number].in_place and view in tasks[number].reads for number, view in views], np.bool_),
    )


def _extent(view: View, buffer: Buffer) -> tuple[int, int, int, int]:
    base = buffer.offset if buffer.space is Space.ARENA else 0
    if buffer.space is Space.DYNAMIC:
        return 0, _DYNAMIC_NBYTES, 0, _DYNAMIC_NBYTES
    if not view.nbytes:
        return -1, -1, -1, -1
    rows = buffer.nbytes // buffer.pitch if buffer.pitch else 1
    start, stop = _columns(view, buffer)
    return start * rows, stop * rows, base, base + buffer.nbytes


def _check_order(order: _Order, reads: _Accesses, writes: _Accesses) -> None:
    """Every write is ordered with all that touches its bytes, and none touches bytes of its own task twice."""
    for index, number in enumerate(writes.task.tolist()):
        for accesses in (reads, writes):
            touching = accesses.touching(int(writes.number[index]), writes.extent[index])
            if accesses is writes:
                touching = touching[touching != index]
            elif writes.in_place[index]:
                touching = touching[~_same(reads, touching, writes, index)]
            clash = touching[~order.ordered(number, accesses.task[touching])]
            if clash.size:
                _refuse(order, number, int(accesses.task[clash[0]]), writes.buffer[index], accesses.buffer[clash[0]])


def _same(reads: _Accesses, touching: np.ndarray, writes: _Accesses, index: int) -> np.ndarray:
    """`(touching,) bool`: whether the reads are of the very bytes of write `index`, and of its task."""
    is_own = (reads.task[touching] == writes.task[index]) & (reads.number[touching] == writes.number[index])
    return np.asarray(is_own & (reads.extent[touching, :2] == writes.extent[index, :2]).all(axis=1))


def _refuse(order: _Order, writer: int, other: int, written: Buffer, touched: Buffer) -> None:
    first, second = order.tasks[writer].name, order.tasks[other].name
    where = repr(written.name) if written is touched else f"{written.name!r} and {touched.name!r}"
    if writer == other:
        raise HazardError(f"task {first!r} writes bytes of {where} that it reads or writes a second time")
    raise HazardError(f"tasks {first!r} and {second!r} are not ordered, but share bytes of {where}")


def _check_values(order: _Order, reads: _Accesses, writes: _Accesses) -> None:
    """Every byte read was last written to the buffer that it is read from."""
    for index, number in enumerate(reads.task.tolist()):
        buffer = reads.buffer[index]
        if buffer.space in (Space.INPUT, Space.INOUT, Space.WEIGHT):
            continue
        touching = writes.touching(int(reads.number[index]), reads.extent[index])
        # Writes that touch the same bytes are ordered, so the last in any sequence is the last in all of them.
        touching = touching[order.before[writes.task[touching], number]]
        latest_first = touching[np.argsort(-order.position[writes.task[touching]], kind="stable")]
        wanted = (int(reads.extent[index, 0]), int(reads.extent[index, 1]))
        _check_read(order.tasks[number].name, buffer, wanted, latest_first.tolist(), order, writes)


def _check_read(
    name: str, buffer: Buffer, read: tuple[int, int], latest_first: list[int], order: _Order, writes: _Accesses
) -> None:
    missing = [read] if read[0] < read[1] else []
    for index in latest_first:
        if missing and writes.buffer[index].name != buffer.name:
            writer = order.tasks[int(writes.task[index])].name
            other = writes.buffer[index].name
            raise HazardError(f"task {name!r} reads {buffer.name!r} where task {writer!r} has last written {other!r}")
        missing = _without(missing, int(writes.extent[index, 0]), int(writes.extent[index, 1]))
    if missing:
        raise HazardError(f"task {name!r} reads bytes of {buffer.name!r} that no task before it has written")


def _without(ranges: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """What `[start, stop)` leaves of disjoint ranges."""
    parts = [part for low, high in ranges for part in ((low, min(high, start)), (max(low, stop), high))]
    return [(low, high) for low, high in parts if low < high]


def _check_written(buffer: Buffer, spaces: Mapping[str, tuple[_Accesses, _Accesses]]) -> None:
    """Outputs are written whole, inputs and weights never, dynamic buffers by one task."""
    if buffer.space is Space.ARENA:
        return
    writes = spaces[buffer.name][1] if buffer.name in spaces else _accesses([], {}, {}, ())
    if buffer.space in (Space.INPUT, Space.WEIGHT) and writes.buffer:
        raise HazardError(f"the {buffer.space.value} {buffer.name!r} is written")
    if buffer.space is Space.DYNAMIC and len(writes.buffer) != 1:
        raise HazardError(f"the dynamic buffer {buffer.name!r} is written {len(writes.buffer)} times, not once")
    missing = [(0, buffer.nbytes)] if buffer.space is Space.OUTPUT and buffer.nbytes else []
    for start, stop in writes.extent[:, :2].tolist():
        missing = _without(missing, start, stop)
    if missing:
        raise HazardError(f"bytes {missing[0][0]} to {missing[0][1]} of the output {buffer.name!r} are never written")
