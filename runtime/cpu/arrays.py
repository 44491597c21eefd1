"""Binds a plan's inputs and outputs to arrays, and encodes its tasks as integers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from iosched.models.errors import UsageError
from iosched.runtime.cpu.kernels import ELEMENT_TYPE, Copy, Kernel
from iosched.runtime.inputs import numpy_dtype
from iosched.runtime.plan import ExecutionPlan, MemorySpace, PlanTask, View

_ALIGNMENT_NBYTES = 64
_AT_ONCE, _SMALL_NBYTES = 16, 4096

_addressof = ctypes.addressof
_from_buffer: Callable[[Any], Any] = ctypes.c_char.from_buffer


def aligned_empty(nbytes: int) -> np.ndarray:
    """Uninitialized bytes that start at a cache line: `(nbytes,) uint8`."""
    raw = np.empty(nbytes + _ALIGNMENT_NBYTES, np.uint8)
    start = -address(raw) % _ALIGNMENT_NBYTES
    return raw[start : start + nbytes]


def output_array(view: View) -> np.ndarray:
    """A new array for a graph output of known shape."""
    return np.ndarray(view.shape or (), numpy_dtype(view.dtype), aligned_empty(view.nbytes))


class InputArrays:
    """Passes inputs to the library.

    Attributes:
        pointers: the addresses of the inputs of the last `bind`.
    """

    def __init__(self, expected: Sequence[View]) -> None:
        """Prepare for inputs of these types and shapes."""
        self.pointers = (ctypes.c_void_p * len(expected))()
        self._expected = tuple(
            (index, view, view.buffer, view.shape, None if view.dtype == "string" else numpy_dtype(view.dtype))
            for index, view in enumerate(expected)
        )

    def bind(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Set the addresses; return the copies, which must outlive their use. Raises as `checked_inputs`."""
        kept: list[np.ndarray] = []
        for index, view, name, shape, dtype in self._expected:
            array = inputs.get(name)
            if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape:
                try:
                    self.pointers[index] = _addressof(_from_buffer(array))
                    continue
                except (TypeError, ValueError):  # as in `address`, or not contiguous
                    pass
            kept.append(_checked(view, inputs))
            self.pointers[index] = address(kept[-1])
        return kept


class OutputArrays:
    """Allocates output arrays, small ones for several calls at once: allocation is a large part of a short call."""

    def __init__(self, views: Sequence[View]) -> None:
        """Prepare for outputs of these types and known shapes."""
        self._views = tuple(views)
        self._is_small = sum(_padded(view.nbytes) for view in views) <= _SMALL_NBYTES
        self._ready: list[tuple[dict[str, np.ndarray], list[int]]] = []

    def take(self) -> tuple[dict[str, np.ndarray], list[int]]:
        """New arrays by name, and their addresses."""
        if not self._is_small:
            arrays = {view.buffer: output_array(view) for view in self._views}
            return arrays, [address(array) for array in arrays.values()]
        try:
            return self._ready.pop()
        except IndexError:
            self._ready += (made := self._made())[1:]
            return made[0]

    def _made(self) -> list[tuple[dict[str, np.ndarray], list[int]]]:
        offsets = list(accumulate((_padded(view.nbytes) for view in self._views), initial=0))
        step = max(offsets[-1], 1)  # all arrays may be empty
        memory = aligned_empty(_AT_ONCE * step)
        made = []
        for start in range(0, _AT_ONCE * step, step):
            arrays = {
                view.buffer: np.ndarray(view.shape or (), numpy_dtype(view.dtype), memory, start + offset)
                for view, offset in zip(self._views, offsets, strict=False)
            }
            made.append((arrays, [address(memory) + start + offset for offset in offsets[:-1]]))
        return made


def _padded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES


def address(array: np.ndarray) -> int:
    """Address of a C-contiguous array, without creating the slow `array.ctypes`."""
    try:
        return _addressof(_from_buffer(array))
    except (TypeError, ValueError):  # read-only, empty, or a type of `ml_dtypes`
        return int(array.ctypes.data)


def input_views(plan: ExecutionPlan) -> tuple[View, ...]:
    """One view for each input array of the plan; its shape is None if tasks read only parts of it."""
    size = {buffer.name: buffer.nbytes for buffer in plan.buffers if buffer.is_input}
    if plan.inputs:
        if left_out := size.keys() - {view.buffer for view in plan.inputs}:
            raise ValueError(f"the plan's inputs omit {min(left_out)!r}")
        return plan.inputs
    reads = [view for task in plan.tasks for view in task.reads if view.buffer in size]
    whole = _whole_views(reads, size)
    dtype = {view.buffer: view.dtype for view in reads}
    return tuple(
        whole.get(name) or View(name, dtype.get(name, "uint8"), None, nbytes=nbytes) for name, nbytes in size.items()
    )


def output_views(plan: ExecutionPlan) -> tuple[View, ...]:
    """The graph outputs, each viewed completely, in the order of `run`'s result."""
    size = {buffer.name: buffer.nbytes for buffer in plan.buffers if buffer.space is MemorySpace.OUTPUT}
    if plan.outputs:
        if left_out := size.keys() - {view.buffer for view in plan.outputs}:
            raise ValueError(f"the plan's outputs omit {min(left_out)!r}")
        return plan.outputs
    whole = _whole_views((view for task in plan.tasks for view in (*task.writes, *task.reads)), size)
    if unknown := [name for name in size if name not in whole]:
        raise ValueError(f"the plan does not define the shape of its output {unknown[0]!r}")
    return (*(whole[name] for name in size), *_unread_dynamic(plan))


def _whole_views(views: Iterable[View], size: Mapping[str, int]) -> dict[str, View]:
    return {view.buffer: view for view in views if view.shape is not None and size.get(view.buffer) == view.nbytes}


def _unread_dynamic(plan: ExecutionPlan) -> list[View]:
    dynamic = {buffer.name for buffer in plan.buffers if buffer.space is MemorySpace.DYNAMIC}
    read = {view.buffer for task in plan.tasks for view in task.reads}
    return [view for task in plan.tasks for view in task.writes if view.buffer in dynamic - read]


def checked_inputs(expected: tuple[View, ...], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arrays in the order of `expected`, C-contiguous.

    Raises:
        UsageError: one is missing, or has another type or shape than the plan.
    """
    return [_checked(view, inputs) for view in expected]


def _checked(view: View, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    if view.buffer not in inputs:
        raise UsageError(f"input {view.buffer!r} is missing; got: {', '.join(inputs) or 'none'}")
    array = np.asarray(inputs[view.buffer])
    fits = array.nbytes == view.nbytes if view.shape is None else array.shape == view.shape
    if view.dtype == "string" or view.shape is None:
        return _contiguous(array, view, fits)
    return _contiguous(array, view, fits and array.dtype == numpy_dtype(view.dtype))


def _contiguous(array: np.ndarray, view: View, fits: bool) -> np.ndarray:
    if not fits:
        wanted = f"{view.nbytes} bytes" if view.shape is None else f"{view.dtype} of shape {view.shape}"
        raise UsageError(f"input {view.buffer!r} must be {wanted}, not {array.dtype} of shape {array.shape}")
    return array if array.flags.c_contiguous else np.asarray(array, order="C")


def check_kernels(plan: ExecutionPlan, kernels: tuple[Kernel, ...]) -> None:
    """Check that every task's kernel exists and takes the task's number of views."""
    space = {buffer.name: buffer.space for buffer in plan.buffers}
    for task in plan.tasks:
        if not 0 <= task.kernel < len(kernels):
            raise ValueError(f"task {task.name!r} names kernel {task.kernel} of {len(kernels)}")
        kernel = kernels[task.kernel]
        wanted = (1, 1) if isinstance(kernel, Copy) else (len(kernel.inputs), len(kernel.outputs))
        if (len(task.reads), len(task.writes)) != wanted:
            raise ValueError(f"task {task.name!r} does not fit the inputs and outputs of its kernel")
        views = (*task.reads, *task.writes)
        if isinstance(kernel, Copy) and any(space[view.buffer] is MemorySpace.DYNAMIC for view in views):
            raise ValueError(f"task {task.name!r} copies a buffer whose size is not known")


_SPACE_CODE = {
    MemorySpace.ARENA: 0,
    MemorySpace.INPUT: 1,
    MemorySpace.INOUT: 1,
    MemorySpace.OUTPUT: 2,
    MemorySpace.DYNAMIC: 3,
}


class PlanEncoder:
    """Encodes a plan as the integers that the compiled executor reads; equal views share a slot."""

    def __init__(self, plan: ExecutionPlan, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        """Number the views of the plan's tasks; `inputs` and `outputs` are in the order of the library's arrays."""
        self._plan = plan
        self._arrays = inputs, outputs
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

    def words(self, kernels: Sequence[int]) -> list[int]:
        """The whole plan.

        Args:
            kernels: the `PlanTask.kernel` of each kernel of the library, in its order; all others are copies.
        """
        words = [self._plan.arena_nbytes]
        for arrays in self._arrays:
            words += [len(arrays), *(view.nbytes for view in arrays)]
        words.append(len(self._views))
        for view in self._views:
            words += self._slot(view)
        position_of = {kernel: position for position, kernel in enumerate(kernels, start=1)}
        words.append(len(self._plan.lanes))
        for lane in self._plan.lanes:
            words.append(len(lane))
            for task in lane:
                words += self._task(task, position_of)
        return words

    def slot_of_dynamic(self, buffer: str) -> int:
        """The library's number of a DYNAMIC buffer."""
        return self._slots[buffer]

    def _key(self, view: View) -> object:
        return view.buffer if self._buffers[view.buffer].space is MemorySpace.DYNAMIC else view

    def _slot(self, view: View) -> list[int]:
        buffer = self._buffers[view.buffer]
        code = _SPACE_CODE[buffer.space]
        if buffer.space is MemorySpace.DYNAMIC:
            return [code, 0, 0, 0, 0, 0]
        if view.dtype not in ELEMENT_TYPE or view.shape is None:
            raise ValueError(f"a view of {view.buffer!r} has no fixed size: {view.dtype} {view.shape}")
        offset = view.offset + (buffer.offset if buffer.space is MemorySpace.ARENA else 0)
        index = self._array_index.get(view.buffer, 0)
        return [code, index, offset, view.nbytes, ELEMENT_TYPE[view.dtype], len(view.shape), *view.shape]

    def _task(self, task: PlanTask, position_of: Mapping[int, int]) -> list[int]:
        words = [position_of.get(task.kernel, 0)]
        for views in (task.reads, task.writes):
            words += [len(views), *(self._slots[self._key(view)] for view in views)]
        words.append(len(task.waits))
        for wait in task.waits:
            words += [wait.lane, wait.steps]
        return words
