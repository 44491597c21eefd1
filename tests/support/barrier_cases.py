"""Every kernel whose threads wait for each other, on small tensors that take every branch between two barriers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from unittest import mock

import numpy as np
from host_cuda import Placed, blank, compare, put, run, transposed, weight
from node_kernels import normal

from iosched.runtime.cuda.kernel import H100, CudaCall, Gpu, Precision, SourceKernel
from iosched.runtime.cuda.kernels import batched_matmul
from iosched.runtime.cuda.kernels.batched_matmul import BatchedMatMul
from iosched.runtime.cuda.kernels.copy import Copy
from iosched.runtime.cuda.kernels.dense_row import DenseRow
from iosched.runtime.cuda.kernels.normalize import Normalize
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.kernels.separable import Separable, pointwise_weight
from iosched.runtime.cuda.kernels.softmax import Softmax
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import RELU
from iosched.runtime.cuda.source.windows import Image, Window

_SEPARABLE_TILES = ((64, 64), (32, 128), (32, 64), (32, 32), (16, 64), (16, 32))
_BARRIER = "__syncthreads();"
_TOLERANCES = {"fp32": 1e-5, "tf32": 3e-3, "fp16": 4e-3}


@dataclass(frozen=True, eq=False)
class Case:
    """A launch and the results that it has to write."""

    call: CudaCall
    kernel: SourceKernel
    reads: Sequence[Placed]
    writes: Sequence[Placed]
    tolerance: float = 1e-5

    @property
    def tensors(self) -> Sequence[Placed]:
        return (*self.reads, *self.writes)

    def run_in_turn(self, seed: int) -> None:
        """One thread after another, in an order that `seed` decides; fails where the results are wrong."""
        run(self.call, [each.address for each in self.tensors], seed=seed)
        self.compare(f"(threads in the order of seed {seed})")

    def compare(self, note: str) -> None:
        compare(self.kernel, self.reads, self.writes, self.tolerance, note)


def without_barrier(case: Case, index: int) -> Case:
    """The case with its source's `index`-th barrier left out."""
    parts = case.call.source.split(_BARRIER)
    left, right = _BARRIER.join(parts[: index + 1]), _BARRIER.join(parts[index + 1 :])
    return replace(case, call=replace(case.call, source=f"{left}/* {_BARRIER} */{right}"))


def barriers(case: Case) -> list[str]:
    """The line before each barrier of the case's source."""
    before = case.call.source.split(_BARRIER)[:-1]
    return [text.rstrip().splitlines()[-1].strip() for text in before]


def _case(kernel: SourceKernel, reads: Sequence[Placed], writes: Sequence[Placed], tolerance: float = 1e-5) -> Case:
    call = kernel.call([each.view for each in reads], [each.view for each in writes])
    return Case(call, kernel, reads, writes, tolerance)


def _copy(dtype: str) -> Case:
    """More than a tile each way, and images of which none is a multiple of tiles."""
    return _case(Copy((0, 2, 1)), [put(normal(2, 40, 48))], [blank((2, 48, 40), dtype)])


def _rows(kernel: Callable[[tuple[int, ...]], SourceKernel], across: bool) -> Case:
    """A block of rows that are not all there; with `across`, neighbouring threads have neighbouring rows."""
    shape, axes = ((2, 20, 5, 3), (2, 3)) if across else ((3, 70), (1,))
    x = put(normal(*shape))
    made = kernel(axes)
    kept = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    factors = [weight(normal(*kept)), weight(normal(*kept, seed=1))] if isinstance(made, Normalize) else []
    return _case(made, [x, *factors], [blank(kept if isinstance(made, Reduce) else shape)])


def _product(tile: batched_matmul._Tile, lies: Callable[[np.ndarray], Placed]) -> Case:
    """Three slabs, the last one not whole, and two tiles that are not."""
    depth = 2 * tile.depth + 4
    a, b = normal(1, tile.rows - 4, depth), normal(1, depth, tile.columns + 4)
    with mock.patch.object(batched_matmul, "_TILES", (tile,)):
        return _case(BatchedMatMul(RELU), [lies(a), lies(b)], [blank((1, a.shape[1], b.shape[2]))], 2e-5)


def _separable(
    precision: str, tile: tuple[int, int], size: int, stride: int, gpu: Gpu = H100, layout: Layout = Layout.NHWC
) -> Case:
    """Three slabs, so that one is filled again; the last one is not whole, as is the one tile.

    The image is a line along which a thread has neighbours: a row, or a column where it is planar.
    """
    window = Window((size, size), (stride, stride), (size // 2,) * 4, (1, 1))
    usual = Separable(window, True, RELU, Precision(precision), gpu=gpu)
    dtype = usual.precision.dtype
    line = (1, tile[0] - 3) if layout is Layout.NHWC else (tile[0] - 3, 1)
    y = blank((1, tile[1] - 8, *line), dtype, layout=layout)
    extents = (stride * line[0], stride * line[1])
    image = Image.of(y.view)
    variants = (replace(usual, variant=variant) for variant in range(18))
    kernel, form = next(
        (each, form)
        for each in variants
        if (form := each._form(Image.of(blank((1, 8, *extents), dtype, layout=layout).view), image)).tile == tile
    )
    channels = 2 * form.slab + 8
    matrix = normal(y.array.shape[1], channels, 1, 1) / np.float32(np.sqrt(channels))
    taps = normal(size, size, channels) / np.float32(size)
    weights = [weight(taps.astype(dtype)), weight(pointwise_weight(matrix, by_fma=usual.by_fma).astype(dtype))]
    x = put(normal(1, channels, *extents).astype(dtype), layout=layout)
    return _case(kernel, [x, *weights, weight(normal(len(matrix)))], [y], _TOLERANCES[precision])


def _dense_row() -> Case:
    reads = [put(normal(1, 260)), put(normal(3, 260, seed=1) / np.float32(16)), put(normal(3, seed=2))]
    return _case(DenseRow(activation=RELU), reads, [blank((1, 3), "float32")], 2e-5)


_ROWS: Mapping[str, Callable[[tuple[int, ...]], SourceKernel]] = {
    "reduce": partial(Reduce, "Mean"),
    "softmax": Softmax,
    "normalize": partial(Normalize, epsilon=1e-5),
}

CASES: Mapping[str, Callable[[], Case]] = {
    **{f"copy to {dtype}": partial(_copy, dtype) for dtype in ("float32", "float16")},
    **{f"{name} along rows": partial(_rows, kernel, False) for name, kernel in _ROWS.items()},
    **{f"{name} across rows": partial(_rows, kernel, True) for name, kernel in _ROWS.items()},
    "dense row": _dense_row,
    "product": partial(_product, batched_matmul._TILES[-1], put),
    "product of transposed": partial(_product, batched_matmul._TILES[-1], transposed),
    **{f"separable {name} in one part": partial(_separable, name, (32, 128), 3, 1) for name in _TOLERANCES},
    **{f"separable {name} in parts": partial(_separable, name, (16, 32), 7, 2) for name in _TOLERANCES},
    **{
        f"separable {name} of planar images": partial(_separable, name, tile, size, 1, layout=Layout.NCHW)
        for name, tile, size in (("fp32", (32, 64), 3), ("tf32", (16, 32), 7), ("fp16", (32, 32), 5))
    },
    "separable fp16 by FMA": partial(_separable, "fp16", (16, 32), 7, 2, Gpu(capability=70, processors=80)),
}
"""By name."""

MORE_CASES: Mapping[str, Callable[[], Case]] = {
    **{
        f"product of {tile.rows} x {tile.columns} {'transposed' if lies is transposed else ''}".strip(): partial(
            _product, tile, lies
        )
        for tile, lies in product(batched_matmul._TILES[:-1], (put, transposed))
    },
    **{
        f"separable {name} of {rows} x {wide}, {size} x {size}": partial(_separable, name, (rows, wide), size, stride)
        for name, (rows, wide), (size, stride) in product(_TOLERANCES, _SEPARABLE_TILES, ((3, 1), (7, 2)))
    },
}
"""All other tiles."""
