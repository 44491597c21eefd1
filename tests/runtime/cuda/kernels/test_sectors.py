"""Memory sectors that a kernel moves: planar images take as few as channels-last ones."""

from __future__ import annotations

from collections.abc import Callable

import gpu_kernels
import numpy as np
import pytest
from host_cuda import Placed, blank, needs_compiler, put, weight
from node_kernels import normal
from traced_kernels import Moved, moved

from iosched.runtime.cuda.kernel import CudaCall, Pointer, SourceKernel
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.lrn import Lrn
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.kernels.resize import Resize
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.kernels.softmax import Softmax
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source import windows
from iosched.runtime.cuda.source.windows import Window

pytestmark = [needs_compiler, pytest.mark.skipif(gpu_kernels.ON_GPU, reason="accesses are recorded on the host")]

SHAPE = (2, 16, 17, 17)
PIXELS = (1, 1, 1, 1)


def moved_by(statements: str, tensors: list[Placed], threads: int = 32) -> Moved:
    source = f'extern "C" __global__ void made(const float* __restrict__ x, float* __restrict__ y) {{ {statements} }}'
    return moved(CudaCall(source, "made", (1, 1, 1), (threads, 1, 1), (Pointer(0), Pointer(1))), tensors)


@pytest.mark.parametrize(("stride", "sectors"), [(0, 1), (1, 4), (2, 8), (8, 32), (20, 32)])
def test_a_warp_reads_sectors_of_eight_floats(stride: int, sectors: int) -> None:
    tensors = [put(normal(1024)), blank((1024,))]
    assert moved_by(f"y[threadIdx.x] = x[threadIdx.x * {stride}];", tensors) == Moved(
        1, 2, sectors + 4, sectors + 4, 0, 0
    )


def test_each_round_of_a_loop_and_each_warp_is_a_request() -> None:
    """Threads that leave a round out take part in the same one later."""
    loop = "for (int k = 0; k < 3; ++k) { if (k != threadIdx.x % 3) y[threadIdx.x] = x[k * 32]; }"
    found = moved_by(loop, [put(normal(1024)), blank((1024,))], threads=64)
    assert (found.requests, found.sectors, found.distinct_sectors) == (12, 6 + 24, 3 + 8)


@pytest.mark.parametrize(("stride", "passes"), [(1, 1), (2, 2), (4, 4), (32, 32), (33, 1), (0, 1)])
def test_words_of_one_bank_take_a_pass_each(stride: int, passes: int) -> None:
    statements = f"__shared__ float s[2048]; s[threadIdx.x * {stride}] = 1.0f; __syncthreads(); y[0] = x[0];"
    found = moved_by(statements, [put(normal(8)), blank((8,))])
    assert (found.shared_passes, found.least_shared_passes) == (passes, 1)


def test_a_quarter_of_a_warp_takes_sixteen_bytes_each_at_once() -> None:
    statements = """struct alignas(16) Four { float at[4]; }; __shared__ Four s[32 * 9];
    s[threadIdx.x * 9] = Four{}; s[threadIdx.x * 8] = Four{}; __syncthreads(); y[0] = x[0];"""
    found = moved_by(statements, [put(normal(8)), blank((8,))])
    assert (found.shared_passes, found.least_shared_passes) == (4 + 4 * 8, 8)


def counted(
    kernel: SourceKernel, y_shape: tuple[int, ...], *constants: Placed, layout: Layout, most_blocks: int = 1000
) -> Moved:
    x, y = put(normal(*SHAPE), layout=layout), blank(y_shape, layout=layout)
    call = kernel.call([x.view, *(each.view for each in constants)], [y.view])
    return moved(call, [x, *constants, y], most_blocks)


def pooled(*, layout: Layout) -> Moved:
    return counted(Pool(Window((3, 3), (1, 1), PIXELS, (1, 1)), average=True), SHAPE, layout=layout)


def pooled_to_half(*, layout: Layout) -> Moved:
    return counted(Pool(Window((3, 3), (2, 2), (0, 0, 0, 0), (1, 1)), average=False), (2, 16, 8, 8), layout=layout)


def convolved(*, layout: Layout) -> Moved:
    return counted(Depthwise(Window((3, 3), (1, 1), PIXELS, (1, 1))), SHAPE, weight(normal(3, 3, 16)), layout=layout)


def resized(*, layout: Layout) -> Moved:
    places = np.repeat(np.arange(17, dtype=np.int32), 2)[:, None]
    tables = [weight(places), weight(np.ones(places.shape, np.float32))] * 2
    return counted(Resize(1), (2, 16, 34, 34), *tables, layout=layout)


def normalized(*, layout: Layout) -> Moved:
    return counted(Lrn(5, 1e-4, 0.75, 1.0), SHAPE, layout=layout)


def averaged(*, layout: Layout) -> Moved:
    return counted(Reduce("Mean", (2, 3)), (2, 16, 1, 1), layout=layout)


def normalized_by_pixels(*, layout: Layout) -> Moved:
    return counted(Softmax((1,)), SHAPE, layout=layout)


def separated(*, layout: Layout) -> Moved:
    kernel = Separable(Window((5, 5), (1, 1), (2, 2, 2, 2), (1, 1)), relu=True)
    constants = [weight(normal(5, 5, 16)), weight(normal(128, 128)), weight(normal(16))]
    return counted(kernel, SHAPE, *constants, layout=layout, most_blocks=6)


@pytest.mark.parametrize(
    ("made", "most", "most_distinct"),
    [
        (pooled, 1.65, 1),
        (pooled_to_half, 2.6, 1),
        (convolved, 1.65, 1.05),
        (resized, 1.45, 1),
        (averaged, 1.3, 1.1),
        (normalized_by_pixels, 1.25, 1.25),
        (separated, 1.45, 1.15),
        (normalized, 1.1, 3),  # a block has few channels, and reads those around them too
    ],
)
def test_planar_images_take_about_as_many_sectors(
    made: Callable[..., Moved], most: float, most_distinct: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 17 floats begin anywhere in a sector; of those that a stride of 2 leaves out, others read the rest."""
    monkeypatch.setattr(windows, "ENOUGH_THREADS", 1)
    channels_last, planar = (made(layout=layout) for layout in Layout)
    assert planar.sectors <= most * channels_last.sectors
    assert planar.distinct_sectors <= most_distinct * channels_last.distinct_sectors


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("made", [averaged, normalized_by_pixels])
def test_threads_that_share_rows_cause_no_bank_conflicts(made: Callable[..., Moved], layout: Layout) -> None:
    found = made(layout=layout)
    assert found.shared_passes == found.least_shared_passes > 0


def test_planar_separable_convolutions_have_few_bank_conflicts() -> None:
    """Slabs are filled and read, and results read, in as few passes as possible; see `Product.write` for the rest."""
    planar = separated(layout=Layout.NCHW)
    assert planar.shared_passes < 2 * planar.least_shared_passes
