"""Memory layouts: NHWC or NCHW for feature maps, row-major for other tensors.

Constants are row-major; the axes of a convolution's filter are in the order of the feature maps' layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from iosched.runtime.cuda.kernel import Gpu
from iosched.scheduler.precision import PrecisionName

_IMAGE_RANK = 4
_CHANNELS_LAST = (0, 2, 3, 1)
_AMPERE = 80


class Layout(StrEnum):
    """Layout of tensors of shape (N, C, H, W); tensors of other ranks are row-major in both."""

    NHWC = "nhwc"  # channels of a pixel are contiguous
    NCHW = "nchw"  # row-major: pixels of a channel are contiguous

    def memory_order(self, rank: int) -> tuple[int, ...]:
        """Axes from slowest to fastest."""
        return _CHANNELS_LAST if self is Layout.NHWC and rank == _IMAGE_RANK else tuple(range(rank))

    def is_row_major(self, rank: int) -> bool:
        """Whether tensors of that rank are row-major."""
        return self.memory_order(rank) == tuple(range(rank))

    def strides_of(
        self, shape: Sequence[int], item_nbytes: int, rows: int = 1, pitch: int | None = None
    ) -> tuple[int, ...]:
        """Strides in bytes of `shape`.

        Args:
            rows: for a tensor stored as columns of a table, the table's rows, which its slowest axes count.
            pitch: bytes from one row of the table to the next.

        Raises:
            ValueError: the slowest axes do not make up `rows`.
        """
        strides = [0] * len(shape)
        order = self.memory_order(len(shape))
        counted, first_column_axis = 1, 0
        while pitch is not None and counted < rows:
            if first_column_axis == len(order):
                raise ValueError(f"{tuple(shape)} does not divide into {rows} rows")
            counted *= shape[order[first_column_axis]]
            first_column_axis += 1
        if pitch is not None and counted != rows:
            raise ValueError(f"{tuple(shape)} does not divide into {rows} rows")
        step = item_nbytes
        for position in reversed(range(len(order))):
            if pitch is not None and position == first_column_axis - 1:
                step = pitch
            strides[order[position]] = step
            step *= shape[order[position]]
        return tuple(strides)


def preferred_layout(precision: PrecisionName, gpu: Gpu) -> Layout:
    """The layout for models that have not been timed: the one in which cuDNN's tuned engines convert no tensors.

    Engines for strict float32 on capability 8.0 and newer prefer NCHW; those for tensor cores or older GPUs prefer
    NHWC. Counted on simulated GPUs, `benchmarks/results/cudnn-layouts-*.json`.
    """
    return Layout.NCHW if precision == "fp32" and gpu.capability >= _AMPERE else Layout.NHWC


def is_row_major(shape: Sequence[int], strides: Sequence[int], item_nbytes: int) -> bool:
    """Whether the elements are in row-major order; strides of axes of length one do not matter."""
    expected = item_nbytes
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
