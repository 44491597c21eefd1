"""How tensors lie in memory: channels-last where they have four axes, row-major otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

CHANNELS_LAST_RANK = 4


def is_channels_last(shape: Sequence[int]) -> bool:
    """Whether tensors of `shape` lie channels-last: (N, C, H, W) with C varying fastest."""
    return len(shape) == CHANNELS_LAST_RANK


def strides_of(shape: Sequence[int], item_nbytes: int, pitch: int | None = None) -> tuple[int, ...]:
    """Bytes from one index to the next along each axis of `shape`.

    Args:
        pitch: bytes from pixel to pixel of a channels-last tensor, where it is a slice of a wider tensor's channels.
    """
    if not is_channels_last(shape):
        return tuple(item_nbytes * prod(shape[axis + 1 :]) for axis in range(len(shape)))
    _, channels, height, width = shape
    pixel = channels * item_nbytes if pitch is None else pitch
    return (height * width * pixel, item_nbytes, width * pixel, pixel)


def is_row_major(shape: Sequence[int], strides: Sequence[int], item_nbytes: int) -> bool:
    """Whether the elements lie in row-major order, whatever the strides of axes of one element say."""
    expected = item_nbytes
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
