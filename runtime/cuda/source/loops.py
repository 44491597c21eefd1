"""Loops over the elements of strided tensors: which axes are one, which run fastest, how many elements go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from iosched.runtime.cuda.source.elements import MAX_ACCESS_NBYTES, item_nbytes
from iosched.runtime.plan import View

_WIDTHS = (8, 4, 2, 1)


@dataclass(frozen=True)
class Operand:
    """A tensor as a loop sees it.

    Attributes:
        strides: elements from one index of the loop to the next along each of its axes; 0 where all see the same one.
        start: elements from the tensor's first to the first that the loop sees.
        offset_nbytes: where the tensor begins in its buffer; buffers begin at multiples of 16 bytes at least.
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
    """Nested loops, the innermost last.

    Attributes:
        extents: of each axis, in elements; at least one axis.
        operands: with one stride for each axis.
    """

    extents: tuple[int, ...]
    operands: tuple[Operand, ...]

    @property
    def count(self) -> int:
        """Number of iterations."""
        return prod(self.extents)


def shape_of(view: View) -> tuple[int, ...]:
    """The shape of a view whose shape is known, as those of kernels are.

    Raises:
        ValueError: it is known only at run time.
    """
    if view.shape is None:
        raise ValueError(f"{view.buffer!r} has no static shape")
    return view.shape


def element_strides(view: View) -> tuple[int, ...]:
    """Elements from one index to the next along each axis."""
    shape = shape_of(view)
    if view.strides is None:
        return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
    nbytes = item_nbytes(view.dtype)
    return tuple(stride // nbytes for stride in view.strides)


def operand(view: View, shape: Sequence[int] | None = None) -> Operand:
    """`view` in a loop over `shape`, to which it is broadcast; over its own shape where none is given."""
    own, strides = shape_of(view), element_strides(view)
    target = own if shape is None else shape
    padded = (1,) * (len(target) - len(own)) + own
    spread = (0,) * (len(target) - len(own)) + strides
    seen = tuple(
        0 if extent == 1 and wanted != 1 else stride
        for extent, stride, wanted in zip(padded, spread, target, strict=True)
    )
    return Operand(view.dtype, seen, 0, view.offset)


def transposed(given: Operand, permutation: Sequence[int]) -> Operand:
    """Axis k of the result is axis `permutation[k]` of `given`."""
    return replace(given, strides=tuple(given.strides[axis] for axis in permutation))


def collapse(extents: Sequence[int], operands: Sequence[Operand]) -> Loop:
    """The same loop with as few axes as can be, the one on which the last operand is densest innermost.

    Axes of one index go; neighbours that all operands walk as one become one. O(axes log axes * operands).
    """
    axes = [axis for axis in range(len(extents)) if extents[axis] != 1]
    axes.sort(key=lambda axis: [-abs(given.strides[axis]) for given in reversed(operands)])
    sizes: list[int] = []
    strides: list[list[int]] = []
    for axis in axes:
        current = [given.strides[axis] for given in operands]
        if sizes and strides[-1] == [stride * extents[axis] for stride in current]:
            sizes[-1] *= extents[axis]
            strides[-1] = current
        else:
            sizes.append(extents[axis])
            strides.append(current)
    if not sizes:
        sizes, strides = [1], [[1] * len(operands)]
    found = [replace(given, strides=tuple(row[k] for row in strides)) for k, given in enumerate(operands)]
    return Loop(tuple(sizes), tuple(found))


def pack_width(loop: Loop) -> int:
    """How many neighbours of the innermost axis one thread can read and write at once: 8, 4, 2 or 1.

    Each operand either has them side by side, or sees one element for all of them; the narrowest type fills 16 bytes
    at most, and wider ones are accessed in pieces of 16 bytes.
    """
    limit = MAX_ACCESS_NBYTES // min(given.item_nbytes for given in loop.operands)
    return next(width for width in _WIDTHS if width <= limit and all(_can_pack(loop, k, width) for k in loop.operands))


def _can_pack(loop: Loop, given: Operand, width: int) -> bool:
    if width == 1:
        return True
    if loop.extents[-1] % width or given.strides[-1] not in (0, 1):
        return False
    if given.strides[-1] == 0:
        return True
    whole = all(stride % width == 0 for stride in (*given.strides[:-1], given.start))
    return whole and given.offset_nbytes % min(width * given.item_nbytes, MAX_ACCESS_NBYTES) == 0
