"""Average and maximum over windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from iosched.models.node_attributes import integer, integers
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, FLOATS, loaded, preamble, stored, widened
from iosched.runtime.cuda.source.pointwise import launch
from iosched.runtime.cuda.source.window import Image, Window, as_images, channel_width, constants, tap, window_of
from iosched.runtime.plan import View

_MOST_UNROLLED = 64  # taps


@dataclass(frozen=True)
class Pool:
    """The average or the maximum of each window, of one or two dimensions; float32 or float16, sums are float32.

    A thread computes one output for up to 16 bytes of channels. Windows may reach beyond the padding, as ceil_mode
    lets them.

    Attributes:
        window: where it looks.
        average: the average, else the maximum.
        counts_pads: whether the average counts elements of the padding, as zeros.
    """

    window: Window
    average: bool
    counts_pads: bool = False

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        x, y, window = as_images(widened(reads[0])), as_images(writes[0]), self.window.lifted
        values = _padded(x, window, y.shape, 0.0 if self.average else -np.inf)
        taps = [tap(values, window, at, y.shape) for at in np.ndindex(*window.kernel)]
        y[...] = sum(taps) / self._counts(x.shape, y.shape) if self.average else np.maximum.reduce(taps)

    def _counts(self, shape: Sequence[int], output: Sequence[int]) -> np.ndarray:
        """How many elements each output is the average of."""
        window = self.window.lifted
        inside = np.ones((1, 1, *shape[2:]), np.float32)
        if self.counts_pads:
            top, left, bottom, right = window.pads
            inside = np.pad(inside, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=1)
            window = Window(window.kernel, window.strides, (0, 0, 0, 0), window.dilations)
        seen = _padded(inside, window, output, 0.0)
        return np.asarray(sum(tap(seen, window, at, output) for at in np.ndindex(*window.kernel)))

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, y = Image.of(reads[0]), Image.of(writes[0])
        batch, channels, height, width = y.shape
        pack = channel_width(channels, x, y)
        threads = batch * height * width * (channels // pack)
        counts = (threads, channels // pack, width, height, x.shape[2], x.shape[3])
        arguments = [Pointer(0), Pointer(1), *map(np.int32, counts), *x.steps(pack), *y.steps(pack)]
        return launch(self._source(reads[0].dtype, pack), "pool", threads, arguments)

    def _source(self, dtype: str, pack: int) -> str:
        window = self.window.lifted
        bound = ("in_h + PB", "in_w + PR") if self.counts_pads else ("in_h", "in_w")
        least = ("-PT", "-PL") if self.counts_pads else ("0", "0")
        return _SOURCE.format(
            preamble=preamble([dtype]),
            constants=constants(window),
            type=C_TYPES[dtype],
            pack=pack,
            unroll="" if window.kernel[0] * window.kernel[1] <= _MOST_UNROLLED else " 1",
            counted=f"h >= {least[0]} && h < {bound[0]} && w >= {least[1]} && w < {bound[1]}",
            start="0.0f" if self.average else "__int_as_float(0xff800000)",
            value=loaded(dtype, "input.at[v]"),
            joined="total[v] + value" if self.average else "fmaxf(total[v], value)",
            result=stored(dtype, "total[v] / (float)count_inside" if self.average else "total[v]"),
        )


def _padded(x: np.ndarray, window: Window, output: Sequence[int], value: float) -> np.ndarray:
    """`x` with so much padding that every window lies in it."""
    needed = [
        (extent - 1) * stride + (kernel - 1) * dilation + 1
        for extent, stride, kernel, dilation in zip(
            output[2:], window.strides, window.kernel, window.dilations, strict=True
        )
    ]
    ends = [max(need - pad - extent, 0) for need, pad, extent in zip(needed, window.pads[:2], x.shape[2:], strict=True)]
    widths = ((0, 0), (0, 0), (window.pads[0], ends[0]), (window.pads[1], ends[1]))
    return np.pad(x, widths, constant_values=value)


def _every_window_sees_something(window: Window, shape: Sequence[int], output: Sequence[int]) -> bool:
    """Whether the last window begins in the tensor or before it; with ceil_mode, shape inference may say otherwise."""
    extents = zip(shape[2:], output[2:], window.strides, window.pads, strict=False)
    return all((last - 1) * stride - pad < extent for extent, last, stride, pad in extents)


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """AveragePool, and MaxPool without indices."""
    spec = builder.tensors.get(node.input[0])
    kernel = integers(node, "kernel_shape")
    has_indices = len(node.output) > 1 and bool(node.output[1])
    if spec is None or spec.shape is None or spec.dtype not in FLOATS or has_indices:
        return False
    window = window_of(node, spec.shape, kernel)
    if window is None or not _every_window_sees_something(window, spec.shape, builder.shape(node.output[0])):
        return False
    average = node.op_type == "AveragePool"
    counts_pads = average and integer(node, "count_include_pad") == 1
    builder.emit(Pool(window, average, counts_pads), node.input[:1], node.output[:1])
    return True


_SOURCE = """{preamble}
{constants}
constexpr int V = {pack};

extern "C" __global__ void pool(const {type}* __restrict__ x, {type}* __restrict__ y, int count, int packs, int out_w,
                                int out_h, int in_h, int in_w, long long xn, long long xc, long long xh, long long xw,
                                long long yn, long long yc, long long yh, long long yw) {{
  unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= (unsigned int)count) return;
  const int pack = rest % (unsigned int)packs; rest /= (unsigned int)packs;
  const int column = rest % (unsigned int)out_w; rest /= (unsigned int)out_w;
  const int row = rest % (unsigned int)out_h; rest /= (unsigned int)out_h;
  x += rest * xn + pack * xc;
  y += rest * yn + pack * yc + row * yh + column * yw;
  float total[V];
#pragma unroll
  for (int v = 0; v < V; ++v) total[v] = {start};
  int count_inside = 0;
#pragma unroll{unroll}
  for (int ky = 0; ky < KH; ++ky) {{
    const int h = row * SH - PT + ky * DH;
#pragma unroll{unroll}
    for (int kx = 0; kx < KW; ++kx) {{
      const int w = column * SW - PL + kx * DW;
      count_inside += {counted} ? 1 : 0;
      if (h < 0 || h >= in_h || w < 0 || w >= in_w) continue;
      const auto input = *reinterpret_cast<const Pack<{type}, V>*>(x + h * xh + w * xw);
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        const float value = {value};
        total[v] = {joined};
      }}
    }}
  }}
  Pack<{type}, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.at[v] = {result};
  *reinterpret_cast<Pack<{type}, V>*>(y) = result;
}}
"""
