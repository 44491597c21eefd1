"""The constants of the kernels of the analytic model, fitted to measured kernels by `benchmarks/kernels_fit.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import LaunchName

Use = Literal["linear", "batched", "winograd"]
Tile = tuple[int, int]
"""Columns and rows of a product that one thread block makes."""


@dataclass(frozen=True)
class KernelConstants:
    """Constants that are the same for all GPUs. A step is one step along a product's inner dimension.

    Attributes:
        fma: core cycles for each multiply-add of a tile of a matrix product.
        edge: core cycles for each row and each column of such a tile at each step: it loads a value for each.
        prologue: steps that a thread block needs to start and to store its results.
        tail: how far SMs share out what is left in the last wave: 0 leaves them waiting for the one with most tiles, 1
            would spread tiles over them evenly.
        partial: how many times the results are moved for each part that an inner dimension was split into.
        overlap: exponent p of (arithmetic^p + traffic^p)^(1/p), the time of a kernel that does both at once.
        strided: how many times slower the memory is for matrices that are stored along the inner dimension.
        page_cycles: cycles for each page of 2 MiB that a tile's rows lie on, at each step; only before Volta.
        convolution_fma, convolution_edge, convolution_prologue: the same as above for implicit matrix products.
        winograd_fma: core cycles for each multiply-add of Winograd's F(2x2, 3x3) in one kernel, transforms included.
        winograd_prologue: its channels' worth of starting and storing.
        winograd_weights: how many times slower than its traffic the transform of its weights is.
        transform_input, transform_output, transform_weights: the same for Winograd's F(4x4, 3x3) in four kernels.
        start_us: microseconds for each kernel of an operator, launch by the host aside.
        fma_pj: energy of a multiply-add of fp32, picojoules for each of its two operations.
        load_pj: energy of a byte that a tile loads, picojoules.
        dram_pj: energy of a byte from memory, picojoules.
        winograd_energy: how many times more an operation of Winograd's one kernel takes.
        convolution_energy: the same for implicit matrix products.
        transform_power: part of the power limit that transforms draw.
        tensor_fma, tensor_edge: as `fma` and `edge` for tensor cores, in cycles of as many multiply-adds.
        tensor_energy: energy of an operation of the tensor cores, as a part of `fma_pj`.
    """

    fma: float
    edge: float
    prologue: float
    tail: float
    partial: float
    overlap: float
    strided: float
    page_cycles: float
    convolution_fma: float
    convolution_edge: float
    convolution_prologue: float
    winograd_fma: float
    winograd_prologue: float
    winograd_weights: float
    transform_input: float
    transform_output: float
    transform_weights: float
    start_us: float
    fma_pj: float
    load_pj: float
    dram_pj: float
    winograd_energy: float
    convolution_energy: float
    transform_power: float
    tensor_fma: float
    tensor_edge: float
    tensor_energy: float


KERNELS = KernelConstants(
    fma=0.735, edge=0.272, prologue=11.5, tail=0.55, partial=4.77, overlap=2.17, strided=1.83, page_cycles=12.0,
    convolution_fma=0.676, convolution_edge=0.49, convolution_prologue=17.7, winograd_fma=1.24,
    winograd_prologue=17.6, winograd_weights=1.26, transform_input=1.78, transform_output=1.68,
    transform_weights=3.39, start_us=3.13, fma_pj=19.6, load_pj=21.6, dram_pj=33.2, winograd_energy=1.01,
    convolution_energy=0.655, transform_power=0.428, tensor_fma=0.264, tensor_edge=1.21, tensor_energy=0.0718,
)  # fmt: skip


TILES: tuple[Tile, ...] = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128), (64, 32), (32, 32))
CONVOLUTION_TILES: tuple[Tile, ...] = ((128, 128), (64, 128), (32, 128))


@dataclass(frozen=True)
class Measured:
    """What a GPU attains of its specification, where somebody measured it.

    Attributes:
        clock: its clock while it is not short of power, over the boost clock of its specification.
        dram: its bandwidth from memory over that of its specification.
        tiles: those that cuBLAS 12 was seen to choose from, for uses where it was seen.
    """

    clock: float
    dram: float
    tiles: tuple[tuple[Use, tuple[Tile, ...]], ...] = ()

    def tiles_of(self, use: Use | None) -> tuple[Tile, ...]:
        """The tiles that a product may have; all, where it was not observed."""
        return next((tiles for known, tiles in self.tiles if known == use), TILES)


UNMEASURED = Measured(clock=1.0, dram=0.85)
MEASURED: Mapping[str, Measured] = MappingProxyType(
    {
        "k80": Measured(clock=0.642, dram=0.85),  # its base clock, 562 MHz: only that agrees with published networks
        "p100pcie": Measured(
            clock=1.02,
            dram=0.805,
            tiles=(
                ("linear", ((32, 128), (64, 64), (128, 32))),
                ("batched", ((128, 64),)),
                ("winograd", ((32, 128), (64, 64))),
            ),
        ),
        "v100pcie": Measured(
            clock=1.07,
            dram=0.978,
            tiles=(("batched", ((64, 64), (32, 128))), ("winograd", ((64, 64), (32, 128), (128, 32)))),
        ),
        "t4": Measured(
            clock=0.909,
            dram=0.781,
            tiles=(
                ("linear", ((128, 128), (128, 64), (64, 64))),
                ("batched", ((128, 64), (64, 64), (128, 32))),
                ("winograd", ((128, 64), (64, 64), (128, 32))),
            ),
        ),
    }
)
Known = Literal["networks", "kernels", "specification"]
"""What a GPU is known by: kernels and networks that were measured on it, kernels alone, or its specification alone."""
_FITTED: Mapping[str, Known] = MappingProxyType({"p100pcie": "kernels", "v100pcie": "networks", "t4": "kernels"})
_SAME_CHIP = {"p100": "p100pcie", "v100": "v100pcie"}


def measured(gpu: GpuSpec) -> Measured:
    """What is known to be attained of the specification, on this GPU or on another card with the same chip."""
    return MEASURED.get(_SAME_CHIP.get(gpu.key, gpu.key), UNMEASURED)


def known_by(gpu: GpuSpec) -> Known:
    """What of this GPU, or of another card with the same chip, was measured and used in a fit."""
    return _FITTED.get(_SAME_CHIP.get(gpu.key, gpu.key), "specification")


@dataclass(frozen=True)
class Calibration:
    """Constants that are the same for all GPUs; only the specifications of GPUs differ.

    Attributes:
        kernel_us: what the launch adds to a kernel.
        issue_us: the least time between the starts of two kernels, even if they are on different streams.
        fork_us: the time that each group of a stage with several groups adds, for waits between streams, or between
            branches of a CUDA graph.
        tuned: the part of what a product or a convolution takes beyond its arithmetic at the peak that is left where
            the fastest kernel is found by timing, as the published runtime and ours do, and not guessed by the library.
        window: the part of the CUDA cores' peak that depthwise convolutions attain.
        interference: the part of the other groups' work that prolongs the longest group, because it does not fit into
            what that group leaves idle.
    """

    kernel_us: float
    issue_us: float
    fork_us: float
    tuned: float
    window: float
    interference: float


CALIBRATION = Calibration(kernel_us=6.42, issue_us=5.6, fork_us=7.79, tuned=0.816, window=0.0247, interference=1.0)
"""Of kernels launched one by one, fitted to published latencies by `benchmarks/analytic.py`."""

NODE_US, LEAST_NODE_US, MOST_NODE_US = 1.0, 0.5, 2.0
"""Microseconds for each node of a CUDA graph, and the range in which it is known; see reports/analytic-evidence.md."""


def in_graph(node_us: float) -> Calibration:
    """The constants of kernels that one CUDA graph launches, where each node takes `node_us` microseconds to start.

    A group of a stage is a branch of the graph, and waits once for the stage before it, as a kernel does for another.
    """
    return replace(CALIBRATION, kernel_us=node_us, issue_us=node_us, fork_us=node_us)


CALIBRATIONS: Mapping[LaunchName, Calibration] = MappingProxyType({"graph": in_graph(NODE_US), "streams": CALIBRATION})
