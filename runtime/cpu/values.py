"""The values of a plan's buffers while the Python executor runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from iosched.runtime.cpu.element_types import ELEMENT_TYPE
from iosched.runtime.inputs import numpy_dtype
from iosched.runtime.plan import View

if TYPE_CHECKING:
    from onnxruntime import IOBinding, OrtValue


@dataclass(frozen=True, eq=False)
class Values:
    """The values of one call of an executor.

    Attributes:
        ort_value: onnxruntime's class of that name.
        memory: bytes of every buffer whose size is known.
        objects: values of the other buffers, as Python has them: arrays, or lists of arrays.
        outputs: the arrays whose bytes the OUTPUT buffers are.
        views: parts of `memory` as onnxruntime sees them.
        bindings: of tasks, by identity, to those views.
    """

    ort_value: type[OrtValue]
    memory: dict[str, np.ndarray]
    objects: dict[str, Any]
    outputs: dict[str, np.ndarray]
    views: dict[View, OrtValue]
    bindings: dict[int, IOBinding]

    def is_memory(self, view: View) -> bool:
        """Whether the bytes of the view are in `memory`; else its value is in `objects`."""
        return view.buffer in self.memory

    def bytes_of(self, view: View) -> np.ndarray:
        """The bytes of a view in `memory`, to be read or written: `(nbytes,) uint8`."""
        return self.memory[view.buffer][view.offset : view.offset + view.nbytes]

    def value(self, view: View) -> OrtValue:
        """A view in `memory` as onnxruntime sees it, without a copy; made once."""
        if view not in self.views:
            self.views[view] = self._make(view)
        return self.views[view]

    def object_of(self, view: View) -> Any:
        """What onnxruntime is given for a view, wherever its value is."""
        return self.value(view) if self.is_memory(view) else self.objects[view.buffer]

    def result(self, view: View) -> Any:
        """The value of a graph output, for the caller."""
        return self.outputs[view.buffer] if view.buffer in self.outputs else self.objects[view.buffer]

    def _make(self, view: View) -> OrtValue:
        array = self.bytes_of(view).view(numpy_dtype(view.dtype)).reshape(view.shape or ())
        if array.dtype.isbuiltin == 1:
            return self.ort_value.ortvalue_from_numpy(array)
        return self.ort_value.ortvalue_from_numpy_with_onnx_type(array, ELEMENT_TYPE[view.dtype])


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of an array, copied if it is not C-contiguous: `(nbytes,) uint8`."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
