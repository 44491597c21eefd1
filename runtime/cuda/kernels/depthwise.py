"""Depthwise convolution with an optional ReLU before and a bias and an activation behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from iosched.runtime.cuda.kernel import CudaCall, Pointer
from iosched.runtime.cuda.source.activation import IDENTITY, Activation
from iosched.runtime.cuda.source.elements import C_TYPES, loaded, preamble, stored, widened
from iosched.runtime.cuda.source.pointwise import launch
from iosched.runtime.cuda.source.window import Image, Window, as_images, channel_width, constants, tap
from iosched.runtime.plan import View

_TILES = (4, 2, 1)
_ENOUGH_THREADS = 1 << 15
_MOST_KEPT = 64  # floats of one input row that a thread keeps in registers
_MOST_UNROLLED = 64  # taps


@dataclass(frozen=True)
class Depthwise:
    """y = activation(depthwise(relu?(x), weight) + bias?), of one or two dimensions.

    Channel c of y reads channel c // multiplier of x.

    Reads x (N, C, H, W), the weight as `depthwise_weight` lays it out, and a float32 bias (C * multiplier,) where there
    is one. float32 or float16; sums are float32. A thread computes up to four neighbours of a row for up to 16 bytes of
    channels, and reads each input of its rows once.

    Attributes:
        pads: begins of all axes, then ends; negative ones are not known.
        relu: whether x goes through a ReLU.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    relu: bool = False
    activation: Activation = IDENTITY

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        window, y = self._window, as_images(writes[0])
        x, weight = as_images(widened(reads[0])), widened(reads[1]).reshape(*window.kernel, -1)
        top, left, bottom, right = window.pads
        padded = np.pad(np.maximum(x, 0) if self.relu else x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        padded = padded.repeat(y.shape[1] // x.shape[1], 1)
        total = np.zeros(y.shape, np.float32)
        if len(reads) > 2:
            total += reads[2].reshape(1, -1, 1, 1)
        for at in np.ndindex(*window.kernel):
            total += weight[at].reshape(1, -1, 1, 1) * tap(padded, window, at, y.shape)
        y[...] = self.activation(total)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        x, y = Image.of(reads[0]), Image.of(writes[0])
        batch, channels, height, width = y.shape
        multiplier = channels // x.shape[1]
        pack = channel_width(channels, x, y) if multiplier == 1 else 1
        pixels = batch * height * (channels // pack)
        tile = self._tile(pack, pixels, width)
        tiles = -(-width // tile)
        form = _Form(reads[0].dtype, pack, tile, multiplier, len(reads) > 2)
        counts = (pixels * tiles, channels // pack, tiles, height, width, x.shape[2], x.shape[3])
        pointers = [Pointer(index) for index in range(len(reads) + 1)]
        arguments = [*pointers, *map(np.int32, counts), *x.steps(pack), *y.steps(pack)]
        return launch(self._source(form), "depthwise", pixels * tiles, arguments)

    @property
    def _window(self) -> Window:
        return Window(self.kernel, self.strides, self.pads, self.dilations).lifted

    @property
    def _is_unrolled(self) -> bool:
        return self._window.kernel[0] * self._window.kernel[1] <= _MOST_UNROLLED

    def _tile(self, pack: int, pixels: int, width: int) -> int:
        """Outputs of a row for one thread: more share what they read, fewer make more threads."""
        if not self._is_unrolled:
            return 1
        fitting = [tile for tile in _TILES if tile == 1 or (tile <= width and self._columns(tile) * pack <= _MOST_KEPT)]
        return next((tile for tile in fitting if pixels * -(-width // tile) >= _ENOUGH_THREADS), 1)

    def _columns(self, tile: int) -> int:
        window = self._window
        return (tile - 1) * window.strides[1] + (window.kernel[1] - 1) * window.dilations[1] + 1

    def _source(self, form: _Form) -> str:
        rows = (_ROWS_KEPT if self._is_unrolled else _ROWS_READ_AGAIN).format(
            value=loaded(form.dtype, "input.at[v]"),
            relu="fmaxf(value, 0.0f)" if self.relu else "value",
            factor=loaded(form.dtype, "factor.at[v]"),
        )
        return _SOURCE.format(
            preamble=preamble([form.dtype]),
            constants=constants(self._window),
            type=C_TYPES[form.dtype],
            pack=form.pack,
            tile=form.tile,
            multiplier=form.multiplier,
            columns=self._columns(form.tile),
            bias=", const float* __restrict__ bias" if form.bias else "",
            first="  const auto first = load(bias + pack * V);" if form.bias else "",
            start="first.at[v]" if form.bias else "0.0f",
            rows=rows,
            activation=self.activation.expression("total"),
            result=stored(form.dtype, "value"),
        )


@dataclass(frozen=True)
class _Form:
    """What a source depends on beside the kernel."""

    dtype: str
    pack: int
    tile: int
    multiplier: int
    bias: bool


def depthwise_weight(weight: np.ndarray) -> np.ndarray:
    """(C, 1, *kernel) of an ONNX convolution with as many groups as input channels, as (*kernel, C)."""
    return np.ascontiguousarray(np.moveaxis(weight[:, 0], 0, -1))


_SOURCE = """{preamble}
{constants}
constexpr int V = {pack}, TILE = {tile}, COLUMNS = {columns};

template <typename T> __device__ __forceinline__ Pack<T, V> load(const T* at) {{
  return *reinterpret_cast<const Pack<T, V>*>(at);
}}

extern "C" __global__ void depthwise(const {type}* __restrict__ x, const {type}* __restrict__ weight{bias},
                                     {type}* __restrict__ y, int count, int packs, int tiles, int out_h, int out_w,
                                     int in_h, int in_w, long long xn, long long xc, long long xh, long long xw,
                                     long long yn, long long yc, long long yh, long long yw) {{
  unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= (unsigned int)count) return;
  const int pack = rest % (unsigned int)packs; rest /= (unsigned int)packs;
  const int tile = rest % (unsigned int)tiles; rest /= (unsigned int)tiles;
  const int row = rest % (unsigned int)out_h; rest /= (unsigned int)out_h;
  x += rest * xn + pack / {multiplier} * xc;
  y += rest * yn + pack * yc + row * yh;
  weight += pack * V;
{first}
  float sum[TILE][V];
#pragma unroll
  for (int t = 0; t < TILE; ++t)
#pragma unroll
    for (int v = 0; v < V; ++v) sum[t][v] = {start};
  const int top = row * SH - PT, left = tile * TILE * SW - PL;
{rows}
#pragma unroll
  for (int t = 0; t < TILE; ++t) {{
    const int column = tile * TILE + t;
    if (column < out_w) {{
      Pack<{type}, V> result;
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        const float total = sum[t][v];
        const float value = {activation};
        result.at[v] = {result};
      }}
      *reinterpret_cast<Pack<{type}, V>*>(y + column * yw) = result;
    }}
  }}
}}
"""

_ROWS_KEPT = """#pragma unroll
  for (int ky = 0; ky < KH; ++ky) {{
    const int h = top + ky * DH;
    if (h < 0 || h >= in_h) continue;
    float part[COLUMNS][V];  // of these, what no tap sees is never loaded
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) {{
      const int w = left + k;
      if (w >= 0 && w < in_w) {{
        const auto input = load(x + h * xh + w * xw);
#pragma unroll
        for (int v = 0; v < V; ++v) {{
          const float value = {value};
          part[k][v] = {relu};
        }}
      }} else {{
#pragma unroll
        for (int v = 0; v < V; ++v) part[k][v] = 0.0f;
      }}
    }}
#pragma unroll
    for (int kx = 0; kx < KW; ++kx) {{
      const auto factor = load(weight + (ky * KW + kx) * (packs * V));
#pragma unroll
      for (int t = 0; t < TILE; ++t)
#pragma unroll
        for (int v = 0; v < V; ++v) sum[t][v] = fmaf(part[t * SW + kx * DW][v], {factor}, sum[t][v]);
    }}
  }}"""

_ROWS_READ_AGAIN = """#pragma unroll 1
  for (int ky = 0; ky < KH; ++ky) {{
    const int h = top + ky * DH;
    if (h < 0 || h >= in_h) continue;
#pragma unroll 1
    for (int kx = 0; kx < KW; ++kx) {{
      const int w = left + kx * DW;
      if (w < 0 || w >= in_w) continue;
      const auto input = load(x + h * xh + w * xw);
      const auto factor = load(weight + (ky * KW + kx) * (packs * V));
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        const float value = {value};
        sum[0][v] = fmaf({relu}, {factor}, sum[0][v]);
      }}
    }}
  }}"""
