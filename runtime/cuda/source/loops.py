"""Loops over strided tensors: joins axes, orders them by stride, and vectorizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from iosched.runtime.cuda.source.elements import MAX_ACCESS_NBYTES, item_nbytes
from iosched.runtime.plan import View

_WIDTHS = (8, 4, 2, 1)


@dataclass(frozen=True)
class Operand:
    """A tensor in a loop.

    Attributes:
        strides: in elements, for each axis of the loop; 0 where broadcast.
        start: elements from the tensor's first to the loop's first.
        offset_nbytes: of the tensor in its buffer, which is aligned to 16 bytes.
    """

    dtype: str
    strides: tuple[int, ...]
    start: int = 0
    offset_nbytes: int = 0

    @property
    def item_nbytes(self) -> int:
        """Bytes of one element."""
        return item_nbytes(self.dtype)


@dataclass(frozen=True)
class Loop:
    """Nested loops, innermost last.

    Attributes:
        extents: of at least one axis.
        operands: with one stride for each axis.
    """

    extents: tuple[int, ...]
    operands: tuple[Operand, ...]

    @property
    def count(self) -> int:
        """Number of iterations."""
        return prod(self.extents)


def shape_of(view: View) -> tuple[int, ...]:
    """The static shape of a view.

    Raises:
        ValueError: the shape is dynamic.
    """
    if view.shape is None:
        raise ValueError(f"{view.buffer!r} has no static shape")
    return view.shape


def element_strides(view: View) -> tuple[int, ...]:
    """Strides in elements."""
    shape = shape_of(view)
    if view.strides is None:
        return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    nbytes = item_nbytes(view.dtype)
    return tuple(stride // nbytes for stride in view.strides)


def operand(view: View, shape: Sequence[int] | None = None) -> Operand:
    """`view` broadcast to `shape`, by default its own."""
    own, strides = shape_of(view), element_strides(view)
    target = own if shape is None else shape
    padded = (1,) * (len(target) - len(own)) + own
    spread = (0,) * (len(target) - len(own)) + strides
    seen = tuple(
        0 if extent == 1 and wanted != 1 else stride
        for extent, stride, wanted in zip(padded, spread, target, strict=True)
    )
    return Operand(view.dtype, seen, 0, view.offset)


def transposed(each: Operand, permutation: Sequence[int]) -> Operand:
    """The operand with axis k from axis `permutation[k]`."""
    return replace(each, strides=tuple(each.strides[axis] for axis in permutation))


def collapse(extents: Sequence[int], operands: Sequence[Operand]) -> Loop:
    """The same loop with as few axes as possible, ordered so that the last operand is densest innermost.

    Drops axes of length one and joins neighbours that are contiguous for all operands. O(axes log axes * operands).
    """
    axes = [axis for axis in range(len(extents)) if extents[axis] != 1]
    axes.sort(key=lambda axis: [-abs(each.strides[axis]) for each in reversed(operands)])
    sizes: list[int] = []
    strides: list[list[int]] = []
    for axis in axes:
        current = [each.strides[axis] for each in operands]
        if sizes and strides[-1] == [stride * extents[axis] for stride in current]:
            sizes[-1] *= extents[axis]
            strides[-1] = current
        else:
            sizes.append(extents[axis])
            strides.append(current)
    if not sizes:
        sizes, strides = [1], [[1] * len(operands)]
    found = [replace(each, strides=tuple(row[k] for row in strides)) for k, each in enumerate(operands)]
    return Loop(tuple(sizes), tuple(found))


def pack_width(loop: Loop) -> int:
    """Elements that a thread can access at once along the innermost axis: 8, 4, 2 or 1.

    Each operand has them contiguous or broadcasts one. The narrowest type fills at most 16 bytes; wider ones are
    accessed in 16-byte pieces.
    """
    limit = MAX_ACCESS_NBYTES // min(each.item_nbytes for each in loop.operands)
    return next(width for width in _WIDTHS if width <= limit and all(_can_pack(loop, k, width) for k in loop.operands))


def _can_pack(loop: Loop, each: Operand, width: int) -> bool:
    if width == 1:
        return True
    if loop.extents[-1] % width or each.strides[-1] not in (0, 1):
        return False
    if each.strides[-1] == 0:
        return True
    whole = all(stride % width == 0 for stride in (*each.strides[:-1], each.start))
    return whole and each.offset_nbytes % min(width * each.item_nbytes, MAX_ACCESS_NBYTES) == 0
