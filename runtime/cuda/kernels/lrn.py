"""Local response normalization across channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer, number
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, loaded, preamble, stored, widened
from iosched.runtime.cuda.source.pointwise import launch
from iosched.runtime.cuda.source.windows import Image, indices, thread_axes
from iosched.runtime.plan import View


@dataclass(frozen=True)
class Lrn:
    """y = x / (bias + alpha / size * sum of squares over `size` channels around)^beta, in float32."""

    size: int
    alpha: float
    beta: float
    bias: float

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x = widened(reads[0])
        before, after = (self.size - 1) // 2, self.size // 2
        squares = np.pad(x * x, ((0, 0), (before, after), *((0, 0),) * (x.ndim - 2)))
        total = sum(squares[:, k : k + x.shape[1]] for k in range(self.size))
        writes[0][...] = x / (self.bias + self.alpha / self.size * total) ** self.beta

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, y = Image.of(reads[0]), Image.of(writes[0])
        batch, channels, height, width = y.shape
        threads = batch * channels * height * width
        numbers = map(np.float32, (self.alpha / self.size, self.beta, self.bias))
        counts = map(np.int32, (threads, channels, width, height))
        source = _SOURCE.format(
            preamble=preamble([reads[0].dtype]),
            type=C_TYPES[reads[0].dtype],
            indices=indices(*thread_axes(y.is_planar, ("channel", "channels"), ("column", "width"), ("row", "height"))),
            before=(self.size - 1) // 2,
            after=self.size // 2,
            value=loaded(reads[0].dtype, "x[at * xc]"),
            own=loaded(reads[0].dtype, "x[channel * xc]"),
            result=stored(writes[0].dtype, "own / powf(bias + factor * total, beta)"),
        )
        arguments = [Pointer(0), Pointer(1), *counts, *numbers, *x.steps(1), *y.steps(1)]
        return launch(source, "lrn", threads, arguments)


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """LRN of (N, C, L) or (N, C, H, W)."""
    spec = builder.tensors.get(node.input[0])
    size = integer(node, "size")
    if spec is None or spec.dtype not in FLOATS or len(spec.shape or ()) not in (3, 4) or size < 1:
        return False
    kernel = Lrn(size, number(node, "alpha", 1e-4), number(node, "beta", 0.75), number(node, "bias", 1.0))
    builder.emit(kernel, node.input, node.output)
    return True


_SOURCE = """{preamble}
extern "C" __global__ void lrn(const {type}* __restrict__ x, {type}* __restrict__ y, int count, int channels, int width,
                               int height, float factor, float beta, float bias, long long xn, long long xc,
                               long long xh, long long xw, long long yn, long long yc, long long yh, long long yw) {{
  unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= (unsigned int)count) return;
{indices}
  x += rest * xn + row * xh + column * xw;
  y += rest * yn + row * yh + column * yw;
  float total = 0.0f;
  for (int at = channel - {before}; at <= channel + {after}; ++at) {{
    if (at < 0 || at >= channels) continue;
    const float value = {value};
    total = fmaf(value, value, total);
  }}
  const float own = {own};
  y[channel * yc] = {result};
}}
"""
