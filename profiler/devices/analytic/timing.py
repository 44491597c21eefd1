"""Times of matrix products and convolutions on a GPU: tiles, waves, traffic and power.

Waves of tiles are as in Habitat (Yu et al., USENIX ATC 2021) and NeuSight (Lee et al., ASPLOS 2025), Winograd's
products as in Lavin and Gray, "Fast algorithms for convolutional neural networks" (CVPR 2016). All times are in
microseconds, without the host's launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import ceil, hypot
from typing import NamedTuple

from iosched.profiler.devices.analytic.constants import (
    CONVOLUTION_TILES,
    KERNELS,
    TILES,
    KernelConstants,
    MeasuredFractions,
    Tile,
    Use,
    measured,
    tiles_of,
)
from iosched.profiler.devices.analytic.kernels import ConvolutionGeometry, Product
from iosched.profiler.devices.gpus import GpuSpec
from iosched.scheduler.precision import DEFAULT_PRECISION, PrecisionName

_ISSUED = 128  # lanes: four warps a cycle. Kepler's SMs have more, for a second instruction of the same warp
_FIRST_WINOGRAD, _VOLTA, _HOPPER = 5.0, 7.0, 9.0  # compute capabilities
_CHANNELS = 8  # that tensor cores take at once; other kernels read 8 with one or two loads
_ACCUMULATORS = 2**15  # results that the blocks on an SM hold at once: half of its registers
_PAGE_NBYTES = 2**21
_MOST_OF_A_PAGE = 1 / 8  # longer rows were not measured
_MOST_PARTS = 32  # that an inner dimension is split into
_FUSED_HIGH, _FUSED_WIDE, _FUSED_CHANNELS = 8, 16, 32  # results that a block of Winograd's single kernel makes
_FUSED_PRODUCTS = 16 * 32 * 32  # multiply-adds of that block for each input channel
_INNER_TILE = 4  # rows and columns of results that F(4x4, 3x3) makes at once, of 36 products for each channel
_INNER_IMAGES = 16  # it computes a multiple of these, as the grids of cuDNN 8.9 show on every measured GPU


class Timing(NamedTuple):
    """Microseconds of a kernel alone, and of its work on a fully used GPU."""

    alone_us: float
    busy_us: float


class _Spent(NamedTuple):
    """Microseconds of a kernel alone, on a fully used GPU, and of its energy at the power limit."""

    alone_us: float
    busy_us: float
    power_us: float


class _Problem(NamedTuple):
    rows: int
    columns: int
    inner: int
    products: int
    left_nbytes: float
    right_nbytes: float
    result_nbytes: float
    item_nbytes: float
    strided: bool = False


class _Grid(NamedTuple):
    """Thread blocks for whole inner dimensions, the core cycles of a step of each, and the bytes that all read from
    memory.
    """

    tile: Tile
    blocks: int
    cycles: float
    read_nbytes: float


class _Code(NamedTuple):
    tiles: tuple[Tile, ...]
    fma: float
    edge: float
    energy_pj: float
    splits: bool = True
    fma_rate: float = 1.0


@dataclass(frozen=True)
class KernelTimer:
    """A GPU at one precision.

    Attributes:
        shrink: bytes of a stored value over those of the model's.
        rested_us: how long a kernel runs before the power limit slows it down: 0 for a busy GPU; benchmarks of single
            kernels pause in between.
        attained: measured fractions of the specification; None for the known ones.
    """

    gpu: GpuSpec
    precision: PrecisionName = DEFAULT_PRECISION
    shrink: float = 1.0
    rested_us: float = 0.0
    constants: KernelConstants = KERNELS
    attained: MeasuredFractions | None = None

    def time(self, product: Product) -> Timing:
        """The time of a matrix product or a convolution by its fastest algorithm at the power limit."""
        return min(map(self._throttled, self._ways(product)))

    def traffic_us(self, nbytes: float) -> float:
        """The time to move bytes from or to memory."""
        return nbytes / self._bytes_per_us

    def _throttled(self, spent: _Spent) -> Timing:
        over = max(spent.power_us - spent.alone_us, 0.0)
        if over:
            over *= max(1 - self.rested_us / spent.alone_us, 0.0)
        return Timing(spent.alone_us + over, spent.busy_us + over)

    def _ways(self, product: Product) -> Iterator[_Spent]:
        if self._tensor_rate:
            yield from self._on_tensor_cores(product)
        elif product.window is None:
            yield from self._matmul(product)
        else:
            yield from self._implicit(product)
            if product.window.winograd and self._capability >= _FIRST_WINOGRAD:
                yield self._winograd(product, product.window)
                yield from self._winograd_nonfused(product, product.window)

    def _matmul(self, product: Product) -> Iterator[_Spent]:
        c = self.constants
        use: Use | None = "linear" if product.transposed else "batched" if product.count > 1 else None
        code = _Code(tiles_of(use, self._capability), c.fma, c.edge, c.fma_pj)
        return self._tiled(self._problem(product), code, self._besides())

    def _implicit(self, product: Product) -> Iterator[_Spent]:
        c = self.constants
        code = _Code(CONVOLUTION_TILES, c.fma, c.edge, c.fma_pj * c.convolution_energy, splits=False)
        # Before Hopper, another kernel makes a table of offsets in every run, as profiles and cuDNN's plans show.
        return self._tiled(self._problem(product), code, self._besides(kernels=2 if self._capability < _HOPPER else 1))

    def _on_tensor_cores(self, product: Product) -> Iterator[_Spent]:
        """Either kind on tensor cores, which need multiples of eight channels; a copy pads other numbers."""
        c, taps = self.constants, product.window.taps if product.window else 1
        problem = self._problem(product)
        channels = max(problem.inner // taps, 1)
        padded = problem._replace(columns=_filled(problem.columns), inner=_filled(channels) * taps)
        code = _Code(TILES, c.tensor_fma, c.tensor_edge, c.fma_pj * c.tensor_energy, fma_rate=self._tensor_rate)
        copied_us = 0.0
        if padded.inner != channels * taps or padded.columns != problem.columns:
            copied_us = self.traffic_us(padded.left_nbytes * (1 + padded.inner / (channels * taps))) + c.start_us
        return self._tiled(padded, code, self._besides(copied_us))

    def _winograd(self, product: Product, window: ConvolutionGeometry) -> _Spent:
        """F(2x2, 3x3) in one kernel, after another that transforms the weights."""
        c, problem = self.constants, self._problem(product)
        channels = product.inner // window.taps
        blocks = (
            window.images * ceil(window.height / _FUSED_HIGH) * ceil(window.width / _FUSED_WIDE)
            * ceil(product.columns / _FUSED_CHANNELS)
        )  # fmt: skip
        block_us = (channels + c.prologue) * _FUSED_PRODUCTS * c.winograd_fma / self._fma_per_us
        weights_us = self.traffic_us(problem.right_nbytes * (9 + 16) / 9)
        traffic_us = self.traffic_us(problem.left_nbytes + problem.result_nbytes + problem.right_nbytes * 16 / 9)
        flops = 2 * blocks * (channels + c.prologue) * _FUSED_PRODUCTS
        power_us = self._powered_us(flops * c.fma_pj)
        alone_us = hypot(self._waves(blocks) * block_us, traffic_us)
        busy_us = hypot(blocks / self.gpu.sms * block_us, traffic_us)
        besides = self._besides(weights_us, kernels=2)
        return _Spent(alone_us + besides.alone_us, busy_us + besides.busy_us, power_us + besides.power_us)

    def _winograd_nonfused(self, product: Product, window: ConvolutionGeometry) -> Iterator[_Spent]:
        """F(4x4, 3x3) as 36 products, and kernels that transform the input, the weights and the result."""
        c, problem = self.constants, self._problem(product)
        channels, columns = product.inner // window.taps, product.columns
        images = ceil(window.images / _INNER_IMAGES) * _INNER_IMAGES
        tiles = images * ceil(window.height / _INNER_TILE) * ceil(window.width / _INNER_TILE)
        left, result = (36 * problem.item_nbytes * tiles * width for width in (channels, columns))
        products = _Problem(tiles, columns, channels, 36, left, problem.right_nbytes * 4, result, problem.item_nbytes)
        code = _Code(tiles_of("winograd", self._capability), c.fma, c.edge, c.fma_pj, splits=False)
        transforms_us = self.traffic_us(
            (problem.left_nbytes + left + problem.result_nbytes + result) * c.transform
            + problem.right_nbytes * 5 * c.transform_weights
        )
        return self._tiled(products, code, self._besides(transforms_us, kernels=4))

    def _besides(self, us: float = 0.0, kernels: int = 1) -> _Spent:
        """Time added by the other kernels and all starts, which draw little power."""
        started_us = kernels * self.constants.start_us
        return _Spent(started_us + us, us, started_us)

    def _problem(self, product: Product) -> _Problem:
        item_nbytes = product.item_nbytes * self.shrink
        result = product.rows * product.columns * product.count * item_nbytes
        left, right = max(product.activation_nbytes * self.shrink - result, 0.0), product.weight_nbytes * self.shrink
        rows, columns, inner = max(product.rows, 1), max(product.columns, 1), max(product.inner, 1)  # of no values: one
        return _Problem(rows, columns, inner, product.count, left, right, result, item_nbytes, product.transposed)

    def _tiled(self, problem: _Problem, code: _Code, besides: _Spent) -> Iterator[_Spent]:
        for tile in code.tiles:
            grid = self._grid(problem, code, tile)
            for parts in self._parts(grid.blocks, problem.inner) if code.splits else (1,):
                blocks = grid.blocks * parts
                block_us = grid.cycles * (problem.inner / parts + self.constants.prologue) / self._mhz
                traffic_us = self._traffic_us(problem, grid, parts)
                yield _Spent(
                    hypot(self._waves(blocks) * block_us, traffic_us) + besides.alone_us,
                    hypot(blocks / self.gpu.sms * block_us, traffic_us) + besides.busy_us,
                    self._power_us(problem, code, grid, parts) + besides.power_us,
                )

    def _grid(self, problem: _Problem, code: _Code, tile: Tile) -> _Grid:
        wide, high = tile
        across, down = ceil(problem.columns / wide), ceil(problem.rows / high)
        cycles = (wide * high * code.fma + 64 * (wide + high) * code.edge) / (code.fma_rate * self._cores)
        cycles += self._page_cycles(problem, tile)
        return _Grid(tile, across * down * problem.products, cycles, self._read_nbytes(problem, tile, across, down))

    def _traffic_us(self, problem: _Problem, grid: _Grid, parts: int) -> float:
        written = problem.result_nbytes * (1 + 2 * parts if parts > 1 else 1)  # parts are written and read once more
        traffic_us = self.traffic_us(grid.read_nbytes + written)
        return traffic_us * self.constants.strided if problem.strided else traffic_us

    def _power_us(self, problem: _Problem, code: _Code, grid: _Grid, parts: int) -> float:
        wide, high = grid.tile
        step_pj = 2 * wide * high * code.energy_pj + (wide + high) * problem.item_nbytes * self.constants.load_pj
        steps = grid.blocks * (problem.inner + parts * self.constants.prologue)
        return self._powered_us(steps * step_pj)

    def _waves(self, blocks: int) -> float:
        """Between tiles spread evenly and waiting for the SM with most of them."""
        even = blocks / self.gpu.sms
        return (even + ceil(even)) / 2 if even > 1 else 1.0

    def _parts(self, blocks: int, inner: int) -> Iterator[int]:
        """Powers of two that make at most two blocks for each SM, so that smaller products split no worse."""
        parts = 1
        yield parts
        while (parts := 2 * parts) <= min(_MOST_PARTS, inner) and parts * blocks <= 2 * self.gpu.sms:
            yield parts

    def _read_nbytes(self, problem: _Problem, tile: Tile, across: int, down: int) -> float:
        """Bytes that tiles read: every wave reads again, since the L2 is too small."""
        resident = self.gpu.sms * _ACCUMULATORS / (tile[0] * tile[1])
        waves = max(across / resident, 1.0)
        passes = down / min(max(resident / across, 1.0), down)
        return problem.left_nbytes * waves + problem.right_nbytes * passes

    def _page_cycles(self, problem: _Problem, tile: Tile) -> float:
        """Cycles for each step: before Volta, tile rows on many pages wait for their addresses."""
        if not problem.strided or self._capability >= _VOLTA:
            return 0.0
        rows = min(tile[0], problem.columns) + min(tile[1], problem.rows)
        of_a_page = min(problem.inner * problem.item_nbytes / _PAGE_NBYTES, _MOST_OF_A_PAGE)
        return rows * of_a_page * self.constants.page_cycles

    def _powered_us(self, energy_pj: float) -> float:
        """Time to spend this energy at the power limit. It is that of a 12 nm chip, and grows with the process size."""
        return energy_pj * 1e-6 * (self.gpu.process_nm / 12) / self.gpu.power_watts

    @cached_property
    def _attained(self) -> MeasuredFractions:
        return self.attained or measured(self.gpu)

    @cached_property
    def _mhz(self) -> float:
        return self.gpu.boost_mhz * self._attained.clock

    @cached_property
    def _bytes_per_us(self) -> float:
        return self.gpu.dram_gb_per_s * 1e3 * self._attained.dram

    @cached_property
    def _fma_per_us(self) -> float:
        return self._cores * self._mhz

    @cached_property
    def _tensor_rate(self) -> float:
        """Multiply-adds of the tensor cores over those of the other cores; 0 if they are not used."""
        peak = self.gpu.peak_tflops(self.precision)
        return peak / self.gpu.fp32_tflops if peak != self.gpu.fp32_tflops else 0.0

    @cached_property
    def _cores(self) -> int:
        """Cores of an SM that its schedulers can feed with one instruction each."""
        return min(self.gpu.cores_per_sm, _ISSUED)

    @cached_property
    def _capability(self) -> float:
        return float(self.gpu.compute_capability)


def _filled(channels: int) -> int:
    return -(-channels // _CHANNELS) * _CHANNELS
