"""Copies between layouts and types: transposes, reshapes, slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import onnx

from iosched.models.node_attributes import integers
from iosched.runtime.cuda.builder import Builder
from iosched.runtime.cuda.kernel import Argument, CudaCall, Pointer
from iosched.runtime.cuda.source.elements import C_TYPES, loaded, preamble, stored
from iosched.runtime.cuda.source.loops import Operand, collapse, operand, shape_of, transposed
from iosched.runtime.cuda.source.pointwise import copies_call, launch, pointwise_call
from iosched.runtime.plan import View

_TILE = 32
_TILE_ROWS = 8
_MIN_TILED = 16  # shorter axes leave most of a tile idle

MAX_PAIRS = 16
"""Their arguments stay below the 4 kB of a launch."""


@dataclass(frozen=True)
class Copy:
    """y = x between any strides and types; changes of memory order go through shared memory in tiles.

    Floats become integers by truncation. Changes are made in the order of the attributes. Without changes, there may be
    up to `MAX_PAIRS` pairs of x and y, all of one type.

    Attributes:
        permutation: axis k of the copy is axis `permutation[k]` of x.
        reshapes: whether elements are reshaped to y in row-major order.
        axis, start: copies only y's extent along `axis`, from index `start`.
    """

    permutation: tuple[int, ...] | None = None
    reshapes: bool = False
    axis: int = 0
    start: int = 0

    def interpret(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """See the class."""
        for x, y in zip(reads, writes, strict=True):
            self._write(x, y)

    def _write(self, x: np.ndarray, y: np.ndarray) -> None:
        if self.permutation is not None:
            x = x.transpose(self.permutation)
        if self.reshapes:
            x = x.reshape(y.shape)
        elif x.ndim:
            index = [slice(None)] * x.ndim
            index[self.axis] = slice(self.start, self.start + y.shape[self.axis])
            x = x[tuple(index)]
        y[...] = x.astype(y.dtype)

    def call(self, reads: Sequence[View], writes: Sequence[View]) -> CudaCall:
        """See `SourceKernel.call`."""
        if len(reads) > 1:
            views = map(_as_known_types, reads, writes)
            return copies_call([collapse(shape_of(y), [operand(x), operand(y)]) for x, y in views], entry="copy_pairs")
        x, y = map(operand, _as_known_types(reads[0], writes[0]))
        shape, target = shape_of(reads[0]), shape_of(writes[0])
        if self.permutation is not None:
            x = transposed(x, self.permutation)
            shape = tuple(shape[axis] for axis in self.permutation)
        if self.reshapes and shape != target:
            return _reshape_call(shape, x, target, y)
        if shape:
            x = replace(x, start=self.start * x.strides[self.axis])
        return _copy_call(target, x, y)


def _as_known_types(x: View, y: View) -> tuple[View, View]:
    """Types without a C type as unsigned integers of the same size."""
    if x.dtype in C_TYPES or x.dtype != y.dtype:
        return x, y
    bits = f"uint{8 * np.dtype(x.dtype).itemsize}"
    return replace(x, dtype=bits), replace(y, dtype=bits)


def lower(builder: Builder, node: onnx.NodeProto) -> bool:
    """Transpose."""
    rank = len(builder.shape(node.input[0]))
    builder.emit(Copy(permutation=integers(node, "perm", range(rank)[::-1])), node.input[:1], node.output)
    return True


def _copy_call(extents: Sequence[int], x: Operand, y: Operand) -> CudaCall:
    loop = collapse(extents, [x, y])
    tiled_axis = _tiled_axis(loop.extents, loop.operands[0], loop.operands[1])
    if tiled_axis is None:
        return pointwise_call(extents, [x], y, "const auto y = x0;", entry="copy")
    return _tiled_call(loop.extents, tiled_axis, *loop.operands)


def _tiled_axis(extents: Sequence[int], x: Operand, y: Operand) -> int | None:
    """The axis on which x is dense while y is dense on the last; None where a plain copy is as good."""
    if len(extents) not in (2, 3) or y.strides[-1] != 1 or abs(x.strides[-1]) <= 1 or extents[-1] < _MIN_TILED:
        return None
    dense = [axis for axis in range(len(extents) - 1) if x.strides[axis] == 1 and extents[axis] >= _MIN_TILED]
    return dense[0] if dense else None


def _tiled_call(extents: tuple[int, ...], axis: int, x: Operand, y: Operand) -> CudaCall:
    outer = next((other for other in range(len(extents) - 1) if other != axis), None)
    batch = 1 if outer is None else extents[outer]
    across, along = extents[axis], extents[-1]
    tiles_across, tiles_along = -(-across // _TILE), -(-along // _TILE)
    sizes = (across, along, tiles_across, tiles_along)
    arguments: list[Argument] = [Pointer(0), Pointer(1), *map(np.int32, sizes)]
    for tensor, step in ((x, x.strides[-1]), (y, y.strides[axis])):
        image = 0 if outer is None else tensor.strides[outer]
        arguments += [np.int64(tensor.start), np.int64(image), np.int64(step)]
    source = _TILED.format(
        preamble=preamble([x.dtype, y.dtype]),
        x_type=C_TYPES[x.dtype],
        y_type=C_TYPES[y.dtype],
        value=stored(y.dtype, loaded(x.dtype, "tile[threadIdx.x][k]")),
        tile=_TILE,
        rows=_TILE_ROWS,
    )
    # Along x only: y and z allow fewer blocks.
    grid = (batch * tiles_across * tiles_along, 1, 1)
    return CudaCall(source, "copy_tiled", grid, (_TILE, _TILE_ROWS, 1), tuple(arguments))


def _reshape_call(shape: Sequence[int], x: Operand, target: Sequence[int], y: Operand) -> CudaCall:
    parts = common_factors(shape, target)
    if parts is not None:
        return _copy_call(parts, _split(x, shape, parts), _split(y, target, parts))
    x_loop, y_loop = _row_major_loop(shape, x), _row_major_loop(target, y)
    arguments: list[Argument] = [Pointer(0), Pointer(1), np.int32(np.prod(target, dtype=np.int64))]
    for extents, strides in (x_loop, y_loop):
        arguments += [np.int32(extent) for extent in extents[1:]]
        arguments += [np.int64(stride) for stride in strides]
    source = _reshape_source(x.dtype, y.dtype, len(x_loop[0]), len(y_loop[0]))
    return launch(source, "copy_reshaped", int(np.prod(target, dtype=np.int64)), arguments)


def common_factors(first: Sequence[int], second: Sequence[int]) -> tuple[int, ...] | None:
    """The coarsest shape from which both shapes result by joining neighbours; None if there is none.

    Example: (2, 3, 4) for (2, 12) and (2, 3, 4); none for (4, 6) and (6, 4).
    """
    left, right = [extent for extent in first if extent != 1], [extent for extent in second if extent != 1]
    left.reverse()
    right.reverse()
    found: list[int] = []
    while left and right:
        a, b = left.pop(), right.pop()
        common = min(a, b)
        if gcd(a, b) != common:
            return None
        found.append(common)
        if a > common:
            left.append(a // common)
        if b > common:
            right.append(b // common)
    return tuple(found)


def _split(tensor: Operand, shape: Sequence[int], parts: Sequence[int]) -> Operand:
    strides: list[int] = []
    remaining = list(parts)
    for extent, stride in zip(shape, tensor.strides, strict=True):
        left = extent
        while left > 1:
            left //= remaining.pop(0)
            strides.append(stride * left)
    return replace(tensor, strides=tuple(strides))


def _row_major_loop(shape: Sequence[int], tensor: Operand) -> tuple[list[int], list[int]]:
    extents: list[int] = []
    strides: list[int] = []
    for extent, stride in zip(shape, tensor.strides, strict=True):
        if extent == 1:
            continue
        if strides and strides[-1] == stride * extent:
            extents[-1] *= extent
            strides[-1] = stride
        else:
            extents.append(extent)
            strides.append(stride)
    return (extents, strides) if extents else ([1], [0])


def _reshape_source(x_dtype: str, y_dtype: str, x_rank: int, y_rank: int) -> str:
    names, walks = [], []
    for name, rank in (("x", x_rank), ("y", y_rank)):
        names += [f"int {name}e{axis}" for axis in range(1, rank)]
        names += [f"long long {name}s{axis}" for axis in range(rank)]
        walks.append(f"  unsigned int {name}_rest = index; long long {name}_at = 0;")
        for axis in reversed(range(1, rank)):
            extent = f"(unsigned int){name}e{axis}"
            walks.append(f"  {name}_at += ({name}_rest % {extent}) * {name}s{axis}; {name}_rest /= {extent};")
        walks.append(f"  {name}_at += {name}_rest * {name}s0;")
    return _RESHAPED.format(
        preamble=preamble([x_dtype, y_dtype]),
        x_type=C_TYPES[x_dtype],
        y_type=C_TYPES[y_dtype],
        names=", ".join(names),
        walks="\n".join(walks),
        value=stored(y_dtype, loaded(x_dtype, "x[x_at]")),
    )


_TILED = """{preamble}
extern "C" __global__ void copy_tiled(const {x_type}* __restrict__ x, {y_type}* __restrict__ y, int across, int along,
                                      int tiles_across, int tiles_along, long long x_start, long long x_image,
                                      long long x_along, long long y_start, long long y_image, long long y_across) {{
  __shared__ {x_type} tile[{tile}][{tile} + 1];
  const int tile_along = blockIdx.x % tiles_along;
  const int tile_across = blockIdx.x / tiles_along % tiles_across;
  const long long image = blockIdx.x / tiles_along / tiles_across;
  x += x_start + image * x_image;
  y += y_start + image * y_image;
  for (int k = threadIdx.y; k < {tile}; k += {rows}) {{
    const int a = tile_across * {tile} + threadIdx.x, b = tile_along * {tile} + k;
    if (a < across && b < along) tile[k][threadIdx.x] = x[a + b * x_along];
  }}
  __syncthreads();
  for (int k = threadIdx.y; k < {tile}; k += {rows}) {{
    const int a = tile_across * {tile} + k, b = tile_along * {tile} + threadIdx.x;
    if (a < across && b < along) y[a * y_across + b] = {value};
  }}
}}
"""

_RESHAPED = """{preamble}
extern "C" __global__ void copy_reshaped(const {x_type}* __restrict__ x, {y_type}* __restrict__ y, int count,
                                         {names}) {{
  const unsigned int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= (unsigned int)count) return;
{walks}
  y[y_at] = {value};
}}
"""
