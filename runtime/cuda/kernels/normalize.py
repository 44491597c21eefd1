"""Layer and instance normalization."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer, number
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.elements import FLOATS, stored, widened
from iosched.runtime.cuda.source.loops import operand, shape_of
from iosched.runtime.cuda.source.rows import Rows
from iosched.runtime.plan import View


@dataclass(frozen=True)
class Normalize:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + shift, with mean and variance over `axes` of x.

    Reads x, and float32 scale and shift of x's rank, broadcast. Computed in float32 in two passes.
    """

    axes: tuple[int, ...]
    epsilon: float

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x = widened(reads[0])
        centred = x - x.mean(self.axes, keepdims=True)
        variance = (centred * centred).mean(self.axes, keepdims=True)
        writes[0][...] = centred / np.sqrt(variance + np.float32(self.epsilon)) * reads[1] + reads[2]

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        shape = shape_of(reads[0])
        x, y = operand(reads[0]), operand(writes[0])
        rows = Rows.of(shape, (x, y, *(operand(view, shape) for view in reads[1:])), self.axes)
        source = rows.source(
            _SOURCE,
            x,
            y,
            combined=rows.combined("total", "a + b"),
            result=stored(y.dtype, "fmaf((x - mean) * factor, scale[kat2 + rat2], shift[kat3 + rat3])"),
        )
        call = rows.call(source, "normalize", [Pointer(index) for index in range(4)])
        return CudaCall(call.source, call.entry, call.grid, call.block, (*call.arguments, np.float32(self.epsilon)))


def lower_instance(builder: Builder, node: onnx.NodeProto) -> bool:
    """InstanceNormalization with constant scale and shift."""
    spec = builder.tensors.get(node.input[0])
    vectors = [builder.constant(name) for name in node.input[1:3]]
    if spec is None or spec.dtype not in FLOATS or len(spec.shape or ()) < 3 or any(each is None for each in vectors):
        return False
    rank = len(spec.shape or ())
    parameters = [np.asarray(each).reshape(1, -1, *(1,) * (rank - 2)) for each in vectors]
    _emit(builder, node, Normalize(tuple(range(2, rank)), number(node, "epsilon", 1e-5)), parameters)
    return True


def lower_layer(builder: Builder, node: onnx.NodeProto) -> bool:
    """LayerNormalization with constant scale and shift, without its optional outputs."""
    spec = builder.tensors.get(node.input[0])
    constants = [builder.constant(name) for name in node.input[1:] if name]
    axis = integer(node, "axis", -1)
    if spec is None or spec.dtype not in FLOATS or not spec.shape or any(node.output[1:]):
        return False
    if not constants or any(each is None for each in constants):
        return False
    rank = len(spec.shape)
    arrays = [np.asarray(each) for each in constants]
    scale, shift = arrays[0], arrays[1] if len(arrays) > 1 else np.zeros_like(arrays[0])
    parameters = [each.reshape((1,) * (rank - each.ndim) + each.shape) for each in (scale, shift)]
    _emit(builder, node, Normalize(tuple(range(axis % rank, rank)), number(node, "epsilon", 1e-5)), parameters)
    return True


def _emit(builder: Builder, node: onnx.NodeProto, kernel: Normalize, parameters: Sequence[np.ndarray]) -> None:
    names = [
        builder.float32_weight(f"{node.output[0]}/{role}", array)
        for role, array in zip(("scale", "shift"), parameters, strict=True)
    ]
    builder.emit(kernel, (node.input[0], *names), node.output[:1])


_SOURCE = """{preamble}
{constants}
extern "C" __global__ void normalize(const {x_type}* __restrict__ p0, const float* __restrict__ scale,
                                     const float* __restrict__ shift, {y_type}* __restrict__ p1,
                                     {parameters}, float epsilon) {{
  __shared__ float shared[LANES * ROWS];
  {place}
  {row_offsets}
  const int n = row < n_rows ? n_reduced : 0;
  float total = 0.0f;
  for (int index = lane; index < n; index += LANES) {{
    {offsets}
    total += {value};
  }}
{combined}
  const float mean = total / (float)n_reduced;
  total = 0.0f;
  for (int index = lane; index < n; index += LANES) {{
    {offsets}
    const float x = {value};
    total = fmaf(x - mean, x - mean, total);
  }}
{combined}
  const float factor = 1.0f / sqrtf(total / (float)n_reduced + epsilon);
  for (int index = lane; index < n; index += LANES) {{
    {offsets}
    const float x = {value};
    p1[kat1 + rat1] = {result};
  }}
}}
"""
