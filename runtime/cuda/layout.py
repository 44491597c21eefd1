"""How tensors lie in memory: feature maps in one of two layouts, a choice of the lowering; all else row-major.

Constants are row-major too; the filter of a convolution has its axes in the order in which feature maps have theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from iosched.runtime.cuda.target import Gpu
from iosched.scheduler.precision import PrecisionName

_IMAGE_RANK = 4
_CHANNELS_LAST = (0, 2, 3, 1)
_AMPERE = 80


class Layout(StrEnum):
    """How tensors of shape (N, C, H, W) lie in memory; those of another rank lie row-major in both layouts."""

    NHWC = "nhwc"  # the channels of a pixel side by side
    NCHW = "nchw"  # row-major: the pixels of a channel side by side

    def memory_order(self, rank: int) -> tuple[int, ...]:
        """The axes of a tensor, the slowest first."""
        return _CHANNELS_LAST if self is Layout.NHWC and rank == _IMAGE_RANK else tuple(range(rank))

    def is_row_major(self, rank: int) -> bool:
        """Whether tensors of that rank lie row-major, whatever their extents."""
        return self.memory_order(rank) == tuple(range(rank))

    def strides_of(
        self, shape: Sequence[int], item_nbytes: int, rows: int = 1, pitch: int | None = None
    ) -> tuple[int, ...]:
        """Bytes from one index to the next along each axis of `shape`.

        Args:
            rows: of a tensor that is some columns of a table, how many rows that has: its slowest axes count them.
            pitch: bytes from row to row of that table.

        Raises:
            ValueError: the slowest axes do not make up `rows`.
        """
        strides = [0] * len(shape)
        order = self.memory_order(len(shape))
        counted, first_column_axis = 1, 0
        while pitch is not None and counted < rows:
            if first_column_axis == len(order):
                raise ValueError(f"{tuple(shape)} is no part of {rows} rows")
            counted *= shape[order[first_column_axis]]
            first_column_axis += 1
        if pitch is not None and counted != rows:
            raise ValueError(f"{tuple(shape)} is no part of {rows} rows")
        step = item_nbytes
        for position in reversed(range(len(order))):
            if pitch is not None and position == first_column_axis - 1:
                step = pitch
            strides[order[position]] = step
            step *= shape[order[position]]
        return tuple(strides)


def preferred_layout(precision: PrecisionName, gpu: Gpu) -> Layout:
    """The layout for what nobody has timed: the one in which cuDNN's tuned engines convert nothing on the way.

    On newer GPUs engines for strict float32 want NCHW: in NHWC nearly all of them convert their tensors in every run.
    Those that use tensor cores want NHWC, and so do engines for older GPUs, in any precision. Counted for described
    GPUs in `benchmarks/results/cudnn-layouts-*.json`.
    """
    return Layout.NCHW if precision == "fp32" and gpu.capability >= _AMPERE else Layout.NHWC


def is_row_major(shape: Sequence[int], strides: Sequence[int], item_nbytes: int) -> bool:
    """Whether the elements lie in row-major order, whatever the strides of axes of one element say."""
    expected = item_nbytes
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
