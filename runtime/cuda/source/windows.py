"""Sliding windows over images: pooling and depthwise convolutions of one or two dimensions.

Neighbouring threads access neighbours in memory. In channels-last images these are packs of channels, and a thread
computes neighbours of a row, whose windows overlap. In planar images they are pixels of a row, and a thread computes
neighbours of a column: the same source on transposed images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx

from iosched.models.node_attributes import integers, padding
from iosched.runtime.cuda.kernel import Argument
from iosched.runtime.cuda.source.activation import Activation
from iosched.runtime.cuda.source.elements import C_TYPES, LOAD, loaded, preamble, stored
from iosched.runtime.cuda.source.loops import Loop, Operand, element_strides, pack_width, shape_of
from iosched.runtime.plan import View

ENOUGH_THREADS = 1 << 15
"""Threads take more work only if at least this many remain."""
_PLANES = (4, 2, 1)


@dataclass(frozen=True)
class Window:
    """A window over the spatial axes; tuples have an entry for each.

    Attributes:
        pads: all begins, then all ends.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def as_2d(self) -> Window:
        """The window over images; one dimension becomes one row."""
        if len(self.kernel) == 2:
            return self
        pads = (0, self.pads[0], 0, self.pads[1])
        return Window((1, *self.kernel), (1, *self.strides), pads, (1, *self.dilations))

    @property
    def transposed(self) -> Window:
        """The window over transposed images."""
        top, left, bottom, right = self.pads
        return Window(self.kernel[::-1], self.strides[::-1], (left, top, right, bottom), self.dilations[::-1])


@dataclass(frozen=True)
class Image:
    """A tensor (N, C, H, W), or (N, C, W) with one row; strides in elements."""

    shape: tuple[int, int, int, int]
    operand: Operand

    @classmethod
    def of(cls, view: View) -> Image:
        """`view` as images.

        Raises:
            ValueError: it has neither three nor four axes.
        """
        shape, strides = shape_of(view), element_strides(view)
        if len(shape) == 3:
            shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], 0, strides[2])
        batch, channels, height, width = shape
        return cls((batch, channels, height, width), Operand(view.dtype, strides, 0, view.offset))

    @property
    def is_planar(self) -> bool:
        """Whether neighbouring pixels are closer in memory than neighbouring channels."""
        _, channels, *extents = self.shape
        _, between_channels, *between_pixels = map(abs, self.operand.strides)
        steps = [step for step, extent in zip(between_pixels, extents, strict=True) if extent > 1]
        return bool(steps) and (channels == 1 or min(steps) < between_channels)

    @property
    def transposed(self) -> Image:
        """The image with rows and columns exchanged."""
        (n, c, h, w), (batch, channels, height, width) = self.operand.strides, self.shape
        return Image((batch, channels, width, height), replace(self.operand, strides=(n, c, w, h)))

    def over(self, shape: tuple[int, int, int, int]) -> Image:
        """The image repeated to the batch and pixels of `shape`."""
        steps = enumerate(zip(self.shape, self.operand.strides, strict=True))
        strides = tuple(0 if extent == 1 and axis != 1 else stride for axis, (extent, stride) in steps)
        return Image(shape, replace(self.operand, strides=strides))

    def steps(self, width: int) -> list[Argument]:
        """Strides of N, C, H and W; that of C for a pack of `width` channels."""
        n, c, h, w = self.operand.strides
        return [np.int64(n), np.int64(c * width), np.int64(h), np.int64(w)]


def channel_width(channels: int, *images: Image) -> int:
    """Channels of a pixel that a thread can access at once; see `loops.pack_width`."""
    seen = []
    for image in images:
        n, c, h, w = image.operand.strides
        seen.append(replace(image.operand, strides=(n, h, w, c)))
    return pack_width(Loop((1, 1, 1, channels), tuple(seen)))


def planar_width(shape: tuple[int, int, int, int]) -> int:
    """Channels of a pixel that a thread computes in planar images of `shape`, to share what they read."""
    elements = prod(shape)
    return next(
        width for width in _PLANES if width == 1 or (shape[1] % width == 0 and elements // width >= ENOUGH_THREADS)
    )


def window_of(node: onnx.NodeProto, shape: Sequence[int], kernel: Sequence[int], most_axes: int = 2) -> Window | None:
    """The window of a node that reads a tensor of `shape`; None without axes, with too many, or with negative pads."""
    rank = len(shape) - 2
    if not 1 <= rank <= most_axes or len(kernel) != rank:
        return None
    ones = (1,) * rank
    strides, dilations = integers(node, "strides", ones), integers(node, "dilations", ones)
    pads = padding(node, shape[2:], kernel)
    return None if min(pads) < 0 else Window(tuple(kernel), strides, pads, dilations)


def as_images(array: np.ndarray) -> np.ndarray:
    """(N, C, W) as (N, C, 1, W), a view."""
    return array if array.ndim == 4 else array[:, :, None, :]


def tap(padded: np.ndarray, window: Window, at: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """Inputs of the window's tap at row `at[0]` and column `at[1]` for each output of `shape`."""
    top, left = at[0] * window.dilations[0], at[1] * window.dilations[1]
    rows = slice(top, top + (shape[2] - 1) * window.strides[0] + 1, window.strides[0])
    columns = slice(left, left + (shape[3] - 1) * window.strides[1] + 1, window.strides[1])
    return padded[:, :, rows, columns]


Axis = tuple[str, str]
"""A C++ index and its extent."""


def thread_axes(planar: bool, channels: Axis, *pixels: Axis) -> tuple[Axis, ...]:
    """Axes that threads are spread over, densest first: channels, or `pixels`."""
    return (*pixels, channels) if planar else (channels, *pixels)


def indices(*axes: Axis) -> str:
    """C++ that takes an index along each of `axes`, fastest first, from `rest`."""
    return "\n".join(
        f"  const int {name} = rest % (unsigned int){extent}; rest /= (unsigned int){extent};" for name, extent in axes
    )


def constants(window: Window) -> str:
    """C++ constants KH, KW, SH, SW, PT, PL, PB, PR, DH, DW of a window of two dimensions."""
    names = ("KH", "KW", "SH", "SW", "PT", "PL", "PB", "PR", "DH", "DW")
    values = (*window.kernel, *window.strides, *window.pads, *window.dilations)
    return "constexpr int " + ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True)) + ";"


_TILES = (4, 2, 1)
_MAX_KEPT = 64  # floats of an input row in a thread's registers
_MAX_UNROLLED = 64  # taps

_PARAMETERS = """int count, int packs, int tiles, int out_h, int out_w, int in_h, int in_w, long long xn, long long xc,
    long long xh, long long xw, long long yn, long long yc, long long yh, long long yw"""


@dataclass(frozen=True)
class WindowLoop:
    """Outputs `y` of `window` over `x`, divided among threads.

    A thread computes up to four neighbours, for up to 16 bytes of contiguous channels, and reads each input row once.

    Attributes:
        window: of two dimensions; transposed, like x and y, where `planar`.
        planar: whether neighbouring threads take pixels instead of channels.
        pack: neighbouring channels of a thread.
        multiplier: channels of y for each channel of x.
        others: further images with the channels of x, and its pixels or those of y; x1, x2, and so on in C++.
    """

    window: Window
    x: Image
    y: Image
    planar: bool
    pack: int
    multiplier: int
    others: tuple[Image, ...] = ()

    @classmethod
    def of(cls, window: Window, x: Image, y: Image, others: Sequence[Image] = ()) -> WindowLoop:
        """The division that fits the strides of `y`."""
        multiplier, planar = y.shape[1] // x.shape[1], y.is_planar
        pack = channel_width(y.shape[1], x, y, *others) if multiplier == 1 else 1
        if planar:
            window, x, y = window.transposed, x.transposed, y.transposed
            others = [other.transposed for other in others]
        return cls(window, x, y, planar, pack, multiplier, tuple(others))

    @property
    def tile(self) -> int:
        """Neighbours of a thread: more share inputs, fewer make more threads."""
        if not self._is_unrolled:
            return 1
        width = self.y.shape[3]
        fitting = [tile for tile in _TILES if tile <= width and self._columns(tile) * self.pack <= _MAX_KEPT]
        return next((tile for tile in fitting if self._lines * -(-width // tile) >= ENOUGH_THREADS), 1)

    @property
    def threads(self) -> int:
        """One for each tile and pack."""
        return self._lines * self._tiles

    @property
    def arguments(self) -> list[Argument]:
        """After the addresses; see `source`."""
        _, channels, height, width = self.y.shape
        counts = (self.threads, channels // self.pack, self._tiles, height, width, *self.x.shape[2:])
        images = (self.x, self.y, *self.others)
        return [*map(np.int32, counts), *(step for image in images for step in image.steps(self.pack))]

    def source(
        self,
        entry: str,
        dtype: str,
        *,
        start: str,
        outside: str,
        joined: str,
        activation: Activation,
        total: str = "sum[t][v]",
        images: int = 1,
        relu: bool = False,
        constants: str = "",
        first: str = "",
        before: str = "",
        last: str = "",
    ) -> str:
        """C++ of a kernel that reads x, `others` and `constants`, and writes y.

        Args:
            start: first value of `sum[t][v]`.
            outside: value of missing input.
            joined: new value of `sum[t][v]`, from it and the input `seen` of a tap.
            total: the value that `activation` is applied to.
            images: that windows see the sum of: x and the first of `others`.
            relu: whether windows see this sum's ReLU.
            constants: C parameters, each before a comma.
            first: statements for the pack, before the taps.
            before: statements for the tap at row `ky`, column `kx`.
            last: statements for the pixel at `row` and `column`.
        """
        seen, numbers = ["", *range(1, images)], range(1, len(self.others) + 1)
        value, kind = " + ".join(loaded(dtype, f"input{k}.at[v]") for k in seen), C_TYPES[dtype]
        element = f"fmaxf({value}, 0.0f)" if relu else value
        loads = " ".join(f"const auto input{k} = load<V>(x{k} + h * x{k}h + w * x{k}w);" for k in seen)
        rows = (_ROWS_KEPT if self._is_unrolled else _ROWS_READ_AGAIN).format(
            element=element, outside=outside, joined=joined, before=before, loads=loads
        )
        types = [C_TYPES[other.operand.dtype] for other in self.others]
        pointers = "".join(f"const {each}* __restrict__ x{k}, " for k, each in enumerate(types, 1))
        strides = "".join(f", long long x{k}{axis}" for k in numbers for axis in "nchw")
        return f"""{self._head(dtype)}
extern "C" __global__ void {entry}(const {kind}* __restrict__ x, {pointers}{constants}{kind}* __restrict__ y,
    {_PARAMETERS}{strides}) {{
{self._place}
{first}
  float sum[TILE][V];
#pragma unroll
  for (int t = 0; t < TILE; ++t)
#pragma unroll
    for (int v = 0; v < V; ++v) sum[t][v] = {start};
{rows}
#pragma unroll
  for (int t = 0; t < TILE; ++t) {{
    const int column = tile * TILE + t;
    if (column >= out_w) continue;
{last}
    Pack<{kind}, V> result;
#pragma unroll
    for (int v = 0; v < V; ++v) {{
      const float total = {total};
      result.at[v] = {stored(dtype, activation.expression("total"))};
    }}
    *reinterpret_cast<Pack<{kind}, V>*>(y + column * yw) = result;
  }}
}}
"""

    @property
    def _place(self) -> str:
        """C++ that defines `pack`, `tile`, `row`, and the first window's `top` and `left`, and moves the images there.

        y moves to its row; x and `others` to their first pixel.
        """
        rows, columns = ("row", "out_h"), ("tile", "tiles")
        pixels = (rows, columns) if self.planar else (columns, rows)
        axes = thread_axes(self.planar, ("pack", "packs"), *pixels)
        moves = (f"  x{k} += rest * x{k}n + pack / {self.multiplier} * x{k}c;" for k in range(1, len(self.others) + 1))
        return "\n".join([_PLACE.format(indices=indices(*axes), multiplier=self.multiplier), *moves])

    def _head(self, dtype: str) -> str:
        sizes = {"V": self.pack, "TILE": self.tile, "COLUMNS": self._columns(self.tile)}
        named = ", ".join(f"{name} = {value}" for name, value in sizes.items())
        return "\n".join([preamble([dtype]), constants(self.window), f"constexpr int {named};", LOAD])

    @property
    def unroll(self) -> str:
        """Pragma before a loop over taps."""
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
        return self.window.kernel[0] * self.window.kernel[1] <= _MAX_UNROLLED

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
        {loads}
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
      {loads}
      {before}
#pragma unroll
      for (int v = 0; v < V; ++v) {{
        const float seen = {element};
        sum[t][v] = {joined};
      }}
    }}
  }}"""
