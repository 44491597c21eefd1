"""Single kernels under the analytic model: near published measurements, and behaving as kernels do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from iosched.profiler.devices.analytic import timing
from iosched.profiler.devices.analytic.constants import TILES, UNMEASURED
from iosched.profiler.devices.analytic.kernels import ConvolutionGeometry, Product
from iosched.profiler.devices.analytic.timing import KernelTimer
from iosched.profiler.devices.gpus import GpuSpec, gpu_keys, gpu_named
from iosched.scheduler.precision import PRECISIONS, PrecisionName


def gpu(name: str) -> GpuSpec:
    found = gpu_named(name)
    assert found is not None
    return found


def matmul(rows: int, columns: int, inner: int, count: int = 1, transposed: bool = False) -> Product:
    moved, weights = 4 * count * rows * (inner + columns), 4 * count * inner * columns
    return Product(rows, columns, inner, count, moved, weights, transposed=transposed)


def convolution(images: int, channels: int, filters: int, size: int, taps: int = 9, winograd: bool = True) -> Product:
    rows = images * size**2
    window = ConvolutionGeometry(images, size, size, taps, winograd)
    moved = 4 * rows * (channels + filters)
    return Product(rows, filters, channels * taps, 1, moved, 4 * channels * taps * filters, window)


def flops(product: Product) -> int:
    return 2 * product.rows * product.columns * product.inner * product.count


SIZES = st.integers(1, 5000)
PRODUCTS = st.builds(matmul, SIZES, SIZES, SIZES, st.integers(1, 64)) | st.builds(
    convolution, st.integers(1, 64), st.integers(1, 512), st.integers(1, 512), st.integers(1, 112), st.just(9)
)


@given(PRODUCTS, st.sampled_from(gpu_keys()), st.sampled_from(PRECISIONS))
def test_a_kernel_takes_at_least_the_time_that_it_keeps_the_gpu_busy(
    product: Product, name: str, precision: PrecisionName
) -> None:
    alone_us, busy_us = KernelTimer(gpu(name), precision).time(product)

    assert alone_us >= busy_us > 0


@st.composite
def machines_and_twice_the_work(draw: Callable) -> tuple[KernelTimer, Product, Product]:
    """A kernel, and the same with one of its sizes doubled.

    Where tensor cores may compute it, its channels are multiples of 8. Others are padded by a copy, which twice as many
    may not need: 8 channels take less time there than 4.
    """
    precision = draw(st.sampled_from(PRECISIONS))
    many = st.integers(1, 512) if precision == "fp32" else st.integers(1, 64).map(lambda eights: 8 * eights)
    few, taps = st.integers(1, 64), st.sampled_from([1, 9])
    make, sizes, kind = draw(
        st.tuples(
            st.just(matmul),
            st.fixed_dictionaries({"rows": SIZES, "columns": many, "inner": many, "count": few}),
            st.fixed_dictionaries({"transposed": st.booleans()}),
        )
        | st.tuples(
            st.just(convolution),
            st.fixed_dictionaries({"images": few, "channels": many, "filters": many, "size": st.integers(1, 112)}),
            taps.flatmap(lambda taps: st.fixed_dictionaries({"taps": st.just(taps), "winograd": st.just(taps == 9)})),
        )
    )
    doubled = draw(st.sampled_from(sorted(sizes)))
    shrink, rested_us = 0.5 if precision == "fp16" else 1.0, draw(st.sampled_from([0.0, 364.0]))
    machine = KernelTimer(gpu(draw(st.sampled_from(gpu_keys()))), precision, shrink, rested_us)
    return machine, make(**sizes, **kind), make(**{**sizes, doubled: 2 * sizes[doubled]}, **kind)


@given(machines_and_twice_the_work())
@example((KernelTimer(gpu("t4")), matmul(5, 8, 3, 11), matmul(10, 8, 3, 11)))
def test_twice_the_work_takes_no_less_time(case: tuple[KernelTimer, Product, Product]) -> None:
    """Waves, filled tiles and split inner dimensions make steps; none of them is downwards."""
    machine, once, twice = case

    assert machine.time(twice).alone_us >= machine.time(once).alone_us * (1 - 1e-9)


@given(st.builds(matmul, SIZES, SIZES, SIZES, transposed=st.just(True)), st.sampled_from(gpu_keys()))
def test_no_tile_is_faster_at_the_power_limit_than_the_one_taken(product: Product, name: str) -> None:
    def latency_us(*tiles: tuple[int, int]) -> float:
        with patch.object(timing, "tiles_of", lambda use, capability: tiles):
            return KernelTimer(gpu(name)).time(product).alone_us

    assert latency_us(*TILES) == min(map(latency_us, TILES))


@given(PRODUCTS, st.sampled_from(["cores_per_sm", "boost_mhz", "dram_gb_per_s", "power_watts"]))
def test_half_a_gpu_is_not_faster(product: Product, part: str) -> None:
    whole = gpu("t4")
    half = replace(whole, **{part: getattr(whole, part) / 2})

    assert KernelTimer(half).time(product).alone_us >= KernelTimer(whole).time(product).alone_us * (1 - 1e-9)


def test_large_products_come_near_the_peak_where_power_allows() -> None:
    large = matmul(8192, 8192, 8192)
    hungry = replace(gpu("v100"), power_watts=10_000.0)

    attained = flops(large) / KernelTimer(hungry, attained=UNMEASURED).time(large).alone_us / 1e6

    assert 0.8 * hungry.fp32_tflops < attained < hungry.fp32_tflops


def test_a_t4_holds_its_clock_only_briefly() -> None:
    """Measured: 3.7 of 8.1 TFLOPS in large products, and two thirds of the peak in those of a quarter millisecond."""
    large, short = matmul(8192, 8192, 8192), matmul(1024, 1024, 512)
    busy, rested = KernelTimer(gpu("t4")), KernelTimer(gpu("t4"), rested_us=400.0)

    assert 3.0 < flops(large) / busy.time(large).alone_us / 1e6 < 4.5
    assert rested.time(short).alone_us < 0.8 * busy.time(short).alone_us
    assert rested.time(large).alone_us == pytest.approx(busy.time(large).alone_us, rel=0.01)


def test_winograd_computes_3x3_convolutions_faster_than_the_peak_of_their_definition() -> None:
    by_winograd, by_definition = convolution(32, 512, 512, 28), convolution(32, 512, 512, 28, winograd=False)
    machine = KernelTimer(gpu("v100"))

    assert flops(by_winograd) / machine.time(by_winograd).alone_us / 1e6 > gpu("v100").fp32_tflops
    assert flops(by_definition) / machine.time(by_definition).alone_us / 1e6 < gpu("v100").fp32_tflops


def test_nonfused_winograd_computes_16_images_in_the_time_of_one() -> None:
    """The grids of cuDNN 8.9 show that, on every GPU that was measured."""
    one, sixteen, many = (convolution(images, 1024, 1024, 8) for images in (1, 16, 17))
    machine = KernelTimer(gpu("v100"))

    def latency_us(product: Product) -> float:
        assert product.window is not None
        return min(spent.alone_us for spent in machine._winograd_nonfused(product, product.window))

    assert latency_us(one) > 0.9 * latency_us(sixteen)
    assert latency_us(many) > 1.2 * latency_us(sixteen)


def test_one_tile_more_than_there_are_sms_begins_a_wave() -> None:
    """A convolution of 128 channels makes tiles of 128 pixels, and its inner dimension is not split."""
    machine = KernelTimer(replace(gpu("v100"), sms=4))

    def latency_us(tiles: int) -> float:
        return machine.time(convolution(tiles, 512, 512, 8, winograd=False)).alone_us

    full, more, twice = latency_us(2), latency_us(3), latency_us(4)

    assert more - full > twice - more


def test_a_long_inner_dimension_is_split_over_idle_sms() -> None:
    few_results, one_sm = matmul(128, 128, 65_536), replace(gpu("v100"), sms=1)

    assert 30 * KernelTimer(gpu("v100")).time(few_results).alone_us < KernelTimer(one_sm).time(few_results).alone_us


def test_tensor_cores_are_faster_with_channels_in_multiples_of_eight() -> None:
    machine = KernelTimer(gpu("t4"), "fp16", 0.5)
    odd, even = convolution(8, 3, 61, 112), convolution(8, 8, 64, 112)

    assert machine.time(odd).alone_us > machine.time(even).alone_us


def test_rows_on_many_pages_slow_down_only_gpus_before_volta() -> None:
    plain = matmul(4096, 2048, 32_768)
    strided = replace(plain, transposed=True)

    def slower(name: str) -> float:
        machine = KernelTimer(gpu(name), attained=UNMEASURED)
        return machine.time(strided).alone_us / machine.time(plain).alone_us

    assert slower("p100") > 1.5
    assert slower("v100") < 1.1


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", [(0, 16, 16), (16, 3, 0), (3, 0, 16)])
def test_an_empty_product_is_no_error(precision: PrecisionName, sizes: tuple[int, int, int]) -> None:
    assert KernelTimer(gpu("a100"), precision).time(matmul(*sizes)).alone_us > 0
