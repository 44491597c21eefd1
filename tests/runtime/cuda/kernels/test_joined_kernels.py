"""Kernels that also sum what they read or write equal the separate kernels, in numpy and in their sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from host_cuda import Placed, blank, check, needs_compiler, put, weight
from hypothesis import given, settings
from hypothesis import strategies as st
from node_kernels import normal

from iosched.runtime.cuda.kernel import Kernel, Precision
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.depthwise import Depthwise, depthwise_weight
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.separable import Separable, pointwise_weight
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.source import windows
from iosched.runtime.cuda.source.activation import IDENTITY, RELU, Activation
from iosched.runtime.cuda.source.windows import Window

ACTIVATIONS = st.sampled_from([IDENTITY, RELU, Activation("Clip", 0, 0.5)])
DTYPES = st.sampled_from(["float32", "float16"])
LAYOUTS = st.sampled_from(Layout)
IMAGES = st.tuples(st.integers(1, 2), st.sampled_from([3, 8, 18, 24]), st.integers(6, 9), st.integers(6, 9))
Windowed = tuple[Window, tuple[int, int, int, int], tuple[int, ...]]


@st.composite
def windowed(draw: st.DrawFn) -> Windowed:
    """A window, what it slides over, and the shape of its results; no window covers padding alone."""
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    strides, dilations = (draw(st.tuples(st.integers(1, 2), st.integers(1, 2))) for _ in range(2))
    pads = tuple(draw(st.integers(0, size - 1)) for size in (*kernel, *kernel))
    shape = draw(IMAGES)
    extents = [
        (shape[2 + axis] + pads[axis] + pads[axis + 2] - dilations[axis] * (kernel[axis] - 1) - 1) // strides[axis] + 1
        for axis in range(2)
    ]
    return Window(kernel, strides, pads, dilations), shape, (*shape[:2], *extents)


def images(count: int, shape: Sequence[int], dtype: str, layout: Layout) -> list[Placed]:
    """Slices of wider tensors, of which some keep wide accesses possible and some do not."""
    return [put(normal(*shape).astype(dtype), before=8 * (k % 2), after=k % 3, layout=layout) for k in range(count)]


def interpreted(kernel: Kernel, reads: Sequence[np.ndarray], shape: Sequence[int], dtype: str) -> np.ndarray:
    found = np.zeros(shape, dtype)
    kernel.interpret(reads, [found])
    return found


def check_equal(found: np.ndarray, separate: np.ndarray) -> None:
    """Halves are rounded once, and not between the kernels as well."""
    scale = 1e-5 if found.dtype == np.float32 else 2e-2
    np.testing.assert_allclose(found, separate, rtol=scale, atol=scale)


def sum_of(reads: Sequence[np.ndarray], activation: Activation = IDENTITY) -> np.ndarray:
    return interpreted(AddN(activation), reads, reads[0].shape, reads[0].dtype.name)


@needs_compiler
@settings(max_examples=25)
@given(windowed(), st.booleans(), st.booleans(), st.integers(1, 3), st.integers(0, 3), st.booleans(), ACTIVATIONS,
       DTYPES, LAYOUTS)  # fmt: skip
def test_a_pool_adds_terms(
    seen: Windowed,
    average: bool,
    counts_pads: bool,
    pooled: int,
    terms: int,
    bias: bool,
    activation: Activation,
    dtype: str,
    layout: Layout,
) -> None:
    window, shape, target = seen
    plain = Pool(window, average, average and counts_pads)
    pooled = pooled if average else 1
    reads = [*images(pooled, shape, dtype, layout), *images(terms, target, dtype, layout)]
    reads += [weight(normal(1, target[1], 1, 1))] if bias else []
    kernel = replace(plain, pooled=pooled, activation=activation)
    y = blank(target, dtype, before=8, after=1, layout=layout)
    arrays = [read.array for read in reads]
    each = [interpreted(plain, [x], target, dtype) for x in arrays[:pooled]]
    wide = [np.broadcast_to(term, target).astype(dtype) for term in arrays[pooled:]]
    check_equal(interpreted(kernel, arrays, target, dtype), sum_of([*each, *wide], activation))
    check(kernel, reads, [y])


@needs_compiler
@settings(max_examples=25)
@given(windowed(), st.integers(1, 2), st.integers(2, 5), st.booleans(), st.booleans(), ACTIVATIONS, DTYPES, LAYOUTS)
def test_a_depthwise_convolution_reads_a_sum(
    seen: Windowed,
    multiplier: int,
    terms: int,
    relu: bool,
    bias: bool,
    activation: Activation,
    dtype: str,
    layout: Layout,
) -> None:
    window, shape, (batch, channels, *extents) = seen
    target = (batch, channels * multiplier, *extents)
    plain = Depthwise(window, relu, activation)
    taps = depthwise_weight(normal(target[1], 1, *window.kernel).astype(dtype))
    constants = [weight(taps), *([weight(normal(target[1]))] if bias else [])]
    reads = [*images(terms, shape, dtype, layout), *constants]
    kernel, arrays = replace(plain, terms=terms), [read.array for read in reads]
    separate = interpreted(plain, [sum_of(arrays[:terms]), *arrays[terms:]], target, dtype)
    check_equal(interpreted(kernel, arrays, target, dtype), separate)
    check(kernel, reads, [blank(target, dtype, before=8, layout=layout)])


@needs_compiler
@settings(max_examples=20)
@given(windowed(), st.integers(1, 4), st.integers(0, 3), st.booleans(), ACTIVATIONS, st.sampled_from(["fp32", "fp16"]),
       LAYOUTS, st.sampled_from([7, 40, 72]), st.integers(0, 5))  # fmt: skip
def test_a_separable_convolution_reads_and_adds_to_a_sum(
    seen: Windowed,
    terms: int,
    added: int,
    relu: bool,
    activation: Activation,
    precision: str,
    layout: Layout,
    wide: int,
    variant: int,
) -> None:
    window, shape, (batch, channels, *extents) = seen
    target, dtype = (batch, wide, *extents), Precision(precision).dtype
    plain = Separable(
        window,
        relu,
        precision=Precision(precision),
        variant=variant,
    )
    taps = depthwise_weight(normal(channels, 1, *window.kernel).astype(dtype)) / np.prod(window.kernel).astype(dtype)
    matrix = pointwise_weight(normal(wide, channels, 1, 1) / np.sqrt(channels), by_fma=plain.by_fma).astype(dtype)
    first, constants = images(terms, shape, dtype, layout), [weight(each) for each in (taps, matrix, normal(wide))]
    reads = [*first, *constants, *images(added, target, dtype, layout)]
    kernel, arrays = replace(plain, terms=terms, activation=activation), [read.array for read in reads]
    middle = [read.array for read in constants]
    product = interpreted(plain, [sum_of(arrays[:terms]), *middle], target, dtype)
    separate = sum_of([product, *arrays[terms + 3 :]], activation)
    check_equal(interpreted(kernel, arrays, target, dtype), separate)
    y = blank(target, dtype, before=8 * (added % 2), after=added, layout=layout)
    check(kernel, reads, [y], 1e-5 if precision == "fp32" else 4e-3)


@needs_compiler
@pytest.mark.parametrize("layout", Layout)
def test_a_pool_of_several_images_in_tiles(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last tile of a row is not whole; and taps that are too many to keep a row."""
    monkeypatch.setattr(windows, "ENOUGH_THREADS", 1)
    for size in (3, 9):
        window = Window((size, size), (1, 1), (size // 2,) * 4, (1, 1))
        reads = [put(normal(2, 6, 9, 7), before=k, layout=layout) for k in range(3)]
        check(Pool(window, average=True, pooled=2), reads, [blank((2, 6, 9, 7), layout=layout)])
