"""Depthwise convolutions: numbers, layouts, and the source that a GPU runs."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import Placed, blank, check, needs_compiler, put, weight
from hypothesis import given
from hypothesis import strategies as st
from node_kernels import normal
from onnx import helper
from small_models import proto_of

from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source import windows
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.windows import Image, Window, WindowLoop
from iosched.runtime.reference import Reference


def output_extent(kernel: Depthwise, axis: int, extent: int) -> int:
    window = kernel.window
    rank = len(window.kernel)
    padded = extent + window.pads[axis] + window.pads[axis + rank]
    return (padded - window.dilations[axis] * (window.kernel[axis] - 1) - 1) // window.strides[axis] + 1


def output_shape(kernel: Depthwise, shape: tuple[int, ...], multiplier: int = 1) -> tuple[int, ...]:
    spatial = (output_extent(kernel, axis, extent) for axis, extent in enumerate(shape[2:]))
    return (shape[0], shape[1] * multiplier, *spatial)


def by_onnxruntime(kernel: Depthwise, x: np.ndarray, values: np.ndarray, bias: np.ndarray) -> np.ndarray:
    window = kernel.window
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], kernel_shape=window.kernel, strides=window.strides,
                            pads=window.pads, dilations=window.dilations, group=x.shape[1])  # fmt: skip
    with Reference(proto_of([node], {"x": x.shape}, ["y"], {"w": values, "b": bias}).SerializeToString()) as reference:
        y = reference.run({"x": np.maximum(x, 0) if kernel.relu else x})["y"]
    return kernel.activation(y)


kernels = st.builds(
    Depthwise,
    st.builds(
        Window,
        st.tuples(st.integers(1, 4), st.integers(1, 4)),
        st.tuples(st.integers(1, 3), st.integers(1, 3)),
        st.tuples(*[st.integers(0, 3)] * 4),
        st.tuples(st.integers(1, 2), st.integers(1, 2)),
    ),
    st.booleans(),
    st.sampled_from([IDENTITY, RELU, Activation("Clip", 0, 0.5)]),
)


@given(kernels, st.sampled_from([1, 3]), st.integers(1, 5), st.integers(1, 2), st.integers(7, 9))
def test_the_reference_equals_onnxruntime(
    kernel: Depthwise, batch: int, channels: int, multiplier: int, extent: int
) -> None:
    x, values = normal(batch, channels, extent, extent + 1), normal(channels * multiplier, 1, *kernel.window.kernel)
    bias = normal(channels * multiplier)
    y = np.empty(output_shape(kernel, x.shape, multiplier), np.float32)
    kernel.interpret([x, depthwise_weight(values), bias], [y])
    np.testing.assert_allclose(y, by_onnxruntime(kernel, x, values, bias), rtol=1e-5, atol=1e-5)


def check_source(
    kernel: Depthwise, x: Placed, dtype: str, *, multiplier: int = 1, bias: bool = True, after: int = 0
) -> None:
    channels = x.array.shape[1] * multiplier
    values = weight(depthwise_weight(normal(channels, 1, *kernel.window.kernel).astype(dtype)))
    reads = [x, values, weight(normal(channels))] if bias else [x, values]
    layout = Layout.NCHW if Image.of(x.view).is_planar else Layout.NHWC
    y = blank(output_shape(kernel, x.array.shape, multiplier), dtype, before=8, after=after, layout=layout)
    check(kernel, reads, [y])


@needs_compiler
@pytest.mark.parametrize(
    ("dtype", "layout"), [("float32", Layout.NHWC), ("float16", Layout.NHWC), ("float32", Layout.NCHW)]
)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_source_of_the_usual_sizes(size: int, stride: int, dtype: str, layout: Layout) -> None:
    kernel = Depthwise(Window((size, size), (stride, stride), (size // 2,) * 4, (1, 1)), relu=True)
    for batch, channels in ((1, 16), (3, 16)):
        check_source(kernel, put(normal(batch, channels, 9, 11).astype(dtype), layout=layout), dtype)


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("channels", [42, 44, 3])
def test_source_of_every_access_width_that_channels_and_offsets_allow(channels: int, layout: Layout) -> None:
    kernel = Depthwise(Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1)), activation=RELU)
    for before in (0, 1, 2):
        x = put(normal(2, channels, 5, 5), before=before, after=before, layout=layout)
        check_source(kernel, x, "float32", after=before)


@pytest.mark.parametrize("layout", Layout)
def test_many_pixels_use_large_tiles(layout: Layout) -> None:
    window = Window((3, 3), (1, 1), (1, 1, 1, 1), (1, 1))

    def tile(batch: int) -> int:
        image = Image.of(blank((batch, 64, 24, 24), layout=layout).view)
        return WindowLoop.of(window, image, image).tile

    assert [tile(batch) for batch in ((1, 2, 4) if layout is Layout.NCHW else (4, 8, 16))] == [1, 2, 4]


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("tile", [2, 4])
def test_source_of_tiles(tile: int, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tile of a row is not whole."""
    monkeypatch.setattr(windows, "ENOUGH_THREADS", 1)
    monkeypatch.setattr(windows, "_TILES", (tile, 1))
    kernel = Depthwise(Window((3, 3), (2, 1), (1, 0, 2, 1), (1, 1)))
    check_source(kernel, put(normal(2, 8, 14, 8), layout=layout), "float32")


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
def test_source_of_rare_forms(layout: Layout) -> None:
    def images(*shape: int) -> Placed:
        return put(normal(*shape), layout=layout)

    asymmetric = Depthwise(Window((2, 4), (2, 1), (0, 2, 1, 1), (2, 1)), True, Activation("HardSwish"))
    check_source(asymmetric, images(2, 8, 9, 8), "float32")
    check_source(asymmetric, images(2, 3, 9, 8), "float32", multiplier=2)
    large = Depthwise(Window((13, 11), (1, 1), (6, 5, 6, 5), (1, 1)), relu=True)
    check_source(large, images(1, 8, 9, 8), "float32")
    check_source(Depthwise(Window((3,), (2,), (1, 0), (1,))), images(2, 8, 9), "float32", bias=False)


@needs_compiler
@pytest.mark.parametrize(("before", "after"), [tuple(Layout), tuple(Layout)[::-1]])
def test_source_between_layouts(before: Layout, after: Layout) -> None:
    kernel = Depthwise(Window((3, 2), (2, 1), (1, 0, 0, 1), (1, 2)), relu=True)
    x = put(normal(2, 8, 9, 7), layout=before)
    values = weight(depthwise_weight(normal(8, 1, 3, 2)))
    check(kernel, [x, values], [blank(output_shape(kernel, x.array.shape), layout=after)])
