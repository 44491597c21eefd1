"""How tensors lie in memory: channels-last where they have four axes, row-major otherwise. Constants are row-major."""

from __future__ import annotations

from collections.abc import Sequence

CHANNELS_LAST_RANK = 4
_CHANNELS_LAST = (0, 2, 3, 1)


def is_channels_last(shape: Sequence[int]) -> bool:
    """Whether tensors of `shape` lie channels-last: (N, C, H, W) with C varying fastest."""
    return len(shape) == CHANNELS_LAST_RANK


def memory_order(rank: int) -> tuple[int, ...]:
    """The axes of a tensor, the slowest first."""
    return _CHANNELS_LAST if rank == CHANNELS_LAST_RANK else tuple(range(rank))


def strides_of(shape: Sequence[int], item_nbytes: int, rows: int = 1, pitch: int | None = None) -> tuple[int, ...]:
    """Bytes from one index to the next along each axis of `shape`.

    Args:
        rows: of a tensor that is some columns of a table, how many rows that has: its slowest axes count them.
        pitch: bytes from row to row of that table.

    Raises:
        ValueError: the slowest axes do not make up `rows`.
    """
    strides = [0] * len(shape)
    order = memory_order(len(shape))
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


def is_row_major(shape: Sequence[int], strides: Sequence[int], item_nbytes: int) -> bool:
    """Whether the elements lie in row-major order, whatever the strides of axes of one element say."""
    expected = item_nbytes
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def row_major_strides(shape: Sequence[int], item_nbytes: int) -> tuple[int, ...] | None:
    """Explicit strides of row-major tensors where the rank would say channels-last."""
    if not is_channels_last(shape):
        return None
    strides = [item_nbytes]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * extent)
    return tuple(reversed(strides))
