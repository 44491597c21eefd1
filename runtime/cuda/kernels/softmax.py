"""Softmax and LogSoftmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer
from iosched.models.wiring import standard_opset
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.elements import FLOATS, stored, widened
from iosched.runtime.cuda.source.loops import operand, shape_of
from iosched.runtime.cuda.source.rows import Rows
from iosched.runtime.plan import View

_ONE_AXIS_SINCE = 13  # in earlier opsets, all axes from the first one on are joined


@dataclass(frozen=True)
class Softmax:
    """y = exp(x - max) / sum(exp(x - max)) over `axes` together, or its logarithm; computed in float32."""

    axes: tuple[int, ...]
    logarithm: bool = False

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x = widened(reads[0])
        shifted = x - x.max(self.axes, keepdims=True)
        total = np.exp(shifted).sum(self.axes, keepdims=True)
        writes[0][...] = shifted - np.log(total) if self.logarithm else np.exp(shifted) / total

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, y = operand(reads[0]), operand(writes[0])
        rows = Rows.of(shape_of(reads[0]), (x, y), self.axes)
        source = rows.source(
            _SOURCE,
            x,
            y,
            combined_most=rows.combined("most", "fmaxf(a, b)"),
            combined_total=rows.combined("total", "a + b"),
            factor="logf(total)" if self.logarithm else "1.0f / total",
            result=stored(y.dtype, "x - most - factor" if self.logarithm else "expf(x - most) * factor"),
        )
        return rows.call(source, "softmax", (Pointer(0), Pointer(1)))


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Softmax and LogSoftmax."""
    spec = builder.tensors.get(node.input[0])
    if spec is None or not spec.shape or spec.dtype not in FLOATS:
        return False
    rank = len(spec.shape)
    one_axis = standard_opset(builder.model.proto) >= _ONE_AXIS_SINCE
    first = integer(node, "axis", -1 if one_axis else 1)
    if not -rank <= first < rank:
        return False
    axis = first % rank
    axes = (axis,) if one_axis else tuple(range(axis, rank))
    builder.emit(Softmax(axes, node.op_type == "LogSoftmax"), node.input, node.output)
    return True


_SOURCE = """{preamble}
{constants}
extern "C" __global__ void softmax(const {x_type}* __restrict__ p0, {y_type}* __restrict__ p1, {parameters}) {{
  __shared__ float shared[LANES * ROWS];
  {place}
  {row_offsets}
  const int n = row < n_rows ? n_reduced : 0;
  float most = __int_as_float(0xff800000);
  for (int index = lane; index < n; index += LANES) {{
    {offsets}
    most = fmaxf(most, {value});
  }}
{combined_most}
  float total = 0.0f;
  for (int index = lane; index < n; index += LANES) {{
    {offsets}
    total += expf({value} - most);
  }}
{combined_total}
  const float factor = {factor};
  for (int index = lane; index < n; index += LANES) {{
    {offsets}
    const float x = {value};
    p1[kat1 + rat1] = {result};
  }}
}}
"""
