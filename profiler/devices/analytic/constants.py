"""The constants of the analytic model: of kernels, fitted by `benchmarks/kernels_fit.py`, and of launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import LaunchName

Use = Literal["linear", "batched", "winograd"]
Tile = tuple[int, int]
"""Columns and rows of a product that one thread block computes."""


@dataclass(frozen=True)
class KernelConstants:
    """Constants of all GPUs. A step is one step along a product's inner dimension.

    Attributes:
        fma, edge: core cycles for each multiply-add of a tile, and for each of its rows and columns at each step.
        prologue: steps that a thread block needs to start and to store its results.
        tail: balance of the last wave: 0 waits for the SM with most tiles, 1 spreads tiles evenly.
        partial: how many times results are moved for each part of a split inner dimension.
        overlap: exponent p of (arithmetic^p + traffic^p)^(1/p), the time of a kernel that does both at once.
        strided: slowdown of the memory for matrices stored along the inner dimension.
        page_cycles: cycles for each page of 2 MiB that a tile's rows lie on, at each step; only before Volta.
        convolution_fma, convolution_edge, convolution_prologue: the same for implicit matrix products.
        winograd_fma, winograd_prologue: the same for Winograd's F(2x2, 3x3) in one kernel, transforms included.
        winograd_weights: slowdown of its transform of weights over their traffic.
        transform_input, transform_output, transform_weights: the same for Winograd's F(4x4, 3x3) in four kernels.
        start_us: microseconds for each kernel of an operator, without the host's launch.
        fma_pj, load_pj, dram_pj: picojoules of an fp32 operation, of a byte that a tile loads, of a byte from memory.
        winograd_energy, convolution_energy: factors on the energy of an operation.
        transform_power: share of the power limit that transforms draw.
        tensor_fma, tensor_edge: as `fma` and `edge` for tensor cores, in cycles of as many multiply-adds.
        tensor_energy: energy of an operation of the tensor cores over `fma_pj`.
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
class MeasuredFractions:
    """Measured fractions of a GPU's specification.

    Attributes:
        clock: its clock without power throttling, over the boost clock.
        dram: its memory bandwidth over that of the specification.
        tiles: those that cuBLAS 12 was seen to choose from, by use.
    """

    clock: float
    dram: float
    tiles: tuple[tuple[Use, tuple[Tile, ...]], ...] = ()

    def tiles_of(self, use: Use | None) -> tuple[Tile, ...]:
        """The possible tiles of a product; all if unobserved."""
        return next((tiles for known, tiles in self.tiles if known == use), TILES)


UNMEASURED = MeasuredFractions(clock=1.0, dram=0.85)
MEASURED: Mapping[str, MeasuredFractions] = MappingProxyType(
    {
        "k80": MeasuredFractions(
            clock=0.642, dram=0.85
        ),  # its base clock, 562 MHz: only that agrees with published networks
        "p100pcie": MeasuredFractions(
            clock=1.02,
            dram=0.805,
            tiles=(
                ("linear", ((32, 128), (64, 64), (128, 32))),
                ("batched", ((128, 64),)),
                ("winograd", ((32, 128), (64, 64))),
            ),
        ),
        "v100pcie": MeasuredFractions(
            clock=1.07,
            dram=0.978,
            tiles=(("batched", ((64, 64), (32, 128))), ("winograd", ((64, 64), (32, 128), (128, 32)))),
        ),
        "t4": MeasuredFractions(
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
"""The evidence for a GPU: measured kernels and networks, kernels only, or its specification."""
_FITTED: Mapping[str, Known] = MappingProxyType({"p100pcie": "kernels", "v100pcie": "networks", "t4": "kernels"})
_SAME_CHIP = {"p100": "p100pcie", "v100": "v100pcie"}


def measured(gpu: GpuSpec) -> MeasuredFractions:
    """The measured fractions of this GPU, or of another card with the same chip."""
    return MEASURED.get(_SAME_CHIP.get(gpu.key, gpu.key), UNMEASURED)


def known_by(gpu: GpuSpec) -> Known:
    """The evidence for this GPU, or for another card with the same chip."""
    return _FITTED.get(_SAME_CHIP.get(gpu.key, gpu.key), "specification")


@dataclass(frozen=True)
class LaunchConstants:
    """Constants of launches for all GPUs.

    Attributes:
        kernel_us: latency of a launch.
        issue_us: the least time between the starts of two kernels, on any streams.
        fork_us: latency of each group of a concurrent stage, for waits between streams or graph branches.
        tuned: what is left of a product's time beyond its peak if the fastest kernel is found by timing.
        window: the share of the CUDA cores' peak that depthwise convolutions attain.
        interference: the share of other groups' work that prolongs the longest group.
    """

    kernel_us: float
    issue_us: float
    fork_us: float
    tuned: float
    window: float
    interference: float


STREAM_LAUNCHES = LaunchConstants(
    kernel_us=6.42, issue_us=5.6, fork_us=7.79, tuned=0.816, window=0.0247, interference=1.0
)
"""Of kernels launched one by one, fitted to published latencies by `benchmarks/analytic.py`."""

NODE_US, LEAST_NODE_US, MOST_NODE_US = 1.0, 0.5, 2.0
"""Microseconds for each node of a CUDA graph, and the range in which it is known; see reports/analytic-evidence.md."""


def in_graph(node_us: float) -> LaunchConstants:
    """The constants of kernels in one CUDA graph whose nodes take `node_us` microseconds to start.

    A group is a branch of the graph, and waits once for the stage before it, as a kernel does for another.
    """
    return replace(STREAM_LAUNCHES, kernel_us=node_us, issue_us=node_us, fork_us=node_us)


LAUNCH_CONSTANTS: Mapping[LaunchName, LaunchConstants] = MappingProxyType(
    {"graph": in_graph(NODE_US), "streams": STREAM_LAUNCHES}
)
