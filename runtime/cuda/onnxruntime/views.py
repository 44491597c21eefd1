"""Brings what onnxruntime reads and writes into the form that it knows: row-major, of the model's own types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.runtime.cuda.kernel import Kernel, SessionKernel
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.layout import is_row_major
from iosched.runtime.cuda.source.elements import MOST_BYTES
from iosched.runtime.plan import View

Call = tuple[Kernel, tuple[View, ...], tuple[View, ...]]


@dataclass(eq=False)
class SessionViews:
    """The tensors of calls in onnxruntime, as the model has them.

    Attributes:
        specs: tensors of the model by name.
        buffers: what was added for copies, by name.
    """

    specs: Mapping[str, TensorSpec]
    buffers: dict[str, View] = field(default_factory=dict)

    def calls(
        self, operator: str, kernel: SessionKernel, reads: Mapping[str, View], writes: Mapping[str, View]
    ) -> Iterable[Call]:
        """`kernel` with copies before and after where a tensor lies in another way.

        Args:
            operator: makes the names of the copies unique.
            reads: views on the device by tensor.
            writes: the same.
        """
        before = {name: self._plain(operator, name, view) for name, view in reads.items()}
        after = {name: self._plain(operator, name, view) for name, view in writes.items()}
        yield from _copies((reads[name], before[name]) for name in reads)
        yield kernel, tuple(before.values()), tuple(after.values())
        yield from _copies((after[name], writes[name]) for name in writes)

    def _plain(self, operator: str, name: str, view: View) -> View:
        """`view` itself where onnxruntime can use it; else a row-major view of a new buffer."""
        spec = self.specs[name]
        if _is_plain(view, spec):
            return view
        buffer, shape = f"{name}@session:{operator}", spec.shape or ()
        self.buffers[buffer] = View(buffer, spec.dtype, shape, 0, spec.nbytes)
        return self.buffers[buffer]


def _copies(pairs: Iterable[tuple[View, View]]) -> Iterable[Call]:
    return [(Copy(), (source,), (target,)) for source, target in pairs if source != target]


def _is_plain(view: View, spec: TensorSpec) -> bool:
    aligned = view.offset % MOST_BYTES == 0
    return aligned and view.dtype == spec.dtype and _is_dense(view.shape or (), view.strides, view.dtype)


def _is_dense(shape: Sequence[int], strides: Sequence[int] | None, dtype: str) -> bool:
    return strides is None or is_row_major(shape, strides, np.dtype(dtype).itemsize)
