"""Reductions over constant axes, including global pooling."""

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
class _Reduction:
    reference: Callable[[np.ndarray, tuple[int, ...]], Any]
    start: str
    element: str  # of `x`
    combination: str  # of `a` and `b`
    result: str = "total"  # of `total` and `n_reduced`


_LOWEST, _HIGHEST = "__int_as_float(0xff800000)", "__int_as_float(0x7f800000)"
_REDUCTIONS = {
    "Mean": _Reduction(lambda x, axes: np.mean(x, axes, np.float64), "0.0f", "x", "a + b", "total / (float)n_reduced"),
    "Sum": _Reduction(lambda x, axes: np.sum(x, axes, np.float64), "0.0f", "x", "a + b"),
    "Max": _Reduction(lambda x, axes: np.max(x, axes), _LOWEST, "x", "fmaxf(a, b)"),
    "Min": _Reduction(lambda x, axes: np.min(x, axes), _HIGHEST, "x", "fminf(a, b)"),
    "Prod": _Reduction(lambda x, axes: np.prod(x, axes), "1.0f", "x", "a * b"),
    "SumSquare": _Reduction(lambda x, axes: np.sum(x * x, axes, np.float64), "0.0f", "x * x", "a + b"),
    "L1": _Reduction(lambda x, axes: np.sum(np.abs(x), axes, np.float64), "0.0f", "fabsf(x)", "a + b"),
    "L2": _Reduction(
        lambda x, axes: np.sqrt(np.sum(x * x, axes, np.float64)), "0.0f", "x * x", "a + b", "sqrtf(total)"
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Reduce:
    """y = reduction of x over `axes`, which y keeps with length one or drops; float32 or float16, computed in float32.

    Attributes:
        kind: ONNX type without "Reduce": Mean, Sum, Max, Min, Prod, SumSquare, L1 or L2.
        axes: ascending, not negative.
    """

    kind: str
    axes: tuple[int, ...]

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        found = _REDUCTIONS[self.kind].reference(widened(reads[0]), self.axes)
        writes[0][...] = np.asarray(found).reshape(writes[0].shape)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, shape, form = operand(reads[0]), shape_of(reads[0]), _REDUCTIONS[self.kind]
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
        strides = list(element_strides(view))
        if len(strides) == rank:
            return tuple(0 if axis in self.axes else stride for axis, stride in enumerate(strides))
        return tuple(0 if axis in self.axes else strides.pop(0) for axis in range(rank))


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """ReduceMean and others; axes are an attribute or a constant input."""
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
