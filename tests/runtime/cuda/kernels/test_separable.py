"""Depthwise and pointwise convolution as one kernel: numbers, layouts, and the source that a GPU runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from host_cuda import Placed, blank, check, needs_compiler, put, weight
from node_kernels import normal
from onnx import helper
from small_models import proto_of

from iosched.runtime.cuda.kernel import H100, Gpu, Precision
from iosched.runtime.cuda.kernels.depthwise import depthwise_weight
from iosched.runtime.cuda.kernels.separable import Separable, pointwise_weight
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source.activation import RELU, Activation
from iosched.runtime.cuda.source.windows import Image, Window
from iosched.runtime.reference import Reference

TOLERANCES = {"fp32": 1e-5, "tf32": 3e-3, "fp16": 4e-3}
PRECISIONS = [Precision(name) for name in TOLERANCES]
V100 = Gpu(capability=70, processors=80)
KINDS = [
    *(pytest.param(precision, H100, id=precision.name) for precision in PRECISIONS),
    pytest.param(Precision("fp16"), V100, id="fp16 on a V100"),
]


def usual(size: int, stride: int, precision: Precision, **more: object) -> Separable:
    found = Separable(Window((size, size), (stride, stride), (size // 2,) * 4, (1, 1)), precision=precision)
    return replace(found, **more)


def output_shape(kernel: Separable, shape: tuple[int, ...], wide: int) -> tuple[int, ...]:
    window = kernel.window
    spatial = (
        (shape[2 + axis] + window.pads[axis] + window.pads[axis + 2] - window.dilations[axis] * (size - 1) - 1)
        // window.strides[axis]
        + 1
        for axis, size in enumerate(window.kernel)
    )
    return (shape[0], wide, *spatial)


def constants(kernel: Separable, channels: int, wide: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As ONNX has them: depthwise weight, pointwise weight, bias."""
    taps = normal(channels, 1, *kernel.window.kernel) / np.float32(np.sqrt(np.prod(kernel.window.kernel)))
    return taps, normal(wide, channels, 1, 1) / np.float32(np.sqrt(channels)), normal(wide)


def stored(kernel: Separable, channels: int, wide: int) -> list[np.ndarray]:
    taps, matrix, bias = constants(kernel, channels, wide)
    dtype = kernel.precision.dtype
    return [depthwise_weight(taps).astype(dtype), pointwise_weight(matrix, by_fma=kernel.by_fma).astype(dtype), bias]


def check_source(kernel: Separable, x: Placed, wide: int, *, before: int = 0, after: int = 0) -> None:
    reads = [x, *(weight(array) for array in stored(kernel, x.array.shape[1], wide))]
    shape = output_shape(kernel, x.array.shape, wide)
    layout = Layout.NCHW if Image.of(x.view).is_planar else Layout.NHWC
    y = blank(shape, kernel.precision.dtype, before=before, after=after, layout=layout)
    check(kernel, reads, [y], TOLERANCES[kernel.precision.name])


@pytest.mark.parametrize(("precision", "gpu"), KINDS)
@pytest.mark.parametrize(
    "kernel",
    [
        usual(3, 1, PRECISIONS[0], relu=True, activation=RELU),
        usual(5, 2, PRECISIONS[0]),
        Separable(Window((2, 4), (2, 1), (0, 2, 1, 1), (2, 1)), True, Activation("Clip", 0, 0.5)),
    ],
)
def test_the_reference_equals_onnxruntime(kernel: Separable, precision: Precision, gpu: Gpu) -> None:
    kernel = replace(kernel, precision=precision, gpu=gpu)
    x, (taps, matrix, bias) = normal(2, 10, 9, 8), constants(kernel, 10, 7)
    window = kernel.window
    first = helper.make_node("Conv", ["x", "d"], ["m"], kernel_shape=window.kernel, strides=window.strides,
                             pads=window.pads, dilations=window.dilations, group=10)  # fmt: skip
    proto = proto_of(
        [first, helper.make_node("Conv", ["m", "w", "b"], ["y"])],
        {"x": x.shape}, ["y"], {"d": taps, "w": matrix, "b": bias},
    )  # fmt: skip
    with Reference(proto.SerializeToString()) as reference:
        wanted = kernel.activation(reference.run({"x": np.maximum(x, 0) if kernel.relu else x})["y"])
    y = np.empty(output_shape(kernel, x.shape, 7), precision.dtype)
    kernel.interpret([x.astype(precision.dtype), *stored(kernel, 10, 7)], [y])
    scale = 1e-5 if precision.dtype == "float32" else 5e-3
    np.testing.assert_allclose(y.astype(np.float32), wanted, rtol=scale, atol=scale)


@needs_compiler
@pytest.mark.parametrize(("precision", "gpu"), KINDS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5, 7])
def test_source_of_the_usual_sizes(size: int, stride: int, precision: Precision, gpu: Gpu) -> None:
    """Several slabs of input channels, the last one not whole, and tiles that are not."""
    kernel = usual(size, stride, precision, relu=True, activation=RELU, gpu=gpu)
    check_source(kernel, put(normal(2, 136, 5, 6).astype(precision.dtype)), 72)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize(("precision", "gpu"), KINDS)
def test_source_of_every_form(precision: Precision, gpu: Gpu) -> None:
    x = put(normal(1, 136, 9, 9).astype(precision.dtype))
    y = blank((1, 136, 9, 9), precision.dtype)
    forms = set()
    for variant in range(30):
        kernel = usual(3, 1, precision, variant=variant, gpu=gpu)
        form = kernel._form(Image.of(x.view), Image.of(y.view))
        if form not in forms:
            check_source(kernel, x, 136)
        forms.add(form)
    assert {form.tile for form in forms} == {(64, 64), (32, 128), (32, 64), (32, 32), (16, 64), (16, 32)}


@needs_compiler
@pytest.mark.parametrize("channels", [42, 44, 3])
@pytest.mark.parametrize(("precision", "gpu"), KINDS)
def test_source_of_every_access_width_that_channels_and_offsets_allow(
    precision: Precision, gpu: Gpu, channels: int
) -> None:
    for before in (0, 1, 2):
        x = put(normal(1, channels, 5, 5).astype(precision.dtype), before=before, after=before)
        check_source(usual(3, 1, precision, relu=True, gpu=gpu), x, channels + 2, before=2 * before, after=before)


@needs_compiler
@pytest.mark.parametrize("variant", range(6))
def test_source_of_planar_images(variant: int) -> None:
    """Slices of images of odd extents, in each of the six tiles, with 4, 2 and 1 channels for each thread."""
    precision, gpu = KINDS[variant % len(KINDS)].values
    size, stride, channels = (3, 5, 7)[variant % 3], 1 + variant % 2, (136, 70, 45)[variant // 2]
    kernel = usual(size, stride, precision, relu=True, activation=RELU, variant=variant, gpu=gpu)
    x = put(normal(2, channels, 9, 11).astype(precision.dtype), before=3, after=1, layout=Layout.NCHW)
    check_source(kernel, x, 75, before=1, after=2)


@pytest.mark.parametrize(("precision", "gpu"), KINDS)
def test_planar_images_use_all_tiles(precision: Precision, gpu: Gpu) -> None:
    image = Image.of(blank((2, 136, 9, 11), precision.dtype, layout=Layout.NCHW).view)
    forms = [usual(3, 1, precision, variant=variant, gpu=gpu)._form(image, image) for variant in range(6)]
    assert len({form.tile for form in forms}) == 6
    assert all(form.planar and form.pack * np.dtype(precision.dtype).itemsize == 16 for form in forms)


@needs_compiler
@pytest.mark.parametrize(("before", "after"), [tuple(Layout), tuple(Layout)[::-1]])
def test_source_between_layouts(before: Layout, after: Layout) -> None:
    kernel = Separable(Window((2, 4), (2, 1), (0, 2, 1, 1), (2, 1)), True)
    x = put(normal(2, 8, 9, 7), layout=before)
    reads = [x, *(weight(array) for array in stored(kernel, 8, 12))]
    check(kernel, reads, [blank(output_shape(kernel, x.array.shape, 12), layout=after)])


@needs_compiler
def test_source_of_rare_forms() -> None:
    asymmetric = Separable(Window((2, 4), (2, 1), (0, 2, 1, 1), (2, 1)), True, Activation("HardSwish"))
    for layout in Layout:
        check_source(asymmetric, put(normal(2, 8, 9, 8), layout=layout), 12)
    check_source(usual(1, 1, PRECISIONS[0]), put(normal(1, 300, 3, 3)), 130)


def test_halves_are_multiplied_in_float32_where_tensor_cores_are_of_another_shape() -> None:
    half = usual(3, 1, Precision("fp16"))
    assert not half.by_fma
    assert replace(half, gpu=V100).by_fma
    assert not replace(half, gpu=Gpu(capability=75, processors=72)).by_fma
    view = blank((1, 64, 8, 8), "float16").view
    reads = [view, *(weight(array).view for array in stored(half, 64, 64))]
    assert "mma" in half.call(reads, [view]).source
    assert "mma" not in replace(half, gpu=V100).call(reads, [view]).source


def test_the_first_six_variants_have_different_tiles() -> None:
    view = blank((1, 168, 21, 21)).view
    image = Image.of(view)
    forms = [usual(5, 1, PRECISIONS[0], variant=variant)._form(image, image) for variant in range(7)]
    assert len({form.tile for form in forms[:6]}) == 6
    assert forms[6].tile in {form.tile for form in forms[:6]}
    assert forms[6] not in forms[:6]


def test_few_pixels_use_small_tiles_and_many_use_large_ones() -> None:
    kernel = usual(3, 1, PRECISIONS[0])

    def pixels_of_a_block(extent: int, batch: int) -> int:
        view = blank((batch, 64, extent, extent)).view
        return kernel._form(Image.of(view), Image.of(view)).tile[0]

    assert pixels_of_a_block(11, 1) == 16
    assert pixels_of_a_block(64, 16) == 64


def test_forms_are_chosen_for_the_processors_of_the_gpu() -> None:
    view = blank((1, 64, 32, 32)).view

    def pixels_of_a_block(processors: int) -> int:
        kernel = usual(3, 1, PRECISIONS[0], gpu=Gpu(90, processors))
        return kernel._form(Image.of(view), Image.of(view)).tile[0]

    assert pixels_of_a_block(8) > pixels_of_a_block(132)
