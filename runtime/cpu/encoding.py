"""A plan as the flat list of integers that the compiled executor reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iosched.runtime.cpu.element_types import ELEMENT_TYPE
from iosched.runtime.plan import ExecutionPlan, Space, Task, View

_SPACE_CODE = {Space.ARENA: 0, Space.INPUT: 1, Space.INOUT: 1, Space.OUTPUT: 2, Space.DYNAMIC: 3}


class PlanEncoder:
    """Writes a plan as the flat list of integers that the library reads; equal views become one slot."""

    def __init__(self, plan: ExecutionPlan, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        """Numbers the views of the plan's tasks.

        Args:
            plan: what is to be written.
            inputs: the caller's arrays, in the order in which the library is given them.
            outputs: the results, in the order in which the library is given room for them.
        """
        self._plan = plan
        self._buffers = {buffer.name: buffer for buffer in plan.buffers}
        self._array_index = {
            name: index for views in (inputs, outputs) for index, name in enumerate(view.buffer for view in views)
        }
        views = (view for task in plan.tasks for view in (*task.reads, *task.writes))
        self._slots: dict[object, int] = {}
        self._views: list[View] = []
        for view in views:
            if self._key(view) not in self._slots:
                self._slots[self._key(view)] = len(self._views)
                self._views.append(view)

    def words(self, sessions: Mapping[int, int], cpus: Sequence[int]) -> list[int]:
        """The whole plan.

        Args:
            sessions: the pointer of each kernel's session; kernels without one are copies.
            cpus: the processor of each lane.

        Raises:
            ValueError: a view has no fixed size.
        """
        words = [self._plan.arena_nbytes, len(self._views)]
        for view in self._views:
            words += self._slot(view)
        words += [len(self._plan.lanes), *cpus]
        for lane in self._plan.lanes:
            words.append(len(lane))
            for task in lane:
                words += self._task(task, sessions)
        return words

    def slot_of_dynamic(self, buffer: str) -> int:
        """The number under which the library knows a DYNAMIC buffer."""
        return self._slots[buffer]

    def _key(self, view: View) -> object:
        return view.buffer if self._buffers[view.buffer].space is Space.DYNAMIC else view

    def _slot(self, view: View) -> list[int]:
        buffer = self._buffers[view.buffer]
        code = _SPACE_CODE[buffer.space]
        if buffer.space is Space.DYNAMIC:
            return [code, 0, 0, 0, 0, 0]
        if view.dtype not in ELEMENT_TYPE or view.shape is None:
            raise ValueError(f"a view of {view.buffer!r} has no fixed size: {view.dtype} {view.shape}")
        offset = view.offset + (buffer.offset if buffer.space is Space.ARENA else 0)
        index = self._array_index.get(view.buffer, 0)
        return [code, index, offset, view.nbytes, ELEMENT_TYPE[view.dtype], len(view.shape), *view.shape]

    def _task(self, task: Task, sessions: Mapping[int, int]) -> list[int]:
        words = [sessions.get(task.kernel, 0)]
        for views in (task.reads, task.writes):
            words += [len(views), *(self._slots[self._key(view)] for view in views)]
        words.append(len(task.waits))
        for wait in task.waits:
            words += [wait.lane, wait.steps]
        return words
