"""Windows that slide over images: pooling and depthwise convolutions of one or two dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import onnx

from iosched.models.node_attributes import integers, padding
from iosched.runtime.cuda.kernel import Argument
from iosched.runtime.cuda.source.loops import Loop, Operand, element_strides, pack_width, shape_of
from iosched.runtime.plan import View

ENOUGH_THREADS = 1 << 15
"""Where fewer would be left, a thread does not do the work of several."""
_PLANES = (4, 2, 1)


@dataclass(frozen=True)
class Window:
    """A window over the axes behind batch and channels; all of its tuples have one entry for each of those.

    Attributes:
        pads: begins of all axes, then ends.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]

    @property
    def lifted(self) -> Window:
        """The same window over images: a line becomes an image of one row."""
        if len(self.kernel) == 2:
            return self
        pads = (0, self.pads[0], 0, self.pads[1])
        return Window((1, *self.kernel), (1, *self.strides), pads, (1, *self.dilations))

    @property
    def turned(self) -> Window:
        """The same window over images whose rows and columns are exchanged; it has two dimensions."""
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
        """Whether pixels of one channel lie closer to each other than channels of one pixel do."""
        _, channels, *extents = self.shape
        _, between_channels, *between_pixels = map(abs, self.operand.strides)
        steps = [step for step, extent in zip(between_pixels, extents, strict=True) if extent > 1]
        return bool(steps) and (channels == 1 or min(steps) < between_channels)

    @property
    def turned(self) -> Image:
        """The same image with rows and columns exchanged."""
        (n, c, h, w), (batch, channels, height, width) = self.operand.strides, self.shape
        return Image((batch, channels, width, height), replace(self.operand, strides=(n, c, w, h)))

    def steps(self, width: int) -> list[Argument]:
        """Strides of N, C, H and W, that of C from one pack of `width` channels to the next."""
        n, c, h, w = self.operand.strides
        return [np.int64(n), np.int64(c * width), np.int64(h), np.int64(w)]


def channel_width(channels: int, *images: Image) -> int:
    """How many channels of one pixel a thread can read and write at once; see `loops.pack_width`."""
    seen = []
    for image in images:
        n, c, h, w = image.operand.strides
        seen.append(replace(image.operand, strides=(n, h, w, c)))
    return pack_width(Loop((1, 1, 1, channels), tuple(seen)))


def channels_apart(shape: tuple[int, int, int, int]) -> int:
    """How many channels of one pixel a thread makes in planar images of `shape`, for what it reads for all of them."""
    elements = prod(shape)
    return next(
        width for width in _PLANES if width == 1 or (shape[1] % width == 0 and elements // width >= ENOUGH_THREADS)
    )


def window_of(node: onnx.NodeProto, shape: Sequence[int], kernel: Sequence[int], most_axes: int = 2) -> Window | None:
    """The window of a node that reads a tensor of `shape`.

    None where it has no axes, or more than `most_axes`, or cuts off pixels.
    """
    rank = len(shape) - 2
    if not 1 <= rank <= most_axes or len(kernel) != rank:
        return None
    ones = (1,) * rank
    strides, dilations = integers(node, "strides", ones), integers(node, "dilations", ones)
    pads = padding(node, shape[2:], kernel)
    return None if min(pads) < 0 else Window(tuple(kernel), strides, pads, dilations)


def as_images(array: np.ndarray) -> np.ndarray:
    """(N, C, W) as (N, C, 1, W); a view."""
    return array if array.ndim == 4 else array[:, :, None, :]


def tap(padded: np.ndarray, window: Window, at: Sequence[int], shape: Sequence[int]) -> np.ndarray:
    """What the tap in row `at[0]` and column `at[1]` of the window sees for each output of `shape`."""
    top, left = at[0] * window.dilations[0], at[1] * window.dilations[1]
    rows = slice(top, top + (shape[2] - 1) * window.strides[0] + 1, window.strides[0])
    columns = slice(left, left + (shape[3] - 1) * window.strides[1] + 1, window.strides[1])
    return padded[:, :, rows, columns]


Axis = tuple[str, str]
"""An index in C++ and its extent."""


def shared_out(planar: bool, channels: Axis, *pixels: Axis) -> tuple[Axis, ...]:
    """The axes along which threads are neighbours, first those that lie side by side: channels, or `pixels`."""
    return (*pixels, channels) if planar else (channels, *pixels)


def indices(*axes: Axis) -> str:
    """C++ that takes an index along each of `axes`, the fastest first, from `rest`."""
    return "\n".join(
        f"  const int {name} = rest % (unsigned int){extent}; rest /= (unsigned int){extent};" for name, extent in axes
    )


def constants(window: Window) -> str:
    """C++ constants KH, KW, SH, SW, PT, PL, PB, PR, DH, DW of a window of two dimensions."""
    names = ("KH", "KW", "SH", "SW", "PT", "PL", "PB", "PR", "DH", "DW")
    values = (*window.kernel, *window.strides, *window.pads, *window.dilations)
    return "constexpr int " + ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True)) + ";"
