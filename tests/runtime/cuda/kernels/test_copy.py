"""Copies: any layout to any other, transposed, reshaped, in part, and with another type."""

from __future__ import annotations

import numpy as np
import pytest
from host_cuda import Placed, blank, check, needs_compiler, put
from hypothesis import given, settings
from hypothesis import strategies as st
from node_kernels import lowered, normal
from onnx import helper

from iosched.runtime.cuda.kernels.copy import MAX_PAIRS, Copy, common_factors
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.plan import View


def row_major(placed: Placed) -> Placed:
    """The same tensor, its memory seen in row-major order instead of channels-last."""
    shape = placed.array.shape
    strides = tuple(int(np.prod(shape[k + 1 :], dtype=int)) * placed.array.itemsize for k in range(len(shape)))
    array = np.lib.stride_tricks.as_strided(placed.array, shape, strides)
    return Placed(View("t", array.dtype.name, shape, 0, array.nbytes, strides), placed.memory, array)


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 20, 5, 7), (1, 33, 8, 9), (3, 3, 5, 5), (2, 64, 1, 1), (1, 1, 4, 4)])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float16"), ("float16", "float32")])
def test_images_go_between_row_major_and_channels_last(shape: tuple[int, ...], dtypes: tuple[str, str]) -> None:
    x = normal(*shape).astype(dtypes[0])
    given = row_major(blank(shape, dtypes[0]))
    given.array[...] = x
    check(Copy(), [given], [blank(shape, dtypes[1], before=3, after=2)])
    check(Copy(), [put(x, before=8)], [row_major(blank(shape, dtypes[1]))])


@needs_compiler
@pytest.mark.parametrize(
    ("shape", "target"),
    [((2, 6, 4, 5), (2, 120)), ((2, 6, 4, 5), (2, 3, 2, 20)), ((2, 120), (2, 6, 4, 5)), ((4, 6), (6, 4)),
     ((2, 6, 4, 5), (2, 3, 2, 4, 5)), ((2, 6, 4, 5), (5, 4, 3, 4)), ((1, 6, 1, 1), (6,)), ((1, 1), ())],
)  # fmt: skip
def test_reshapes_in_row_major_order(shape: tuple[int, ...], target: tuple[int, ...]) -> None:
    x = normal(*shape)
    y = blank(target)
    Copy(reshapes=True).interpret([x], [y.array])
    np.testing.assert_array_equal(y.array, x.reshape(target))
    y.poison()
    check(Copy(reshapes=True), [put(x, before=2)], [y])


@needs_compiler
def test_parts_of_an_axis() -> None:
    x = put(normal(2, 12, 3, 5))
    check(Copy(axis=1, start=4), [x], [blank((2, 8, 3, 5))])
    check(Copy(axis=1, start=3), [x], [blank((2, 8, 3, 5))])
    check(Copy(axis=3, start=1), [x], [blank((2, 12, 3, 2), before=4)])
    check(Copy(axis=0, start=1), [put(normal(3, 40))], [blank((1, 40), before=1)])
    y = np.zeros((2, 12, 3, 2), np.float32)
    Copy(axis=3, start=1).interpret([x.array], [y])
    np.testing.assert_array_equal(y, x.array[..., 1:3])


@needs_compiler
@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 1, 0, 2), (0, 2, 1, 3)])
def test_transposes(order: tuple[int, ...]) -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], perm=order)
    lowered(node, {"x": normal(2, 17, 3, 18)}).compare(on_host=True, before=1)


def test_transposes_reverse_the_axes_by_default() -> None:
    lowered(helper.make_node("Transpose", ["x"], ["y"]), {"x": normal(2, 3, 4)}).compare()


@needs_compiler
@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "uint8", "float16", "float64"])
def test_types_are_converted(dtype: str) -> None:
    x = (normal(3, 8, 2, 2) * 3).clip(0, 9)
    check(Copy(), [put(x)], [blank(x.shape, dtype)])
    check(Copy(), [put(x.astype(dtype))], [blank(x.shape, "float32")])


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", "uint16"), ("complex64", "uint64")])
def test_types_without_arithmetic_are_copied_bit_by_bit(dtype: str, bits: str) -> None:
    def views(kind: str) -> tuple[View, View]:
        return View("x", kind, (2, 3, 4, 5), 0, 240), View("y", kind, (2, 3, 4, 5), 0, 240)

    (x, y), (known_x, known_y) = views(dtype), views(bits)
    for copy in (Copy(), Copy(reshapes=True), Copy(permutation=(0, 1, 2, 3))):
        assert copy.call([x], [y]) == copy.call([known_x], [known_y])
    assert Copy().call([x, x], [y, y]) == Copy().call([known_x] * 2, [known_y] * 2)


PAIRS = st.tuples(
    st.sampled_from([(1, 1, 1, 1), (2, 3, 5, 7), (2, 8, 5, 7), (1, 24, 4, 4), (3, 16, 1, 1), (1, 33, 2, 9)]),
    st.integers(0, 9),
    st.sampled_from(Layout),
)


@needs_compiler
@settings(max_examples=12, deadline=None)
@given(st.lists(PAIRS, min_size=2, max_size=5))
def test_several_tensors_become_slices_of_wider_ones(pairs: list[tuple[tuple[int, ...], int, Layout]]) -> None:
    """In one launch, whatever their shapes and layouts are."""
    reads, writes = list[Placed](), list[Placed]()
    for number, (shape, before, layout) in enumerate(pairs):
        reads.append(put(normal(*shape) + number, layout=layout))
        writes.append(blank(shape, before=before, after=3, layout=layout))
    check(Copy(), reads, writes)


@needs_compiler
@pytest.mark.parametrize("dtype", ["float16", "int64", "bool", "uint8"])
def test_the_largest_number_of_tensors_of_other_types(dtype: str) -> None:
    values = [(normal(2, 8, 3, 3) * 9 + k).astype(dtype) for k in range(MAX_PAIRS)]
    check(Copy(), [put(each) for each in values], [blank((2, 8, 3, 3), dtype, before=8) for _ in values])


def test_arguments_of_several_tensors_fit_a_launch() -> None:
    """4 kB, with 8 bytes for each: four axes that do not join."""
    x, y = (View("t", "float32", (2, 3, 4, 5), 0, 480, strides) for strides in ((960, 240, 48, 8), (4, 8, 24, 96)))
    assert 8 * len(Copy().call([x] * MAX_PAIRS, [y] * MAX_PAIRS).arguments) <= 4096


@given(st.lists(st.integers(1, 6), max_size=4), st.randoms(use_true_random=False))
def test_common_factors_of_a_shape_and_its_size_are_its_extents(parts: list[int], random: object) -> None:
    size = int(np.prod(parts, dtype=int))
    found = common_factors(parts, [size])
    assert found == tuple(extent for extent in parts if extent != 1)


def test_shapes_without_common_factors() -> None:
    assert common_factors((4, 6), (6, 4)) is None
    assert common_factors((2, 12), (2, 3, 4)) == (2, 3, 4)
