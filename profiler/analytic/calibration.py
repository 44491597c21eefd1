"""The constants of the analytic model, fitted to published latencies by `benchmarks/analytic.py`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """The same for all GPUs; what tells GPUs apart is their specification.

    Attributes:
        kernel_us: what a kernel takes beside its work: its launch and its end.
        fork_us: what a stage of several groups takes for each of them: events between the streams.
        utilisation: the part of peak arithmetic and of peak bandwidth that a large kernel attains.
        fill: results that an SM must have in the making to attain that rate; with fewer it waits for its own latency.
        tile_overhead: an m x n tile runs at 1 / (1 + tile_overhead * (1/m + 1/n)) of the rate, for what it loads.
        window: the part of the CUDA cores' peak that depthwise convolutions and poolings attain.
        interference: the part of the other groups' work that does not hide in what the longest group leaves idle.
    """

    kernel_us: float
    fork_us: float
    utilisation: float
    fill: float
    tile_overhead: float
    window: float
    interference: float


CALIBRATION = Calibration(
    kernel_us=9.0,
    fork_us=9.0,
    utilisation=0.9,
    fill=2500.0,
    tile_overhead=8.0,
    window=0.1,
    interference=0.4,
)
