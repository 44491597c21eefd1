"""Pooling: onnxruntime's numbers for every way to pad, and the source that a GPU runs."""

from __future__ import annotations

from math import ceil, floor

import numpy as np
import pytest
from host_cuda import blank, check, needs_compiler, put
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from node_kernels import FP16, lowered, normal
from onnx import helper

from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source import windows
from iosched.runtime.cuda.source.windows import Window

pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@given(
    st.sampled_from(["AveragePool", "MaxPool"]),
    pairs,
    pairs,
    st.tuples(*[st.integers(0, 2)] * 4),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.booleans(),
    st.booleans(),
    st.integers(6, 8),
)
def test_results_equal_onnxruntimes(
    kind: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, ...],
    dilations: tuple[int, int],
    ceils: bool,
    counts_pads: bool,
    extent: int,
) -> None:
    assume(all(pad < size for pad, size in zip(pads, (*kernel, *kernel), strict=True)))
    more = {"count_include_pad": int(counts_pads)} if kind == "AveragePool" else {}
    node = helper.make_node(kind, ["x"], ["y"], kernel_shape=kernel, strides=strides, pads=pads, dilations=dilations,
                            ceil_mode=int(ceils), **more)  # fmt: skip
    lowered(node, {"x": normal(2, 3, extent, extent + 1)}, opset=19).compare()


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_automatic_padding(kind: str, mode: str, dilation: int) -> None:
    window = {"kernel_shape": [3, 2], "strides": [2, 2], "dilations": [dilation] * 2}
    node = helper.make_node(kind, ["x"], ["y"], auto_pad=mode, **window)
    lowered(node, {"x": normal(2, 3, 8, 7)}, opset=19).compare()


@needs_compiler
@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_lines_and_half_precision(kind: str) -> None:
    line = helper.make_node(kind, ["x"], ["y"], kernel_shape=[3], strides=[2], pads=[1, 1])
    lowered(line, {"x": normal(2, 5, 9)}).compare(on_host=True)
    image = helper.make_node(kind, ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    lowered(image, {"x": normal(2, 24, 5, 5)}, precision=FP16).compare(on_host=True, before=8)


def test_pools_that_cut_off_pixels_are_left_to_onnxruntime() -> None:
    node = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[1, 1], strides=[4, 4], auto_pad="SAME_UPPER")
    assert not lowered(node, {"x": normal(1, 2, 7, 7)}, opset=19).calls


def test_indices_and_volumes_are_left_to_onnxruntime() -> None:
    indices = helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])
    assert not lowered(indices, {"x": normal(1, 2, 4, 4)}, output_dtypes=("float32", "int64")).calls
    volume = helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2, 2])
    assert not lowered(volume, {"x": normal(1, 2, 4, 4, 4)}).calls


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize(("average", "counts_pads"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize(("size", "stride"), [(3, 1), (2, 2), (9, 1)])
def test_source(average: bool, counts_pads: bool, size: int, stride: int, layout: Layout) -> None:
    pad = size // 2
    window = Window((size, size), (stride, stride), (pad, pad, pad, 0), (1, 1))
    kernel = Pool(window, average, counts_pads)
    for channels, before in ((16, 0), (16, 4), (6, 1)):
        x = put(normal(2, channels, 9, 8), before=before, layout=layout)
        extents = [(extent + sum_ - size) // stride + 1 for extent, sum_ in ((9, 2 * pad), (8, pad))]
        check(kernel, [x], [blank((2, channels, *extents), before=before, after=2, layout=layout)])


@needs_compiler
@settings(max_examples=8)
@given(
    st.builds(
        Window,
        st.tuples(st.integers(1, 3), st.integers(1, 3)),
        st.tuples(st.integers(1, 2), st.integers(1, 2)),
        st.tuples(*[st.integers(0, 1)] * 4),
        st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(5, 7),
    st.integers(5, 7),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_source_of_slices_of_planar_images(
    window: Window,
    average: bool,
    counts_pads: bool,
    ceils: bool,
    height: int,
    width: int,
    channels: int,
    before: int,
) -> None:
    """Windows with different rows and columns, of which the last ones may reach beyond the padding."""
    assume(all(pad < size for pad, size in zip(window.pads, (*window.kernel, *window.kernel), strict=True)))
    extents = [
        (size + window.pads[axis] + window.pads[axis + 2] - window.dilations[axis] * (window.kernel[axis] - 1) - 1)
        / window.strides[axis]
        for axis, size in enumerate((height, width))
    ]
    target = [(ceil if ceils else floor)(extent) + 1 for extent in extents]
    starts = zip(target, window.strides, window.pads, (height, width), strict=False)
    assume(all((last - 1) * stride - pad < size for last, stride, pad, size in starts))  # none sees padding alone
    x = put(normal(2, channels, height, width), before=before, after=1, layout=Layout.NCHW)
    y = blank((2, channels, *target), before=before, after=2, layout=Layout.NCHW)
    check(Pool(window, average, counts_pads and average), [x], [y])


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("tile", [2, 4])
def test_source_of_tiles(tile: int, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tile of a row is not whole."""
    monkeypatch.setattr(windows, "ENOUGH_THREADS", 1)
    monkeypatch.setattr(windows, "_TILES", (tile, 1))
    kernel = Pool(Window((2, 3), (1, 1), (0, 1, 1, 1), (1, 1)), average=True)
    check(kernel, [put(normal(2, 6, 7, 7), layout=layout)], [blank((2, 6, 7, 7), layout=layout)])


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
def test_source_of_windows_beyond_the_padding(layout: Layout) -> None:
    kernel = Pool(Window((3, 3), (2, 2), (0, 0, 0, 0), (1, 1)), average=True, counts_pads=True)
    y = blank((1, 4, 4, 4), layout=layout)
    x = normal(1, 4, 8, 8)
    check(kernel, [put(x, layout=layout)], [y])
    kernel.interpret([x], [y.array])
    np.testing.assert_allclose(y.array[0, 0, -1, -1], x[0, 0, 6:, 6:].mean(), rtol=1e-6)
