"""Windows that slide: which thread makes which outputs, and the loops over what they see.

Neighbouring threads have neighbours in memory. Where channels lie side by side these are packs of channels, and what a
thread makes together are neighbours of a row, whose windows overlap. In planar images they are pixels of a row, and
what a thread makes together are neighbours of a column. That is the same with rows and columns exchanged, so it is the
same source on images that are turned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from iosched.runtime.cuda.kernel import Argument
from iosched.runtime.cuda.source.elements import LOAD, preamble
from iosched.runtime.cuda.source.window import (
    ENOUGH_THREADS,
    Image,
    Window,
    channel_width,
    constants,
    indices,
    shared_out,
)

_TILES = (4, 2, 1)
_MOST_KEPT = 64  # floats of one input row that a thread keeps in registers
_MOST_UNROLLED = 64  # taps

PARAMETERS = """int count, int packs, int tiles, int out_h, int out_w, int in_h, int in_w, long long xn, long long xc,
    long long xh, long long xw, long long yn, long long yc, long long yh, long long yw"""
"""The C parameters of `Sweep.arguments`."""


@dataclass(frozen=True)
class Sweep:
    """Outputs `y` of `window` over `x`, shared out to threads.

    Attributes:
        window: of two dimensions.
        x, y: of these `window` is; turned where `planar`.
        planar: whether threads walk along pixels, else along channels.
        pack: neighbouring channels of a thread.
        multiplier: channels of y that each of x is seen by.
    """

    window: Window
    x: Image
    y: Image
    planar: bool
    pack: int
    multiplier: int

    @classmethod
    def of(cls, window: Window, x: Image, y: Image) -> Sweep:
        """As the strides of `y` suggest."""
        multiplier, planar = y.shape[1] // x.shape[1], y.is_planar
        pack = channel_width(y.shape[1], x, y) if multiplier == 1 else 1
        if planar:
            return cls(window.turned, x.turned, y.turned, planar, pack, multiplier)
        return cls(window, x, y, planar, pack, multiplier)

    @property
    def tile(self) -> int:
        """Neighbours that a thread makes together: more share what they read, fewer make more threads."""
        if not self._is_unrolled:
            return 1
        width = self.y.shape[3]
        fitting = [tile for tile in _TILES if tile <= width and self._columns(tile) * self.pack <= _MOST_KEPT]
        return next((tile for tile in fitting if self._lines * -(-width // tile) >= ENOUGH_THREADS), 1)

    @property
    def threads(self) -> int:
        """One for each tile and pack."""
        return self._lines * self._tiles

    @property
    def arguments(self) -> list[Argument]:
        """See `PARAMETERS`."""
        _, channels, height, width = self.y.shape
        counts = (self.threads, channels // self.pack, self._tiles, height, width, *self.x.shape[2:])
        return [*map(np.int32, counts), *self.x.steps(self.pack), *self.y.steps(self.pack)]

    @property
    def place(self) -> str:
        """C++ that defines `pack`, `tile`, `row`, and `top` and `left` of the first window, and moves x and y there."""
        rows, columns = ("row", "out_h"), ("tile", "tiles")
        pixels = (rows, columns) if self.planar else (columns, rows)
        axes = shared_out(self.planar, ("pack", "packs"), *pixels)
        return _PLACE.format(indices=indices(*axes), multiplier=self.multiplier)

    def head(self, dtype: str) -> str:
        """What a source begins with."""
        sizes = {"V": self.pack, "TILE": self.tile, "COLUMNS": self._columns(self.tile)}
        named = ", ".join(f"{name} = {value}" for name, value in sizes.items())
        return "\n".join([preamble([dtype]), constants(self.window), f"constexpr int {named};", LOAD])

    def rows(self, *, element: str, outside: str, joined: str, before: str = "") -> str:
        """C++ that joins what each tap sees to `sum[TILE][V]`.

        Args:
            element: of `input.at[v]`, what is seen.
            outside: what is seen where there is no input.
            joined: of `seen` and `sum[t][v]`, what the latter becomes.
            before: statements for the tap in row `ky` and column `kx`.
        """
        template = _ROWS_KEPT if self._is_unrolled else _ROWS_READ_AGAIN
        return template.format(element=element, outside=outside, joined=joined, before=before)

    @property
    def unroll(self) -> str:
        """How a loop over taps begins."""
        return "#pragma unroll" if self._is_unrolled else "#pragma unroll 1"

    @property
    def _lines(self) -> int:
        batch, channels, height, _ = self.y.shape
        return batch * height * (channels // self.pack)

    @property
    def _tiles(self) -> int:
        return -(-self.y.shape[3] // self.tile)

    @property
    def _is_unrolled(self) -> bool:
        return self.window.kernel[0] * self.window.kernel[1] <= _MOST_UNROLLED

    def _columns(self, tile: int) -> int:
        window = self.window
        return (tile - 1) * window.strides[1] + (window.kernel[1] - 1) * window.dilations[1] + 1


_PLACE = """  unsigned int rest = blockIdx.x * blockDim.x + threadIdx.x;
  if (rest >= (unsigned int)count) return;
{indices}
  x += rest * xn + pack / {multiplier} * xc;
  y += rest * yn + pack * yc + row * yh;
  const int top = row * SH - PT, left = tile * TILE * SW - PL;"""

_ROWS_KEPT = """#pragma unroll
  for (int ky = 0; ky < KH; ++ky) {{
    const int h = top + ky * DH;
    if (h < 0 || h >= in_h) continue;
    float part[COLUMNS][V];  // of these, what no tap sees is never loaded
#pragma unroll
    for (int k = 0; k < COLUMNS; ++k) {{
      const int w = left + k;
      if (w >= 0 && w < in_w) {{
        const auto input = load<V>(x + h * xh + w * xw);
#pragma unroll
        for (int v = 0; v < V; ++v) part[k][v] = {element};
      }} else {{
#pragma unroll
        for (int v = 0; v < V; ++v) part[k][v] = {outside};
      }}
    }}
#pragma unroll
    for (int kx = 0; kx < KW; ++kx) {{
      {before}
#pragma unroll
      for (int t = 0; t < TILE; ++t)
#pragma unroll
        for (int v = 0; v < V; ++v) {{
          const float seen = part[t * SW + kx * DW][v];
          sum[t][v] = {joined};
        }}
    }}
  }}"""

_ROWS_READ_AGAIN = """  constexpr int t = 0;
#pragma unroll 1
  for (int ky = 0; ky < KH; ++ky) {{
    const int h = top + ky * DH;
    if (h < 0 || h >= in_h) continue;
#pragma unroll 1
    for (int kx = 0; kx < KW; ++kx) {{
      const int w = left + kx * DW;
      if (w < 0 || w >= in_w) continue;
      const auto input = load<V>(x + h * xh + w * xw);
      {before}
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        const float seen = {element};
        sum[t][v] = {joined};
      }}
    }}
  }}"""
