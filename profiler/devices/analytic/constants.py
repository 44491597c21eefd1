"""The constants of the analytic model: of kernels, fitted by `benchmarks/kernels_fit.py`, and of launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType
from typing import Literal

from iosched.profiler.devices.gpus import GpuSpec
from iosched.profiler.devices.open_settings import LaunchName

Use = Literal["linear", "batched", "winograd"]
Tile = tuple[int, int]
"""Columns and rows of a product that one thread block computes."""
_PASCAL, _VOLTA, _AMPERE = 6.0, 7.0, 8.0  # compute capabilities


@dataclass(frozen=True)
class KernelConstants:
    """Constants of all GPUs. A step is one step along a product's inner dimension.

    Attributes:
        fma, edge: core cycles for each multiply-add of a tile, and for each of its rows and columns at each step.
        prologue: steps that a thread block needs to start and to store its results, in Winograd's F(2x2, 3x3) as well.
        strided: slowdown of the memory for matrices stored along the inner dimension.
        page_cycles: cycles for each page of 2 MiB that a tile's rows lie on, at each step; only before Volta.
        winograd_fma: as `fma` for Winograd's F(2x2, 3x3) in one kernel, transforms included.
        transform, transform_weights: slowdown of the transforms of Winograd's F(4x4, 3x3) over their traffic.
        start_us: microseconds for each kernel of an operator, without the host's launch.
        fma_pj, load_pj: picojoules of an fp32 operation, and of a byte that a tile loads.
        convolution_energy: energy of an operation of an implicit matrix product over `fma_pj`.
        tensor_fma, tensor_edge: as `fma` and `edge` for tensor cores, in cycles of the same number of multiply-adds.
        tensor_energy: energy of an operation of the tensor cores over `fma_pj`.
    """

    fma: float
    edge: float
    prologue: float
    strided: float
    page_cycles: float
    winograd_fma: float
    transform: float
    transform_weights: float
    start_us: float
    fma_pj: float
    load_pj: float
    convolution_energy: float
    tensor_fma: float
    tensor_edge: float
    tensor_energy: float


KERNELS = KernelConstants(
    fma=0.804, edge=0.259, prologue=12.7, strided=1.62, page_cycles=12.1, winograd_fma=1.32, transform=1.51,
    transform_weights=3.38, start_us=3.27, fma_pj=18.6, load_pj=61.3, convolution_energy=0.739, tensor_fma=0.348,
    tensor_edge=1.14, tensor_energy=0.0461,
)  # fmt: skip


TILES: tuple[Tile, ...] = ((128, 128), (128, 64), (64, 64), (128, 32), (32, 128))
CONVOLUTION_TILES: tuple[Tile, ...] = ((128, 128), (64, 128), (32, 128))


def tiles_of(use: Use | None, capability: float) -> tuple[Tile, ...]:
    """The possible tiles of a product; on some GPU generations, cuBLAS 12 has tiles of one size for a use."""
    if capability >= _AMPERE and use in ("batched", "winograd"):
        return tuple(tile for tile in TILES if prod(tile) == 128 * 128)
    if _PASCAL <= capability < _VOLTA and use in ("linear", "batched"):
        return tuple(tile for tile in TILES if prod(tile) == (64 * 64 if use == "linear" else 128 * 64))
    return TILES


@dataclass(frozen=True)
class MeasuredFractions:
    """Measured fractions of a GPU's specification.

    Attributes:
        clock: its clock without power throttling, over the boost clock.
        dram: its memory bandwidth over that of the specification.
    """

    clock: float
    dram: float


UNMEASURED = MeasuredFractions(clock=1.0, dram=0.85)
MEASURED: Mapping[str, MeasuredFractions] = MappingProxyType(
    {
        "k80": MeasuredFractions(
            clock=0.642, dram=0.85
        ),  # its base clock, 562 MHz: only that agrees with published networks
        "p100pcie": MeasuredFractions(clock=1.05, dram=0.805),
        "v100pcie": MeasuredFractions(clock=1.07, dram=0.978),
        "t4": MeasuredFractions(clock=0.94, dram=0.781),
        "a100pcie40": MeasuredFractions(clock=0.943, dram=0.92),
    }
)
Known = Literal["networks", "kernels", "specification"]
"""The evidence for a GPU: measured kernels and networks, kernels only, or its specification."""
_FITTED: Mapping[str, Known] = MappingProxyType(
    {"p100pcie": "kernels", "v100pcie": "networks", "t4": "kernels", "a100pcie40": "kernels"}
)
_SAME_CHIP = {"p100": "p100pcie", "v100": "v100pcie", "a100": "a100pcie40", "a100pcie80": "a100pcie40"}


def measured_card(key: str) -> str:
    """The measured card with the same chip as this GPU, or the GPU itself."""
    return _SAME_CHIP.get(key, key)


def measured(gpu: GpuSpec) -> MeasuredFractions:
    """The measured fractions of this GPU, or of another card with the same chip."""
    return MEASURED.get(measured_card(gpu.key), UNMEASURED)


def known_by(gpu: GpuSpec) -> Known:
    """The evidence for this GPU, or for another card with the same chip."""
    return _FITTED.get(measured_card(gpu.key), "specification")


@dataclass(frozen=True)
class LaunchConstants:
    """Constants of launches for all GPUs.

    Attributes:
        kernel_us: latency of a launch.
        issue_us: the least time between the starts of two kernels, on any streams.
        fork_us: latency of each group of a concurrent stage, for waits between streams or graph branches.
        window: the share of the CUDA cores' peak that depthwise convolutions attain.
        interference: the share of other groups' work that prolongs the longest group.
    """

    kernel_us: float
    issue_us: float
    fork_us: float
    window: float
    interference: float


STREAM_LAUNCHES = LaunchConstants(kernel_us=5.45, issue_us=4.06, fork_us=8.07, window=0.0191, interference=1.0)
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
