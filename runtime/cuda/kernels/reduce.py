"""Reductions over constant axes, global pooling among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from iosched.models.node_attributes import integer, integers
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.elements import FLOATS, stored, widened
from iosched.runtime.cuda.source.loops import Operand, element_strides, operand, shape_of
from iosched.runtime.cuda.source.rows import Rows
from iosched.runtime.plan import View


@dataclass(frozen=True)
class _Form:
    """How a reduction goes: what each element gives, how two results become one, what is made of the last."""

    meaning: Callable[[np.ndarray, tuple[int, ...]], Any]
    start: str
    element: str  # of `x`
    combination: str  # of `a` and `b`
    result: str = "total"  # of `total` and `n_reduced`


_LOWEST, _HIGHEST = "__int_as_float(0xff800000)", "__int_as_float(0x7f800000)"
_FORMS = {
    "Mean": _Form(lambda x, axes: np.mean(x, axes, np.float64), "0.0f", "x", "a + b", "total / (float)n_reduced"),
    "Sum": _Form(lambda x, axes: np.sum(x, axes, np.float64), "0.0f", "x", "a + b"),
    "Max": _Form(lambda x, axes: np.max(x, axes), _LOWEST, "x", "fmaxf(a, b)"),
    "Min": _Form(lambda x, axes: np.min(x, axes), _HIGHEST, "x", "fminf(a, b)"),
    "Prod": _Form(lambda x, axes: np.prod(x, axes), "1.0f", "x", "a * b"),
    "SumSquare": _Form(lambda x, axes: np.sum(x * x, axes, np.float64), "0.0f", "x * x", "a + b"),
    "L1": _Form(lambda x, axes: np.sum(np.abs(x), axes, np.float64), "0.0f", "fabsf(x)", "a + b"),
    "L2": _Form(
        lambda x, axes: np.sqrt(np.sum(x * x, axes, np.float64)), "0.0f", "x * x", "a + b", "sqrtf(total)"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Reduce:
    """y = reduction of x over `axes`, which y has with one index or not at all; float32 or float16, float32 inside.

    Attributes:
        kind: ONNX's name without "Reduce": Mean, Sum, Max, Min, Prod, SumSquare, L1 or L2.
        axes: ascending, none negative.
    """

    kind: str
    axes: tuple[int, ...]

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        found = _FORMS[self.kind].meaning(widened(reads[0]), self.axes)
        writes[0][...] = np.asarray(found).reshape(writes[0].shape)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, shape, form = operand(reads[0]), shape_of(reads[0]), _FORMS[self.kind]
        y = Operand(writes[0].dtype, self._spread(writes[0], len(shape)), 0, writes[0].offset)
        rows = Rows.of(shape, (x, y), self.axes)
        source = rows.source(
            _SOURCE,
            x,
            y,
            start=form.start,
            element=form.element,
            combination=form.combination,
            combined=rows.combined("total", form.combination),
            result=stored(y.dtype, form.result),
        )
        return rows.call(source, "reduce", (Pointer(0), Pointer(1)))

    def _spread(self, view: View, rank: int) -> tuple[int, ...]:
        """Strides of y along the axes of x."""
        strides = list(element_strides(view))
        if len(strides) == rank:
            return tuple(0 if axis in self.axes else stride for axis, stride in enumerate(strides))
        return tuple(0 if axis in self.axes else strides.pop(0) for axis in range(rank))


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """ReduceMean and the like; the axes are an attribute in old models and a constant input in new ones."""
    spec = builder.tensors.get(node.input[0])
    if spec is None or spec.shape is None or spec.dtype not in FLOATS:
        return False
    axes = _axes(builder, node)
    if axes is None:
        return False
    ordered = tuple(sorted({axis % len(spec.shape) for axis in axes})) if spec.shape else ()
    if not ordered and axes:
        return False
    if not ordered:
        if integer(node, "noop_with_empty_axes") == 1:
            return False
        ordered = tuple(range(len(spec.shape)))
    builder.emit(Reduce(node.op_type.removeprefix("Reduce"), ordered), node.input[:1], node.output)
    return True


def lower_global(builder: Builder, node: onnx.NodeProto) -> bool:
    """GlobalAveragePool and GlobalMaxPool."""
    spec = builder.tensors.get(node.input[0])
    if spec is None or spec.shape is None or spec.dtype not in FLOATS or len(spec.shape) < 3:
        return False
    kind = "Mean" if node.op_type == "GlobalAveragePool" else "Max"
    builder.emit(Reduce(kind, tuple(range(2, len(spec.shape)))), node.input, node.output)
    return True


def _axes(builder: Builder, node: onnx.NodeProto) -> list[int] | None:
    """The axes as given, empty for all; None where they are computed."""
    if len(node.input) < 2 or not node.input[1]:
        return list(integers(node, "axes"))
    constant = builder.constant(node.input[1])
    return None if constant is None else [int(axis) for axis in constant.reshape(-1)]


_SOURCE = """{preamble}
{constants}
extern "C" __global__ void reduce(const {x_type}* __restrict__ p0, {y_type}* __restrict__ p1, {parameters}) {{
  __shared__ float shared[LANES * ROWS];
  {place}
  {row_offsets}
  float total = {start};
  if (row < n_rows) {{
    for (int index = lane; index < n_reduced; index += LANES) {{
      {offsets}
      const float x = {value};
      const float a = total, b = {element};
      total = {combination};
    }}
  }}
{combined}
  if (row < n_rows && lane == 0) p1[kat1] = {result};
}}
"""
